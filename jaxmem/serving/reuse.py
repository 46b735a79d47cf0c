"""LRU hit rates at every capacity from one pass over a trace (Mattson's stack distances, 1970).

A block hits in every cache that holds more blocks than were used since its own last use. Those
distances are counted for all references at once, by descending the bits of a wavelet matrix: a sum
and a partition a bit, no loop over references. An id that stands for several blocks is never
expanded: it carries its number of blocks, and its blocks lie one behind the other.

Exact (equal to `replay` block for block) where requests do not overlap, nothing is rejected, only
prompts are cached and every prompt is a whole number of blocks that is not found in whole. On other
traces it differs: a response takes room and never hits, a partial last block holds one block back,
and the last token of a prompt is always recomputed. docs/serving.md gives measured differences.
"""

from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from jaxmem.core.design import Leaf, leaf, record, static
from jaxmem.serving.blocks import Blocked

NEVER = np.iinfo(np.int32).max
"""Distance of a first use."""

type Order = Literal["tail_first", "head_first"]


@record
class Curve:
    """Hits at every capacity, in blocks that can be used (vLLM's `num_blocks` less one)."""

    hit_blocks: Leaf = leaf("[capacity + 1] blocks found, from a cache of 0 blocks on")
    prompt_tokens: Leaf = leaf("tokens of all prompts", unit="tokens")
    block_tokens: int = static("tokens of a block")

    def hit_tokens(self, capacity_blocks: Leaf) -> Float[Array, "..."]:
        """Prompt tokens found in the cache by all requests together.

        Between whole capacities the line through both is taken, so that the gradient at C is
        exactly what block C + 1 would add.
        """
        last = self.hit_blocks.shape[0] - 1
        capacity = jnp.clip(jnp.asarray(capacity_blocks, float), 0, last)
        low = lax.stop_gradient(jnp.minimum(jnp.floor(capacity), last - 1)).astype(jnp.int32)
        base = self.hit_blocks[low]
        rise = self.hit_blocks[low + 1] - base
        return (base + rise * (capacity - low)) * float(self.block_tokens)

    def hit_rate(self, capacity_blocks: Leaf) -> Float[Array, "..."]:
        """Share of prompt tokens found in a cache of this many blocks.

        Gradient: exact slope to the next block; blocks of a trace come in lumps, so take
        `slope` over a range for a search.
        """
        return self.hit_tokens(capacity_blocks) / self.prompt_tokens

    def slope(self, capacity_blocks: Leaf, width: float = 0.1) -> Float[Array, "..."]:
        """Hit rate gained per block around a capacity, over `width` of it to either side."""
        capacity = jnp.asarray(capacity_blocks, float)
        reach = jnp.maximum(width * capacity, 1.0)
        low, high = jnp.maximum(capacity - reach, 0.0), capacity + reach
        return (self.hit_rate(high) - self.hit_rate(low)) / (high - low)


def curve(blocked: Blocked, order: Order = "tail_first") -> Curve:
    """The hit curve of a trace's prompts under LRU, in one pass.

    Args:
        blocked: prompts in blocks (`blocks.block`).
        order: how a finished request ages its blocks: `tail_first` as vLLM frees them, so that the
            tail of a sequence is evicted first; `head_first` as caches that touch in reading order.
    """
    used = _used(blocked)
    if not used.any():
        total = float(blocked.input_tokens.sum())
        return Curve(
            hit_blocks=jnp.zeros(2), prompt_tokens=total, block_tokens=blocked.block_tokens
        )
    request = np.repeat(np.arange(len(blocked.input_tokens)), np.diff(blocked.start))
    keep = used > 0
    ids, used, request = blocked.ids[keep], used[keep], request[keep]
    found = distances(ids, used, request, order=order)
    last = int(np.max(np.where(found < NEVER, found + used, 0), initial=0)) + 1
    top = 1 << last.bit_length()  # few sizes, few compiles
    hits = _cumulate(jnp.asarray(found), jnp.asarray(used, jnp.int32), top=top)
    return Curve(
        hit_blocks=hits[: last + 1],
        prompt_tokens=float(blocked.input_tokens.sum()),
        block_tokens=blocked.block_tokens,
    )


def distances(
    ids: Int[np.ndarray, " ref"],
    weight: Int[np.ndarray, " ref"],
    request: Int[np.ndarray, " ref"],
    *,
    order: Order = "tail_first",
) -> Int[np.ndarray, " ref"]:
    """Blocks used since each id's last use, counted when its request begins.

    Args:
        ids: dense ids, request after request, each request's from its first block on.
        weight: blocks of each.
        request: number of each one's request, rising.
        order: how a request ages its blocks.

    Returns:
        Blocks that a cache must hold besides this id's own first block, prefix included; `NEVER`
        for a first use.

    Example:
        >>> ids, one = np.array([0, 1, 0, 2, 0, 1]), np.ones(6, int)
        >>> distances(ids, one, np.array([0, 0, 1, 1, 2, 2]))[[2, 4, 5]].tolist()
        [0, 0, 2]
    """
    begin = np.searchsorted(request, request)
    if order == "tail_first":
        end = np.searchsorted(request, request, side="right")
        stream = begin + end - 1 - np.arange(len(ids))
    else:
        stream = np.arange(len(ids))
    columns = (ids[stream], weight[stream], begin, stream)
    found = _distances(*(jnp.asarray(c, jnp.int32) for c in columns))
    return np.asarray(found)


def _used(blocked: Blocked) -> Int[np.ndarray, " id"]:
    """Blocks that each id of a prompt stands for; the last one of a prompt may be cut short."""
    place = np.arange(len(blocked.ids)) - np.repeat(blocked.start[:-1], np.diff(blocked.start))
    keyed = np.repeat(blocked.keyed_blocks, np.diff(blocked.start))
    return np.clip(keyed - place * blocked.id_blocks, 0, blocked.id_blocks)


@jax.jit
def _distances(ids, weight, begin, stream):
    """Distances in the order of the trace; `stream` is the order in which blocks age."""
    n = ids.shape[0]
    place = jnp.arange(n, dtype=jnp.int32)
    by_id = jnp.argsort(ids, stable=True)
    same = ids[by_id[1:]] == ids[by_id[:-1]]
    before = jnp.concatenate([jnp.full(1, -1, jnp.int32), jnp.where(same, by_id[:-1], -1)])
    previous = jnp.zeros(n, jnp.int32).at[by_id].set(before, unique_indices=True)
    total = _from_zero(weight)
    # Distinct ids after `previous` and before the request begins are those whose own previous
    # use is not after it; up to `previous` itself that holds for all.
    below = _weight_below(previous + 1, weight, begin, previous + 2)
    found = jnp.where(previous >= 0, below - total[previous + 1], NEVER)
    in_trace = jnp.zeros(n, jnp.int32).at[stream].set(found, unique_indices=True)
    # A block is of use only with all before it: the longest prefix that is still there.
    return _running_max(in_trace, begin, place)


def _weight_below(value, weight, stop, limit):
    """Weight of positions before `stop` whose value is below `limit`, for every (stop, limit)."""
    n = value.shape[0]
    n_bit = max(int(n + 1).bit_length(), 1)
    low, high, found = jnp.zeros_like(stop), stop, jnp.zeros_like(stop)
    place = jnp.arange(n, dtype=jnp.int32)

    def descend(i, state):
        value, weight, low, high, found = state
        bit = n_bit - 1 - i
        is_zero = ((value >> bit) & 1) == 0
        zeros, light = _from_zero(is_zero), _from_zero(jnp.where(is_zero, weight, 0))
        n_zero = zeros[-1]
        is_above = ((limit >> bit) & 1) == 1
        found = jnp.where(is_above, found + light[high] - light[low], found)
        low = jnp.where(is_above, n_zero + low - zeros[low], zeros[low])
        high = jnp.where(is_above, n_zero + high - zeros[high], zeros[high])
        to = jnp.where(is_zero, zeros[:-1], n_zero + place - zeros[:-1])
        value = jnp.zeros_like(value).at[to].set(value, unique_indices=True)
        weight = jnp.zeros_like(weight).at[to].set(weight, unique_indices=True)
        return value, weight, low, high, found

    return lax.fori_loop(0, n_bit, descend, (value, weight, low, high, found))[-1]


def _running_max(value, begin, place):
    """The largest value from `begin` on, by doubling the reach."""

    def double(state):
        value, reach = state
        back = jnp.maximum(place - reach, begin)
        return jnp.maximum(value, value[back]), 2 * reach

    longest = jnp.max(place - begin)
    return lax.while_loop(lambda s: s[1] <= longest, double, (value, jnp.int32(1)))[0]


@partial(jax.jit, static_argnames=("top",))
def _cumulate(distance, weight, *, top: int):
    """[top + 1] hits at every capacity: block j of a reference hits from distance + j + 1 on."""
    is_reuse = distance < NEVER
    start = jnp.where(is_reuse, jnp.minimum(distance + 1, top), top)
    end = jnp.where(is_reuse, jnp.minimum(distance + 1 + weight, top), top)
    gain = jnp.zeros(top + 1, jnp.int32).at[start].add(1).at[end].add(-1)
    return _from_zero(_from_zero(gain)[1:])[1:].astype(float)


def _from_zero(x):
    """[n + 1] sums of the first 0, 1, ... n values; a scan compiles and runs faster than cumsum."""

    def add(total, one):
        return total + one, total + one

    sums = lax.scan(add, jnp.int32(0), x.astype(jnp.int32))[1]
    return jnp.concatenate([jnp.zeros(1, jnp.int32), sums])
