"""Where a block pool's state lies, and the loop that moves it in place.

All state of a pool is one int32 array: a row of eight words a block, two words a key, a table of
the blocks that requests hold. The writes of a turn are applied at the start of the next, before
anything is read; only so does XLA keep the memory in place (research/perf.md, section B: 31 ns an
event against 20,000).
"""

import dataclasses
from collections import Counter
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Int

from jaxmem.serving.eviction import N_QUEUE, Scalar

NONE = -1
"""No block, or no key."""
ANONYMOUS = -2
"""A key that no request will ever look up: it fills the cache and is evicted, but never hits."""

NEXT, PREV, REF, KEY, COPY_NEXT, COPY_PREV, HIT, OWNER = range(8)
"""Words of a block's row: its neighbours in a free queue, how many requests hold it, its key, its
neighbours among copies of the same key (none for a single copy), its reuses, who freed it last."""
BLOCK_WORDS = 8
KEY_WORDS = 2  # first block with this key, which may be out of date; ghost stamp of ARC


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where things lie in a pool's memory, in words; static.

    Attributes:
        max_block: most blocks of any pool that uses this layout, block 0 included.
        n_key: dense keys.
        n_held: entries of the table of blocks that requests hold.
        n_request: requests.
        n_extra: words for the driver.
        max_event: rows of the log of what happened; 0 keeps none.
        is_lru: leave out what policies other than vLLM's need.
    """

    max_block: int
    n_key: int
    n_held: int
    n_request: int = 1
    n_extra: int = 0
    max_event: int = 0
    is_lru: bool = True

    @property
    def key_base(self) -> int:
        return BLOCK_WORDS * (self.max_block + N_QUEUE)

    @property
    def held_base(self) -> int:
        return self.key_base + KEY_WORDS * max(self.n_key, 1)

    @property
    def lost_base(self) -> int:
        """A word a request: 1 once a block that it freed last was evicted."""
        return self.held_base + self.n_held

    @property
    def extra_base(self) -> int:
        return self.lost_base + self.n_request

    @property
    def trash(self) -> int:
        """Where writes go that are not to happen; two words, as the widest write."""
        return self.extra_base + self.n_extra

    @property
    def n_word(self) -> int:
        return self.trash + 2


class Count(NamedTuple):
    """Scalars of a pool."""

    n_block: Any  # usable blocks: the capacity less the null block
    n_free: Any
    n_evicted: Any
    queue_mask: Any  # bit q: queue q holds a block
    n_recent: Any  # ARC: blocks in its recency queue
    arc_target: Any
    n_ghost_recent: Any  # ARC: evictions from either queue so far
    n_ghost_frequent: Any
    n_event: Any


class Pool(NamedTuple):
    """A pool in a jitted program."""

    memory: Int[Array, " word"]
    count: Count
    event: Int[Array, "event 4"]  # request, index in its sequence, block, bits


def create(layout: Layout, n_block) -> Pool:
    """An empty pool of `n_block` blocks, of which block 0 is never used (vLLM's null block).

    Args:
        layout: where things lie; its `max_block` bounds `n_block`.
        n_block: capacity, traced.
    """
    first = layout.max_block  # sentinel of queue 0
    block = jnp.arange(layout.max_block + N_QUEUE, dtype=jnp.int32)
    is_usable = (block >= 1) & (block < n_block)
    n_free = jnp.asarray(n_block, jnp.int32) - 1
    next_ = jnp.where(is_usable, jnp.where(block == n_free, first, block + 1), NONE)
    prev = jnp.where(is_usable, jnp.where(block == 1, first, block - 1), NONE)
    is_sentinel = block >= first
    next_ = jnp.where(is_sentinel, jnp.where((block == first) & (n_free > 0), 1, block), next_)
    prev = jnp.where(is_sentinel, jnp.where((block == first) & (n_free > 0), n_free, block), prev)
    none, zero = jnp.full_like(block, NONE), jnp.zeros_like(block)
    rows = jnp.stack([next_, prev, zero, none, none, none, zero, none], axis=1)
    rest = jnp.full(layout.lost_base - layout.key_base, NONE, jnp.int32)
    tail = jnp.zeros(layout.n_word - layout.lost_base, jnp.int32)
    memory = jnp.concatenate([rows.reshape(-1), rest, tail])
    none_yet = jnp.int32(0)
    mask = (n_free > 0).astype(jnp.int32)
    count = Count(n_free, n_free, none_yet, mask, *[none_yet] * 5)
    return Pool(memory, count, jnp.full((max(layout.max_event, 1), 4), NONE, jnp.int32))


class Words:
    """Reads of a committed memory, and the writes that a turn leaves pending."""

    def __init__(self, memory, trash: int):
        self.memory, self.trash = memory, trash
        self.pending: list[tuple[Any, Any]] = []

    def word(self, address) -> Scalar:
        """The word at an address; one outside the memory reads some other word."""
        address = jnp.asarray(address, jnp.int32)
        return lax.dynamic_slice(self.memory, (address,), (1,), allow_negative_indices=False)[0]

    def write(self, address, *values, where=True) -> None:
        """Words to write from `address` on; nothing happens outside `where`."""
        to = jnp.asarray(jnp.where(where, address, self.trash), jnp.int32)
        self.pending.append((to, jnp.stack([jnp.asarray(v, jnp.int32) for v in values])))


class Turn(Words):
    """A turn of a pool's loops."""

    def __init__(self, layout: Layout, memory):
        super().__init__(memory, layout.trash)
        self.layout = layout

    def block(self, block, field: int) -> Scalar:
        return self.word(BLOCK_WORDS * block + field)

    def first(self, key) -> Scalar:
        """First block with this key, or NONE. An entry whose block has moved on is out of date."""
        found = self.word(self.layout.key_base + KEY_WORDS * jnp.maximum(key, 0))
        is_so = (key >= 0) & (found >= 0) & (self.block(jnp.maximum(found, 0), KEY) == key)
        return jnp.where(is_so, found, NONE)

    def put(self, block, field: int, *values, where=True) -> None:
        self.write(BLOCK_WORDS * block + field, *values, where=where)

    def put_first(self, key, block, where) -> None:
        address = self.layout.key_base + KEY_WORDS * key
        self.write(address, block, where=where & (key >= 0))


def commit(memory, pending):
    """Memory after pending writes."""
    for address, values in pending:
        memory = lax.dynamic_update_slice(memory, values, (address,), allow_negative_indices=False)
    return memory


def loop(layout: Layout, pool: Pool, carry, goes_on, steps, kind=None):
    """Turns while `goes_on(carry)`.

    Args:
        layout: of the pool.
        pool: before.
        carry: scalars.
        goes_on: whether there is another turn.
        steps: what a turn does, by its kind: (turn, carry) -> (carry, event or None).
        kind: from the carry, the kind of the next turn; needed where there are several.

    Returns:
        (pool, carry).
    """
    carry = jax.tree.map(lambda v: jnp.asarray(v, jnp.int32), carry)

    def turn_of(step):
        """What a kind of turn leaves: (carry, pending writes, event as one row or None)."""

        def turn(memory, carry):
            now = Turn(layout, memory)
            new, event = step(now, carry)
            new = jax.tree.map(lambda v: jnp.asarray(v, jnp.int32), new)
            event = None if event is None else jnp.stack([jnp.asarray(v, jnp.int32) for v in event])
            return new, now.pending, event

        return turn

    def alike(turn):
        """`turn` with the same number of writes as turns of the other kinds."""

        def padded(memory, carry):
            carry, pending, event = turn(memory, carry)
            return carry, _filled(pending, nowhere), event

        return padded

    turns = [turn_of(step) for step in steps]
    shapes = [jax.eval_shape(turn, pool.memory, carry)[1] for turn in turns]
    widths = _joint([[values.shape[0] for _, values in kind_of] for kind_of in shapes])
    nowhere = [(jnp.int32(layout.trash), jnp.zeros(width, jnp.int32)) for width in widths]
    turns = [alike(turn) for turn in turns]

    def body(state):
        memory, log, n_event, pending, carry = state
        memory = commit(memory, pending)
        if kind is None:
            carry, pending, event = turns[0](memory, carry)
        else:
            carry, pending, event = lax.switch(kind(carry), turns, memory, carry)
        if layout.max_event and event is not None:
            at = (n_event, jnp.int32(0))
            log = lax.dynamic_update_slice(log, event[None], at, allow_negative_indices=False)
            n_event = n_event + (event[-1] != 0)
        return memory, log, n_event, pending, carry

    state = (pool.memory, pool.event, pool.count.n_event, nowhere, carry)
    state = lax.while_loop(lambda s: goes_on(s[-1]), body, state)
    memory, log, n_event, pending, carry = state
    count = pool.count._replace(n_event=n_event)
    return Pool(commit(memory, pending), count, log), carry


def _joint(widths: list[list[int]]) -> list[int]:
    """Widths of writes that leave room for those of every kind of turn."""
    counts = [Counter(of_kind) for of_kind in widths]
    most = {w: max(c[w] for c in counts) for c in counts for w in c}
    return [w for w in sorted(most) for _ in range(most[w])]


def _filled(pending, nowhere):
    """`pending` with as many writes as every kind of turn may have, in order within a width.

    Writes of one turn never meet, so that their order is free.
    """
    left = {}
    for write in pending:
        left.setdefault(write[1].shape[0], []).append(write)
    return [left[w[1].shape[0]].pop(0) if left.get(w[1].shape[0]) else w for w in nowhere]


def free_queue(layout: Layout, memory) -> Int[np.ndarray, " block"]:
    """Free blocks in the order in which they will be taken, queue by queue."""
    found = []
    for queue in range(1 if layout.is_lru else N_QUEUE):
        blocks = np.asarray(_walk(layout, jnp.asarray(memory), queue))
        found.append(blocks[blocks != NONE])
    return np.concatenate(found)


@partial(jax.jit, static_argnums=0)
def _walk(layout: Layout, memory, queue):
    """[max_block] a queue's blocks from its head on, NONE where they are in use or at an end."""

    def one(block, _):
        is_free = (block < layout.max_block) & (memory[BLOCK_WORDS * block + REF] == 0)
        next_ = jnp.where(block < layout.max_block, memory[BLOCK_WORDS * block + NEXT], block)
        return next_, jnp.where(is_free, block, NONE)  # FIFO leaves blocks in use where they are

    first = memory[BLOCK_WORDS * (layout.max_block + queue) + NEXT]
    return lax.scan(one, first, None, length=layout.max_block)[1]
