"""A trace replayed through one block pool, request after request, exactly as vLLM would.

A request looks its prompt up, takes the blocks that it misses and those that its response fills,
and leaves. What a response says is unknown to a trace: its blocks fill the cache but never hit. A
request that the pool cannot hold at all is skipped. Requests do not overlap; `scheduler` does that.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Int

from jaxmem.core.design import build
from jaxmem.core.errors import InputError
from jaxmem.serving import memory as words
from jaxmem.serving import pool
from jaxmem.serving.blocks import Blocked
from jaxmem.serving.memory import ANONYMOUS, NONE, Layout
from jaxmem.serving.pool import Rule

REJECTED = -1
CHUNK = 1024
"""Requests a call: progress is reported, and only so much of a trace is on the device."""


class Replayed(NamedTuple):
    """What became of every request, and of the pool."""

    hit_tokens: Int[np.ndarray, " request"]  # -1: rejected
    evictions: Int[np.ndarray, " request"]  # -1: rejected
    prompt_tokens: Int[np.ndarray, " request"]
    layout: Layout
    memory: Int[np.ndarray, " word"]

    def free_queue(self) -> Int[np.ndarray, " block"]:
        """Free blocks at the end, next to be taken first."""
        return words.free_queue(self.layout, self.memory)

    def n_keyed(self) -> tuple[int, int]:
        """Blocks at the end that carry a key, and different keys among them."""
        rows = self.memory[: self.layout.key_base].reshape(-1, words.BLOCK_WORDS)
        key = rows[:, words.KEY]
        n_anonymous = int((key == ANONYMOUS).sum())
        n_known = int((key >= 0).sum())
        return n_known + n_anonymous, len(np.unique(key[key >= 0])) + n_anonymous

    def summary(self) -> dict[str, float]:
        """Totals: rejected, accepted_prompt_tokens, hit_tokens, hit_rate, evictions."""
        is_in = self.hit_tokens >= 0
        accepted, hits = int(self.prompt_tokens[is_in].sum()), int(self.hit_tokens[is_in].sum())
        return {
            "rejected": int((~is_in).sum()),
            "accepted_prompt_tokens": accepted,
            "hit_tokens": hits,
            "hit_rate": hits / accepted if accepted else float("nan"),
            "evictions": int(self.evictions[is_in].sum()),
        }


class Chunk(NamedTuple):
    """Requests as the machine reads them, padded to a fixed number."""

    prompt_tokens: Int[np.ndarray, " request"]
    total_tokens: Int[np.ndarray, " request"]  # that ever have keys and values
    keyed_blocks: Int[np.ndarray, " request"]  # of the prompt, whose content is known
    start: Int[np.ndarray, " request"]  # of its ids
    ids: Int[np.ndarray, " id"]


def replay(
    blocked: Blocked,
    n_block: int,
    *,
    policy: str = "lru",
    fronts_unkeyed: bool = True,
    has_output: bool = True,
    advance: Callable[[int, int], None] | None = None,
) -> Replayed:
    """Replay a trace through a pool of `n_block` blocks.

    Args:
        blocked: the trace's prompts in blocks.
        n_block: blocks of the pool, with the null block that vLLM never uses.
        policy: a name of `eviction.POLICIES`.
        fronts_unkeyed: as vLLM from 0.23.0; false for the rule before.
        has_output: whether responses take blocks too.
        advance: takes (requests done, requests) as the replay goes on.

    Raises:
        InputError: an unknown policy, or no usable block.
    """
    if n_block < 2:
        raise InputError("n_block", n_block, "a whole number >= 2 blocks")
    rule = build(Rule, {"policy": policy, "fronts_unkeyed": int(fronts_unkeyed)})
    prompt, n = blocked.input_tokens, len(blocked.input_tokens)
    response = np.maximum(blocked.output_tokens - 1, 0) if has_output else 0
    total = np.broadcast_to(prompt + response, prompt.shape)
    layout = Layout(
        max_block=_bucket(n_block, 64),
        n_key=_bucket(blocked.n_key, 64),
        n_held=_bucket(int(total.max(initial=1)) // blocked.block_tokens + 1, 64),
        n_request=_bucket(n, 64),
        is_lru=int(rule.policy) == 0,
    )
    state = jax.jit(words.create, static_argnums=0)(layout, n_block)
    memory, count = state.memory, state.count
    start = blocked.start
    firsts = range(0, n, CHUNK)
    n_id = _bucket(max((int(start[min(i + CHUNK, n)] - start[i]) for i in firsts), default=1), 64)
    results = []
    for first in firsts:
        last = min(first + CHUNK, n)
        own = slice(first, last)
        chunk = Chunk(
            *(_padded(c[own], CHUNK) for c in (prompt, total, blocked.keyed_blocks)),
            _padded(start[own] - start[first], CHUNK),
            _padded(blocked.ids[start[first] : start[last]], n_id),
        )
        sizes = (first, last - first, blocked.block_tokens, blocked.id_blocks)
        sizes = tuple(np.int32(v) for v in sizes)
        memory, count, found = run_chunk(memory, count, rule, chunk, *sizes, layout=layout)
        results.append(np.asarray(found)[:, : last - first])
        if advance:
            advance(last, n)
    hits, evictions = np.concatenate(results, axis=1)
    return Replayed(hits, evictions, prompt, layout, np.asarray(memory))


def _bucket(n: int, least: int) -> int:
    """The power of two from `n` on, and at least `least`: few sizes, few compiles."""
    return 1 << max(int(n) - 1, least - 1).bit_length()


def _padded(values, n: int) -> Int[np.ndarray, " request"]:
    return np.pad(np.asarray(values), (0, n - len(values))).astype(np.int32)


@partial(jax.jit, static_argnames=("layout",), donate_argnames=("memory",))
def run_chunk(memory, now, rule, chunk, first, n_request, block_tokens, id_blocks, *, layout):
    """Replay the first `n_request` requests of a chunk.

    Args:
        memory: the pool's words.
        now: `words.Count`.
        rule: `Rule`.
        chunk: the requests.
        first: number of the chunk's first request in the trace.
        n_request: requests of the chunk that are not padding.
        block_tokens: tokens of a block.
        id_blocks: blocks that an id of `chunk.ids` stands for.
        layout: of the memory.

    Returns:
        (memory, count, [2, request] hit tokens and evictions).
    """

    row = jnp.int32(0)

    def one(local, state):
        held, results = state
        prompt, total = chunk.prompt_tokens[local], chunk.total_tokens[local]
        start, request = chunk.start[local], first + local
        keyed = chunk.keyed_blocks[local]

        def key(index):
            found = chunk.ids[start + index // id_blocks] * id_blocks + index % id_blocks
            return jnp.where(index < keyed, found, ANONYMOUS)

        end = (total + block_tokens - 1) // block_tokens
        fits = end <= held.count.n_block
        end = jnp.where(fits, end, 0)
        limit = jnp.where(end > 0, jnp.maximum(prompt - 1, 0) // block_tokens, 0)
        evicted = held.count.n_evicted
        held, n_hit, _ = pool.lookup(layout, rule, held, row, limit, key)
        held = pool.touch(layout, rule, held, request, row, n_hit)
        full = total // block_tokens
        held = pool.take(layout, rule, held, request, row, n_hit, end, full, key)
        held = pool.release(layout, rule, held, request, row, end)
        outcome = jnp.stack([n_hit * block_tokens, held.count.n_evicted - evicted])
        outcome = jnp.where(fits, outcome, REJECTED)
        return held, results.at[:, local].set(outcome)

    count = words.Count(*(jnp.asarray(v, jnp.int32) for v in now))
    held = words.Pool(memory, count, jnp.full((1, 4), NONE, jnp.int32))
    results = jnp.zeros((2, CHUNK), jnp.int32)
    held, results = lax.fori_loop(0, n_request, one, (held, results))
    return held.memory, held.count, results
