"""Which cached block goes first: eviction policies as points, selected by an int32 code.

Free blocks wait in up to eight queues. A policy says which queue a block joins when its last owner
leaves, and which queue gives the next victim; within a queue the oldest goes first. LRU is vLLM's:
one queue, blocks without a key at its front. LFU counts without ageing. ARC
(Megiddo and Modha, FAST'03) keeps its ghosts as stamps on keys, so that a ghost list is a window
over the most recent evictions and not an exact LRU list; the adaptation rule is the paper's.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

N_QUEUE = 8

POLICIES = {
    "lru": 0,  # vLLM: the least recently freed block
    "fifo": 1,  # the block that first became free; a hit does not refresh it
    "lfu": 2,  # the block with the fewest hits, up to seven counted
    "arc": 3,  # recency against frequency, balanced by what was evicted too early
    "never_hit_first": 4,  # blocks that nobody ever reused, then LRU
    "whole_request": 5,  # LRU, but a request that lost a block has lost them all
}
"""int32 code of every policy, by the name that users write."""

FIFO, LFU, ARC, NEVER_HIT_FIRST, WHOLE_REQUEST = (
    POLICIES[name] for name in ("fifo", "lfu", "arc", "never_hit_first", "whole_request")
)
Scalar = Int[Array, ""]


def queue_of(policy, n_hit, is_keyed) -> Scalar:
    """Queue that a block joins when nobody uses it any more.

    Args:
        policy: a code of `POLICIES`.
        n_hit: times that the block was reused since it was filled.
        is_keyed: whether it can be found again; a block that cannot waits in queue 0.
    """
    reused = (n_hit > 0).astype(jnp.int32)
    by_policy = jnp.select(
        [policy == LFU, policy == ARC, policy == NEVER_HIT_FIRST],
        [jnp.minimum(n_hit, N_QUEUE - 1), 1 + reused, reused],
        jnp.int32(0),
    )
    return jnp.where(is_keyed, by_policy, 0)


def victim_queue(policy, queue_mask, arc_target, n_recent) -> Scalar:
    """Queue that gives the next block; `queue_mask` has a bit for every queue that is not empty.

    Args:
        policy: a code of `POLICIES`.
        queue_mask: bit q is set where queue q holds a block.
        arc_target: ARC's p, the size that its recency list should have.
        n_recent: blocks in ARC's recency list.
    """
    lowest = lax.population_count((queue_mask & -queue_mask) - 1)
    spares_recent = (policy == ARC) & (lowest == 1) & (n_recent <= arc_target)
    return jnp.where(spares_recent & (queue_mask >= 4), 2, lowest)


def arc_target(target, n_block, ghost_age, ghost_queue, n_ghost):
    """ARC's p after a key comes back that was evicted `ghost_age` evictions ago.

    Args:
        target: p so far.
        n_block: capacity.
        ghost_age: evictions from the same list since this key's.
        ghost_queue: 1 (recency) or 2 (frequency); anything else is no ghost.
        n_ghost: (recency, frequency) evictions so far, at most the capacity.

    Returns:
        (p, whether the ghost was still remembered).
    """
    is_ghost = ((ghost_queue == 1) | (ghost_queue == 2)) & (ghost_age < n_block)
    recent, frequent = (jnp.clip(n, 1, n_block) for n in n_ghost)
    up = jnp.maximum(frequent // recent, 1)
    down = jnp.maximum(recent // frequent, 1)
    moved = jnp.where(ghost_queue == 1, target + up, target - down)
    return jnp.where(is_ghost, jnp.clip(moved, 0, n_block), target), is_ghost
