"""The block pool: vLLM's paged KV cache with prefix reuse, as an array machine.

Five loops move it, one block a turn: `lookup`, `touch`, `take`, `publish` and `release`; `admit`
and `extend` put them together as a scheduler needs them. For many pools at once use
`jax.lax.map`, not `vmap`, which copies the memory (`memory`).

Semantics: research/vllm.md sections 1.1 to 1.11, one KV group with full attention. Left out:
sliding windows and hybrid groups, speculative decoding, connectors, the asynchronous scheduler.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxmem.core.design import Leaf, code, flag, record
from jaxmem.serving import eviction
from jaxmem.serving.eviction import ARC, FIFO, N_QUEUE, POLICIES, WHOLE_REQUEST, Scalar
from jaxmem.serving.memory import (
    ANONYMOUS,
    BLOCK_WORDS,
    COPY_NEXT,
    COPY_PREV,
    HIT,
    KEY,
    KEY_WORDS,
    NEXT,
    NONE,
    OWNER,
    PREV,
    REF,
    Count,
    Layout,
    Pool,
    Turn,
    loop,
)  # fmt: skip

ALLOCATED, REUSED, EVICTED, PUBLISHED, DROPPED, FREED = (1 << b for b in range(6))
"""Bits of what happened to a block: taken from the free queue for a request; found in the cache by
a request; lost its old key when it was taken; became findable; left by one of its owners; left by
the last of them."""

type Key = Callable[[Any], Scalar]
"""The key of a request's block, by its index in the sequence; may be NONE or ANONYMOUS."""


@record
class Rule:
    """How a pool behaves: all traced, so that variants run through one program."""

    policy: Leaf = code("eviction policy", POLICIES, default=0)
    is_caching: Leaf = flag("blocks are kept for reuse", default=1)
    fronts_unkeyed: Leaf = flag(
        "freed blocks without a key go to the front of the queue (vLLM from 0.23.0); else all to "
        "the back",
        default=1,
    )


def lookup(layout: Layout, rule: Rule, pool: Pool, row, limit, key: Key):
    """Walk a request's keys from its first block while they are found.

    Args:
        row: where its blocks begin in the table of held blocks.
        limit: most blocks to find; a whole prompt less its last token, which is recomputed.
        key: of its blocks.

    Returns:
        (pool, blocks found, how many of these nobody holds). They are noted in the table; nothing
        else changes: no reference, no place in a queue.
    """

    def step(turn: Turn, carry):
        n_hit, n_unused, _ = carry
        block = turn.first(key(n_hit))
        is_hit = block >= 0
        if not layout.is_lru:
            owner = turn.block(block, OWNER)
            is_lost = turn.word(layout.lost_base + jnp.maximum(owner, 0)) == 1
            is_hit &= ~((rule.policy == WHOLE_REQUEST) & (owner >= 0) & is_lost)
        turn.write(layout.held_base + row + n_hit, block, where=is_hit)
        is_unused = is_hit & (turn.block(block, REF) == 0)
        return (n_hit + is_hit, n_unused + is_unused, is_hit), None

    limit = jnp.where(rule.is_caching == 1, limit, 0)
    pool, (n_hit, n_unused, _) = loop(
        layout, pool, (0, 0, True), lambda c: (c[0] < limit) & (c[2] == 1), [step]
    )
    return pool, n_hit, n_unused


def touch(layout: Layout, rule: Rule, pool: Pool, request, row, n_hit) -> Pool:
    """Hold the blocks that `lookup` found; a first owner takes its block out of the free queue."""

    def step(turn: Turn, carry):
        index, now = carry
        block = turn.word(layout.held_base + row + index)
        ref, prev, next_ = (turn.block(block, field) for field in (REF, PREV, NEXT))
        leaves = ref == 0
        moves = leaves if layout.is_lru else leaves & (rule.policy != FIFO)
        turn.put(prev, NEXT, next_, where=moves)
        turn.put(next_, PREV, prev, where=moves)
        turn.put(block, REF, ref + 1)
        now = now._replace(n_free=now.n_free - leaves)
        if not layout.is_lru:
            n_hit = turn.block(block, HIT)
            turn.put(block, NEXT, NONE, where=moves)
            turn.put(block, HIT, n_hit + 1)
            was_recent = moves & (rule.policy == ARC) & (n_hit == 0)
            now = now._replace(
                n_recent=now.n_recent - was_recent,
                queue_mask=_without(layout, now.queue_mask, prev, next_, moves),
            )
        return (index + 1, now), (request, index, block, REUSED)

    pool, (_, count) = loop(layout, pool, (0, pool.count), lambda c: c[0] < n_hit, [step])
    return _counted(pool, count)


def take(layout: Layout, rule: Rule, pool: Pool, request, row, start, end, full, key: Key) -> Pool:
    """Give a request the first free blocks, for blocks `start` to `end` of its sequence.

    A key that a block still carries is evicted. A block that fills at once (below `full`) becomes
    findable at once: before the pass that computes it. The caller has checked that they are there.
    """

    def step(turn: Turn, carry):
        index, cursor, now, _ = carry
        if layout.is_lru:
            prev = jnp.int32(layout.max_block)
            block = turn.block(prev, NEXT)
            is_pinned = jnp.asarray(False)
        else:
            queue = layout.max_block + eviction.victim_queue(
                rule.policy, now.queue_mask, now.arc_target, now.n_recent
            )
            prev = jnp.where((rule.policy == FIFO) & (cursor >= 0), cursor, queue)
            block = turn.block(prev, NEXT)
            is_pinned = (rule.policy == FIFO) & (turn.block(block, REF) > 0)
        next_, old = turn.block(block, NEXT), turn.block(block, KEY)
        has_copies = (old >= 0) & (turn.block(block, COPY_NEXT) >= 0)
        is_taken = ~has_copies & ~is_pinned
        wanted = jnp.where((index < full) & (rule.is_caching == 1), key(index), NONE)
        is_copy = turn.first(wanted) >= 0
        new = jnp.where(is_copy, NONE, wanted)
        is_evicted = is_taken & (old != NONE)
        turn.put(block, REF, 1, new, where=is_taken)
        turn.write(layout.held_base + row + index, block)
        turn.put_first(new, block, is_taken)
        turn.put(prev, NEXT, next_, where=is_taken)
        turn.put(next_, PREV, prev, where=is_taken)
        now = now._replace(n_free=now.n_free - is_taken, n_evicted=now.n_evicted + is_evicted)
        if not layout.is_lru:
            now = _take_by_policy(layout, rule, turn, now, block, old, new, is_taken, is_evicted)
            queue_mask = _without(layout, now.queue_mask, prev, next_, is_taken)
            now = now._replace(queue_mask=queue_mask)
        kind = jnp.where(is_copy & is_taken, _PUBLISH, _TAKE)
        kind = jnp.where(has_copies & ~is_pinned, _SPLIT, kind)
        bits = ALLOCATED + EVICTED * is_evicted + PUBLISHED * (new != NONE)
        carry = (
            index + (is_taken & ~is_copy),
            jnp.where(is_pinned, block, cursor),
            now,
            kind,
        )
        return carry, (request, index, block, bits * is_taken)

    def split(turn: Turn, carry):
        """The next victim leaves the copies of its key, with a key that nobody can find."""
        index, cursor, now, _ = carry
        block = turn.word(layout.held_base + row + index)  # where `step` left it
        _detach(turn, block, turn.block(block, KEY), where=True)
        turn.put(block, KEY, ANONYMOUS)
        return (index, cursor, now, _TAKE), (request, index, block, 0)

    def copy(turn: Turn, carry):
        index, cursor, now, _ = carry
        event = _publish(layout, rule, turn, request, row, index, key)
        return (index + 1, cursor, now, _TAKE), event

    state = (jnp.asarray(start, jnp.int32), NONE, pool.count, _TAKE)
    pool, (_, _, count, _) = loop(
        layout, pool, state, lambda c: c[0] < end, [step, split, copy], lambda c: c[3]
    )
    return _counted(pool, count)


_TAKE, _SPLIT, _PUBLISH = range(3)
"""Kinds of a turn of `take`: the usual one; the next victim is one of several copies of a key; the
new block becomes a copy."""


def publish(layout: Layout, rule: Rule, pool: Pool, request, row, index, key: Key, where) -> Pool:
    """Make a held block findable, behind earlier copies of its key."""

    def step(turn: Turn, carry):
        return carry - 1, _publish(layout, rule, turn, request, row, index, key)

    once = jnp.asarray(where).astype(jnp.int32)
    return loop(layout, pool, once, lambda n: n > 0, [step])[0]


def release(layout: Layout, rule: Rule, pool: Pool, request, row, n_held) -> Pool:
    """Let go of a request's blocks, the tail of its sequence first.

    The last owner of a block puts it in a free queue: at the back where it can be found again, at
    the front, in the order of this walk, where it cannot.
    """

    def step(turn: Turn, carry):
        index, front, now = carry
        block = turn.word(layout.held_base + row + index)
        ref, key = turn.block(block, REF), turn.block(block, KEY)
        leaves = enters = ref <= 1
        is_front = (key == NONE) & (rule.fronts_unkeyed == 1)
        queue = jnp.int32(0)
        if not layout.is_lru:
            n_hit = turn.block(block, HIT)
            queue = eviction.queue_of(rule.policy, n_hit, key != NONE)
            enters = leaves & ~((rule.policy == FIFO) & (turn.block(block, NEXT) != NONE))
            is_recent = enters & (key != NONE) & (rule.policy == ARC) & (n_hit == 0)
            now = now._replace(
                n_recent=now.n_recent + is_recent,
                queue_mask=jnp.where(enters, now.queue_mask | (1 << queue), now.queue_mask),
            )
            turn.put(block, OWNER, request)
        sentinel = layout.max_block + queue
        at_front = jnp.where(front >= 0, front, sentinel)
        anchor = jnp.where(is_front, at_front, turn.block(sentinel, PREV))
        next_ = turn.block(anchor, NEXT)
        turn.put(anchor, NEXT, block, where=enters)
        turn.put(next_, PREV, block, where=enters)
        turn.put(block, NEXT, next_, anchor, where=enters)
        turn.put(block, REF, ref - 1)
        now = now._replace(n_free=now.n_free + leaves)
        front = jnp.where(is_front & enters, block, front)
        event = (request, index, block, DROPPED + FREED * leaves)
        return (index - 1, front, now), event

    start = (jnp.asarray(n_held) - 1, NONE, pool.count)
    pool, (_, _, count) = loop(layout, pool, start, lambda c: c[0] >= 0, [step])
    return _counted(pool, count)


class Admission(NamedTuple):
    """What a request got when it was admitted; nothing, where it did not fit."""

    fits: Any
    context_tokens: Any  # found in the cache
    n_token: Any
    held: Any  # blocks that it holds
    published: Any  # of these, findable


def admit(
    layout: Layout,
    rule: Rule,
    pool: Pool,
    request,
    row,
    tokens,
    share: Callable[[Any], Any],
    key: Key,
    *,
    block_tokens,
    spare,
    needs_whole,
) -> tuple[Pool, Admission]:
    """Look a request's tokens up and give it the blocks of its first pass, if they are there.

    Args:
        layout: of the pool.
        rule: its policies.
        pool: before.
        request: number of the request.
        row: where its blocks begin in the table of held blocks.
        tokens: that it has, responses of an earlier life included.
        share: from the tokens that it lacks, how many this pass computes.
        key: of its blocks.
        block_tokens: tokens of a block.
        spare: blocks that must stay free.
        needs_whole: whether all its tokens must fit, not only this pass's.

    Returns:
        (pool, `Admission`). Where it does not fit the pool is unchanged.
    """
    limit = jnp.maximum(tokens - 1, 0) // block_tokens  # the last token is always computed
    pool, n_hit, n_unused = lookup(layout, rule, pool, row, limit, key)
    context = n_hit * block_tokens
    n_token = share(tokens - context)
    end = _n_block(context + n_token, block_tokens)
    full = jnp.minimum(context + n_token, tokens) // block_tokens
    # Found blocks that nobody holds lie in the free queue and are about to leave it.
    most = jnp.where(needs_whole, jnp.maximum(_n_block(tokens, block_tokens), end), end)
    fits = most - n_hit + n_unused + spare <= pool.count.n_free
    held_hit, end = jnp.where(fits, n_hit, 0), jnp.where(fits, end, 0)
    pool = touch(layout, rule, pool, request, row, held_hit)
    pool = take(layout, rule, pool, request, row, held_hit, end, full, key)
    return pool, Admission(fits, context, n_token, end, full)


def extend(
    layout: Layout,
    rule: Rule,
    pool: Pool,
    request,
    row,
    tokens,
    computed,
    n_token,
    held,
    published,
    key: Key,
    *,
    block_tokens,
):
    """Give a running request the blocks of its next pass, if they are there.

    Returns:
        (pool, whether it fits, blocks held, of these findable).
    """
    end = _n_block(computed + n_token, block_tokens)
    full = jnp.minimum(computed + n_token, tokens) // block_tokens
    fits = end - held <= pool.count.n_free
    fills = fits & (published < held) & (published < full)  # the last block, until now not full
    pool = publish(layout, rule, pool, request, row, published, key, where=fills)
    end = jnp.where(fits, jnp.maximum(end, held), held)
    pool = take(layout, rule, pool, request, row, held, end, full, key)
    return pool, fits, end, jnp.where(fits, jnp.maximum(published, full), published)


def _n_block(tokens, block_tokens):
    return (tokens + block_tokens - 1) // block_tokens


def reset(layout: Layout, pool: Pool) -> tuple[Pool, Bool[Array, ""]]:
    """Forget every key, if no request holds a block; (pool, whether it did).

    The order of the free queue stays.
    """
    is_idle = pool.count.n_free == pool.count.n_block
    rows = pool.memory[: layout.key_base].reshape(-1, BLOCK_WORDS)
    forgotten = rows.at[:, KEY].set(NONE).at[:, COPY_NEXT].set(NONE).reshape(-1)
    memory = pool.memory.at[: layout.key_base].set(jnp.where(is_idle, forgotten, rows.reshape(-1)))
    return pool._replace(memory=memory), is_idle


def forget(layout: Layout, pool: Pool, block, where=True) -> Pool:
    """Drop a block's key where it lies, in use or not."""

    def step(turn: Turn, carry):
        key = turn.block(block, KEY)
        _detach(turn, block, key, where=turn.block(block, COPY_NEXT) >= 0)
        turn.put(block, KEY, NONE)
        return carry - 1, None

    once = jnp.asarray(where).astype(jnp.int32)
    return loop(layout, pool, once, lambda n: n > 0, [step])[0]


def _publish(layout: Layout, rule: Rule, turn: Turn, request, row, index, key: Key):
    """A turn that makes a held block findable; its event."""
    block = turn.word(layout.held_base + row + index)
    new = jnp.where(rule.is_caching == 1, key(index), NONE)
    first = turn.first(new)
    is_copy = (new >= 0) & (first >= 0)
    is_single = turn.block(first, COPY_NEXT) < 0
    last = jnp.where(is_single, first, turn.block(first, COPY_PREV))
    turn.put(block, KEY, new)
    turn.put_first(new, block, ~is_copy)
    turn.put(last, COPY_NEXT, block, where=is_copy)
    turn.put(block, COPY_NEXT, first, last, where=is_copy)
    turn.put(first, COPY_PREV, block, where=is_copy)
    return request, index, block, PUBLISHED * (new != NONE)


def _detach(turn: Turn, block, key, where) -> None:
    """Take `block` out of the copies of its key; one that is left alone has no neighbours."""
    prev, next_ = turn.block(block, COPY_PREV), turn.block(block, COPY_NEXT)
    turn.put(prev, COPY_NEXT, jnp.where(prev == next_, NONE, next_), where=where)
    turn.put(next_, COPY_PREV, prev, where=where)
    turn.put_first(key, next_, where & (turn.first(key) == block))
    turn.put(block, COPY_NEXT, NONE, where=where)


def _counted(pool: Pool, count: Count) -> Pool:
    """`pool` with the scalars of a loop; the log kept its own count."""
    return pool._replace(count=count._replace(n_event=pool.count.n_event))


def _without(layout: Layout, queue_mask, prev, next_, where):
    """`queue_mask` after a block between `prev` and `next_` has left its queue."""
    is_empty = where & (prev == next_) & (prev >= layout.max_block)
    bit = 1 << jnp.clip(prev - layout.max_block, 0, N_QUEUE - 1)
    return jnp.where(is_empty, queue_mask & ~bit, queue_mask)


def _take_by_policy(layout, rule, turn, now: Count, block, old, new, is_taken, is_evicted) -> Count:
    """What policies other than LRU note when a block changes its key."""
    is_arc = rule.policy == ARC
    stamp = turn.word(layout.key_base + KEY_WORDS * jnp.maximum(new, 0) + 1)
    is_ghost = is_arc & is_taken & (new >= 0) & (stamp >= 0)
    queue = jnp.where(is_ghost, 1 + (stamp & 1), 0)
    n_ghost = (now.n_ghost_recent, now.n_ghost_frequent)
    age = jnp.where(queue == 2, n_ghost[1], n_ghost[0]) - (stamp >> 1)
    target, came_back = eviction.arc_target(now.arc_target, now.n_block, age, queue, n_ghost)

    reused = turn.block(block, HIT) > 0
    is_arc_evicted = is_arc & is_evicted
    stamp = 2 * jnp.where(reused, now.n_ghost_frequent, now.n_ghost_recent) + reused
    owner = turn.block(block, OWNER)
    turn.put(block, NEXT, NONE, where=is_taken)
    turn.put(block, HIT, came_back, where=is_taken)
    turn.write(layout.key_base + KEY_WORDS * old + 1, stamp, where=is_arc_evicted & (old >= 0))
    is_lost = (rule.policy == WHOLE_REQUEST) & is_evicted & (owner >= 0)
    turn.write(layout.lost_base + owner, 1, where=is_lost)
    return now._replace(
        arc_target=target,
        n_ghost_recent=now.n_ghost_recent + (is_arc_evicted & ~reused),
        n_ghost_frequent=now.n_ghost_frequent + (is_arc_evicted & reused),
        n_recent=now.n_recent - (is_arc_evicted & ~reused),
    )
