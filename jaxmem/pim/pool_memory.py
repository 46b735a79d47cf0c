"""The memory of PATTON's allocator: what is where in one int32 array, and turns that move it.

The writes of a turn are applied at the start of the next, before anything is read: only so does the
array stay in place (research/perf.md, section B). The rules are `pool`'s.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmem.core.design import Leaf, leaf, record
from jaxmem.pim import address
from jaxmem.pim.address import Map
from jaxmem.pim.granule import granule_blocks, layers
from jaxmem.pim.policy import V_WRITE
from jaxmem.serving.memory import Words, commit

NONE = -1
CLOSED = -2
"""Owner of a granule that holds blocks and that no running request fills."""
PLACE, REF, PREV, NEXT, FILLED = range(5)  # words of a block
OWNER, USED, RESIDENT, PINNED = range(4)  # words of a granule; pinned: blocks in use, and if open
N_TOKEN, N_BLOCK, OPEN, SLOT = range(4)  # words of a request
STAYS, FINISHES, TERMINATES = range(3)
"""What a request does at the start of a step: go on; leave its blocks cached; leave nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the arrays hold; static.

    Attributes:
        max_block: logical block ids.
        max_place: blocks that fit all row sets.
        max_granule: granules of all row sets.
        max_request: requests.
        max_held: blocks of one request.
        max_slot: Commit Zone slots.
        max_home: channels that a request may live in, where it lives in one.
    """

    max_block: int
    max_place: int
    max_granule: int
    max_request: int
    max_held: int
    max_slot: int
    max_home: int = 1

    @property
    def granule(self) -> int:
        return 5 * (self.max_block + 1)

    @property
    def table(self) -> int:
        return self.granule + 4 * self.max_granule

    @property
    def request(self) -> int:
        return self.table + self.max_place

    @property
    def held(self) -> int:
        return self.request + 4 * self.max_request

    @property
    def slot(self) -> int:
        return self.held + self.max_request * self.max_held

    @property
    def trash(self) -> int:
        return self.slot + self.max_slot


class Pool(NamedTuple):
    """A layer's KV memory in a jitted program."""

    memory: Any  # [word] int32
    n_pinned: Any  # granules that cannot be evicted
    n_zone: Any  # Commit Zone rows
    time: Any  # steps so far, from 1


@record
class Events:
    """What happens in one scheduler step, by request; -1 for no block.

    A request leaves first, if it does; then it may begin (`share`, where it holds nothing) and
    write. Blocks to share are full, of an earlier step; new ones are ids that hold nothing.
    """

    leave: Leaf = leaf("STAYS, FINISHES or TERMINATES")  # [request] int32
    share: Leaf = leaf("blocks of a cached prefix, in order")  # [request, held] int32
    block: Leaf = leaf("ids for the blocks that the tokens begin, in order")  # [request, new]
    n_token: Leaf = leaf("tokens written, 0 for none", unit="tokens")  # [request] int32


class Sizes(NamedTuple):
    """What a design fixes."""

    map: Map
    own: Any  # blocks of a granule
    unit: Any  # blocks that granules divide evenly: a row set, or a granule of several
    per_unit: Any  # granules of a unit
    spread: Any
    cap: Any  # tokens of a request, at most
    has_zone: Any
    carries: Any
    caches: Any


def sizes(design: Any) -> Sizes:
    """Sizes of a design's pool; traced."""
    m, (shape, _) = address.map_of(design), layers(design)
    own = jnp.asarray(jnp.minimum(granule_blocks(design, shape), 2**30), jnp.int32)
    policy = design.policy
    unit = jnp.maximum(m.set_blocks, own)
    return Sizes(
        map=m,
        own=own,
        unit=unit,
        per_unit=unit // own,
        spread=jnp.asarray(policy.spread),
        cap=jnp.asarray(jnp.minimum(policy.max_context_tokens, 2**30), jnp.int32),
        has_zone=jnp.asarray(policy.v_write) == V_WRITE["commit_zone"],
        carries=jnp.asarray(policy.carries) > 0,
        caches=jnp.asarray(policy.has_prefix_cache) > 0,
    )


def n_usable(s: Sizes, n_zone: Any) -> Any:
    """Granules beside `n_zone` Commit Zone rows."""
    return address.n_set(s.map, n_zone) * s.map.set_blocks // s.unit * s.per_unit


def bounds(design: Any, *, max_request: int, max_held: int, max_block: int = 0) -> Bounds:
    """Bounds that a concrete design fits; by default an id for every place and request's tail."""
    s = jax.tree.map(np.asarray, jax.jit(sizes)(design))
    n_place = int(address.n_set(s.map, 0)) * int(s.map.set_blocks)
    return Bounds(
        max_block=max_block or n_place + max_request,
        max_place=max(n_place, 1),
        max_granule=max(int(n_usable(s, 0)), 1),
        max_request=max_request,
        max_held=max_held,
        max_home=int(s.map.n_home),
        max_slot=-(-2 * max_request // int(s.map.row_slots)) * int(s.map.row_slots),
    )


def create(b: Bounds) -> Pool:
    """An empty pool."""
    block = np.full((b.max_block + 1, 5), NONE, np.int32)
    block[:, REF] = block[:, FILLED] = 0
    block[-1, [PREV, NEXT]] = b.max_block
    granule = np.tile(np.array([NONE, 0, 0, 0], np.int32), b.max_granule)
    request = np.tile(np.array([0, 0, NONE, NONE], np.int32), b.max_request)
    rest = np.full(b.max_request * b.max_held + b.max_slot + 2, NONE, np.int32)
    table = np.full(b.max_place, NONE, np.int32)
    memory = np.concatenate([block.ravel(), granule, table, request, rest])
    zero = jnp.int32(0)
    return Pool(jnp.asarray(memory), zero, zero, zero)


class Turn(Words):
    """Reads of a pool's memory, and the writes that a turn leaves pending."""

    def __init__(self, b: Bounds, s: Sizes, memory: Any):
        super().__init__(memory, b.trash)
        self.b, self.s = b, s

    def write(self, address: Any, *values: Any, where: Any = True) -> None:
        """As in `Words`; a word that is written as it was read must not alias the memory, or XLA
        copies all of it at every event."""
        super().write(address, *lax.optimization_barrier(values), where=where)

    def block(self, block: Any, field: int) -> Any:
        return self.word(5 * block + field)

    def put(self, block: Any, field: int, value: Any, where: Any = True) -> None:
        self.write(5 * block + field, value, where=where)

    def granule(self, granule: Any, field: int) -> Any:
        return self.word(self.b.granule + 4 * granule + field)

    def put_granule(self, granule: Any, field: int, value: Any, where: Any = True) -> None:
        self.write(self.b.granule + 4 * granule + field, value, where=where)

    def request(self, request: Any, field: int) -> Any:
        return self.word(self.b.request + 4 * request + field)

    def put_request(self, request: Any, field: int, value: Any, where: Any = True) -> None:
        self.write(self.b.request + 4 * request + field, value, where=where)

    def held(self, request: Any, k: Any) -> Any:
        return self.word(self.b.held + request * self.b.max_held + k)

    def of(self, place: Any) -> Any:
        """The granule of a place."""
        s = self.s
        return place // s.unit * s.per_unit + place % s.unit // s.own

    def unlink(self, block: Any, where: Any) -> None:
        """Out of the list of unused blocks; the block remembers where it was."""
        before, after = self.block(block, PREV), self.block(block, NEXT)
        self.put(before, NEXT, after, where)
        self.put(after, PREV, before, where)


def turns(b: Bounds, s: Sizes, memory: Any, carry: Any, goes_on: Any, act: Any) -> Any:
    """Turns while `goes_on(carry)`: `act(turn, carry)` reads, and leaves writes pending."""
    carry = jax.tree.map(lambda v: jnp.asarray(v, jnp.int32), carry)

    def turn(memory: Any, carry: Any) -> Any:
        now = Turn(b, s, memory)
        carry = jax.tree.map(lambda v: jnp.asarray(v, jnp.int32), act(now, carry))
        return now.pending, carry

    shape, _ = jax.eval_shape(turn, memory, carry)
    nothing = [(jnp.int32(b.trash), jnp.zeros(v.shape, v.dtype)) for _, v in shape]

    def body(state: Any) -> Any:
        memory, pending, carry = state
        memory = commit(memory, pending)
        pending, carry = turn(memory, carry)
        return memory, pending, carry

    memory, pending, carry = lax.while_loop(
        lambda state: goes_on(state[-1]), body, (memory, nothing, carry)
    )
    return commit(memory, pending), carry


def one_turn(b: Bounds, s: Sizes, memory: Any, is_so: Any, act: Any, n: int = 0) -> Any:
    """`act(turn)` where `is_so`, and the `n` numbers it returns, else zeros.

    Reads too are a turn: outside a loop XLA would copy the memory to read it as it was.
    """

    def one(turn: Turn, carry: Any) -> Any:
        found = act(turn)
        turn.write(b.trash, 0)
        return (1, *(found or ()))

    is_done = 1 - jnp.asarray(is_so, jnp.int32)
    memory, (_, *found) = turns(b, s, memory, (is_done, *[0] * n), lambda c: c[0] == 0, one)
    return memory, found


def look(b: Bounds, s: Sizes, memory: Any, is_so: Any, see: Any) -> tuple[Any, Any]:
    """The arrays that `see(turn)` reads where `is_so`, else zeros; a turn too, that writes nothing.

    Returns:
        (memory, the arrays).
    """

    def act(turn: Turn, carry: Any) -> Any:
        turn.write(b.trash, 0)
        return (1, *see(turn))

    shapes = jax.eval_shape(lambda m: tuple(see(Turn(b, s, m))), memory)
    nothing = [jnp.zeros(x.shape, jnp.int32) for x in shapes]
    is_done = 1 - jnp.asarray(is_so, jnp.int32)
    memory, (_, *found) = turns(b, s, memory, (is_done, *nothing), lambda c: c[0] == 0, act)
    return memory, found
