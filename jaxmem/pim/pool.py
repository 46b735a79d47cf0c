"""PATTON's allocator: granules, Commit Zone slots and cached blocks, as an array machine.

One `step` takes a scheduler step's events of all requests. Key and Value are allocated in pairs, so
one place stands for an O1K and an O1V; every layer and head does the same, so one stands for all.
A request owns Order-2 granules and fills its open one from the front; the next is beside it if it
can be (the next, else the one before), else in the lowest row set with two free ones, else in the
lowest with one. A partial Value block has a slot in the fullest Commit Zone row with room and its
place is reserved; with no slot left the zone grows by a row, which costs the last row set once it
reaches it, and shrinks again. Other policies: a request owns all its context cap at once (static);
lives in one channel, the one with the least tokens that has room; or a block goes to the channel
with the fewest. Full blocks nobody uses stay cached and are evicted least recently
used first; a granule returns when its last block leaves. What fails changes nothing.

All state is one int32 array (`pool_memory`). Rules: PATTON 4.2 to 4.5, research/patton.md section
2. For many pools at once use `jax.lax.map`.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmem.pim.address import CHANNEL
from jaxmem.pim.placement import Placement
from jaxmem.pim.policy import SPREAD
from jaxmem.pim.pool_memory import (
    CLOSED,
    FILLED,
    FINISHES,
    N_BLOCK,
    N_TOKEN,
    NEXT,
    NONE,
    OPEN,
    OWNER,
    PINNED,
    PLACE,
    PREV,
    REF,
    RESIDENT,
    SLOT,
    STAYS,
    TERMINATES,
    USED,
    Bounds,
    Events,
    Pool,
    Sizes,
    Turn,
    bounds,
    create,
    look,
    n_usable,
    one_turn,
    sizes,
    turns,
)

__all__ = [
    "CLOSED",
    "FINISHES",
    "NONE",
    "OWNER",
    "PLACE",
    "RESIDENT",
    "STAYS",
    "TERMINATES",
    "USED",
    "Bounds",
    "Events",
    "Pool",
    "Sizes",
    "bounds",
    "create",
    "is_cached",
    "n_usable",
    "sizes",
    "snapshot",
    "step",
]

_MAX_CHANNEL = 64  # of a KV head


def _drop(turn: Turn, block: Any, where: Any, *, gives_back: bool) -> None:
    """A block leaves its place; its granule returns with the last, unless a request fills it.

    `gives_back`: a last place that was given is given again. The caller counts pins.
    """
    place = turn.block(block, PLACE)
    g = turn.of(jnp.maximum(place, 0))
    resident, used, owner = (turn.granule(g, f) for f in (RESIDENT, USED, OWNER))
    is_empty = (resident == 1) & (owner == CLOSED)
    is_last = place % turn.s.unit % turn.s.own == used - 1
    less = jnp.where(is_last, used - 1, used) if gives_back else used
    turn.put(block, PLACE, NONE, where)
    turn.put(block, FILLED, 0, where)
    turn.write(turn.b.table + place, NONE, where=where)
    turn.put_granule(g, RESIDENT, resident - 1, where)
    turn.put_granule(g, USED, jnp.where(is_empty, 0, less), where)
    turn.put_granule(g, OWNER, NONE, where & is_empty)


def _leave(b: Bounds, s: Sizes, pool: Pool, request: Any, how: Any) -> Pool:
    """A request leaves: its blocks in reverse order, then its open granule and its slot."""
    goes = how != STAYS
    memory, (n_token, n_block, open_, slot) = one_turn(
        b, s, pool.memory, goes, lambda turn: [turn.request(request, f) for f in range(4)], 4
    )
    n_full = n_token // s.map.block_tokens

    def release(turn: Turn, carry: Any) -> Any:
        k, n_pinned = carry
        block = turn.held(request, k)
        ref = turn.block(block, REF)
        is_unused = ref == 1
        is_kept = is_unused & (how == FINISHES) & s.caches & (k < n_full)
        g = turn.of(turn.block(block, PLACE))
        pins = turn.granule(g, PINNED)
        turn.put(block, REF, ref - 1)
        turn.put_granule(g, PINNED, pins - 1, is_unused)
        end = b.max_block
        last = turn.block(end, PREV)
        turn.put(block, PREV, last, is_kept)
        turn.put(block, NEXT, end, is_kept)
        turn.put(last, NEXT, block, is_kept)
        turn.put(end, PREV, block, is_kept)
        _drop(turn, block, is_unused & ~is_kept, gives_back=True)
        return k - 1, n_pinned - (is_unused & (pins == 1))

    memory, (_, n_pinned) = turns(
        b, s, memory, (n_block - 1, pool.n_pinned), lambda c: c[0] >= 0, release
    )

    def close(turn: Turn) -> tuple[Any]:
        has_open = open_ >= 0
        g = jnp.maximum(open_, 0)
        pins = turn.granule(g, PINNED)
        is_empty = turn.granule(g, RESIDENT) == 0
        turn.put_granule(g, OWNER, jnp.where(is_empty, NONE, CLOSED), has_open)
        turn.put_granule(g, USED, 0, has_open & is_empty)
        turn.put_granule(g, PINNED, pins - 1, has_open)
        turn.write(b.slot + slot, NONE, where=slot >= 0)
        for field, value in ((N_TOKEN, 0), (N_BLOCK, 0), (OPEN, NONE), (SLOT, NONE)):
            turn.put_request(request, field, value)
        return (has_open & (pins == 1),)

    memory, (unpins,) = one_turn(b, s, memory, goes, close, 1)
    return pool._replace(memory=memory, n_pinned=n_pinned - unpins)


def _home(turn: Turn, place: Any) -> Any:
    """Channel that a place's request lives in, where it lives in one."""
    m = turn.s.map
    return jnp.maximum(place, 0) // m.set_blocks % m.n_home


def _choose_home(turn: Turn, n_granules: Any, n_granule: Any) -> tuple[Any, Any]:
    """The channel with the least tokens of those that have room, and the room of each."""
    b, s = turn.b, turn.s
    g = jnp.arange(b.max_granule, dtype=jnp.int32)
    pins = turn.memory[b.granule : b.table].reshape(-1, 4)[:, PINNED]
    words = turn.memory[b.request : b.held].reshape(-1, 4)
    first = turn.memory[b.held : b.slot].reshape(b.max_request, b.max_held)[:, 0]
    place = turn.memory[5 * jnp.maximum(first, 0) + PLACE]
    n_token = jnp.where(words[:, N_BLOCK] > 0, words[:, N_TOKEN], 0)
    home = jnp.arange(b.max_home, dtype=jnp.int32)[:, None]
    tokens = jnp.where(_home(turn, place)[None] == home, n_token[None], 0).sum(1)
    of_home = _home(turn, g // s.per_unit * s.unit)[None] == home
    room = (of_home & ((pins == 0) & (g < n_granules))[None]).sum(1)
    is_one = (home[:, 0] < s.map.n_home) & (room >= n_granule)
    return jnp.argmin(jnp.where(is_one, tokens, 2**30)).astype(jnp.int32), room


def _free_granule(turn: Turn, open_: Any, n_granules: Any, home: Any) -> Any:
    """The granule to open next, or NONE."""
    b, s = turn.b, turn.s
    words = turn.memory[b.granule : b.table].reshape(-1, 4)
    g = jnp.arange(b.max_granule, dtype=jnp.int32)
    free = (words[:, OWNER] == NONE) & (g < n_granules)
    if b.max_home > 1:
        free &= (s.map.n_home == 1) | (_home(turn, g // s.per_unit * s.unit) == home)

    # A block goes to the channel that holds the fewest.
    channel = g % s.per_unit * s.own // s.map.key_stride[CHANNEL] % s.map.key_extent[CHANNEL]
    held = jnp.zeros(_MAX_CHANNEL, jnp.int32).at[channel].add(words[:, RESIDENT])
    emptiest = jnp.argmin(jnp.where(free, held[channel], 2**30)).astype(jnp.int32)
    emptiest = jnp.where(free.any(), emptiest, NONE)

    def beside(other: Any) -> Any:
        is_same = (open_ >= 0) & (other >= 0) & (other // s.per_unit == open_ // s.per_unit)
        return is_same & free[jnp.clip(other, 0, b.max_granule - 1)] & (other < n_granules)

    total = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(free, dtype=jnp.int32)])
    first = g // s.per_unit * s.per_unit
    in_set = total[jnp.minimum(first + s.per_unit, b.max_granule)] - total[first]
    several = free & (in_set >= 2)
    lowest = jnp.where(several.any(), jnp.argmax(several), jnp.argmax(free)).astype(jnp.int32)
    lowest = jnp.where(free.any(), lowest, NONE)
    found = jnp.where(beside(open_ - 1), open_ - 1, lowest)
    found = jnp.where(beside(open_ + 1), open_ + 1, found)
    return jnp.where(s.spread == SPREAD["block"], emptiest, found)


def _free_slot(turn: Turn, n_zone: Any) -> Any:
    """The lowest free slot of the fullest Commit Zone row that has one, or NONE."""
    b, s = turn.b, turn.s
    slot = jnp.arange(b.max_slot, dtype=jnp.int32)
    per_row = s.map.row_slots
    free = turn.memory[b.slot : b.trash] == NONE
    total = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(free, dtype=jnp.int32)])
    first = slot // per_row * per_row
    n_free = total[jnp.minimum(first + per_row, b.max_slot)] - total[first]
    is_one = free & (slot < n_zone * per_row)
    best = jnp.argmin(jnp.where(is_one, n_free, b.max_slot + 1)).astype(jnp.int32)
    return jnp.where(is_one.any(), best, NONE)


def _is_pinned(turn: Turn, unit: Any) -> Any:
    """Whether a granule of a unit is in use."""
    b, s = turn.b, turn.s
    pins = turn.memory[b.granule : b.table].reshape(-1, 4)[:, PINNED]
    return ((jnp.arange(b.max_granule) // s.per_unit == unit) & (pins > 0)).any()


def _append(b: Bounds, s: Sizes, pool: Pool, request: Any, share: Any, ids: Any, n_write: Any):
    """A request begins or goes on, or nothing changes.

    Returns:
        (pool, ok, slot that its first block leaves).
    """
    m, size = s.map, s.map.block_tokens
    writes = n_write > 0
    memory, (n_token, n_had) = one_turn(
        b, s, pool.memory, writes,
        lambda turn: (turn.request(request, N_TOKEN), turn.request(request, N_BLOCK)), 2,
    )  # fmt: skip
    given = (share >= 0).sum()
    n_share = jnp.where(writes & (n_had == 0), given, 0)
    is_misplaced = writes & (n_had > 0) & (given > 0)

    def touch(turn: Turn, carry: Any) -> Any:
        k, is_bad, n_pinned = carry
        block = share[k]
        place, ref, filled = (turn.block(block, f) for f in (PLACE, REF, FILLED))
        is_so = (place >= 0) & (filled > 0) & (filled < pool.time)
        g = turn.of(jnp.maximum(place, 0))
        pins = turn.granule(g, PINNED)
        turn.unlink(block, is_so & (ref == 0))
        turn.put(block, REF, ref + 1, is_so)
        turn.put_granule(g, PINNED, pins + 1, is_so & (ref == 0))
        turn.write(b.held + request * b.max_held + k, block)
        more = is_so & (ref == 0) & (pins == 0)
        return k + is_so, is_bad | ~is_so, n_pinned + more

    memory, (n_touched, is_bad, n_pinned) = turns(
        b, s, memory, (0, is_misplaced, pool.n_pinned),
        lambda c: (c[0] < n_share) & (c[1] == 0), touch,
    )  # fmt: skip
    before = jnp.where(n_had == 0, n_share * size, n_token)
    n_held = jnp.where(n_had == 0, n_share, n_had)
    after = before + n_write
    n_new = jnp.where(writes, -(-after // size) - n_held, 0)

    # What is there to begin with, what it takes, and whether there is room.
    def plan(turn: Turn) -> tuple[Any, ...]:
        last = share[jnp.maximum(n_share - 1, 0)]
        carried = turn.of(jnp.maximum(turn.block(jnp.maximum(last, 0), PLACE), 0))
        can_carry = s.carries & (n_share > 0) & (turn.granule(carried, OWNER) == CLOSED)
        open_ = jnp.where(can_carry, carried, turn.request(request, OPEN))
        index = jnp.arange(ids.shape[0])
        chosen = jnp.clip(ids, 0, b.max_block - 1)
        is_taken = jax.vmap(lambda i: turn.block(i, PLACE))(chosen) >= 0
        bad = (is_bad > 0) | ((index < n_new) & ((ids < 0) | is_taken)).any()
        bad |= (n_new > ids.shape[0]) | (n_held + n_new > b.max_held)
        room = jnp.where(open_ >= 0, s.own - turn.granule(jnp.maximum(open_, 0), USED), 0)
        n_granule = -(-jnp.maximum(n_new - room, 0) // s.own)
        # A slot for the tail; its row may cost a row set.
        slot = turn.request(request, SLOT)
        fills = (slot >= 0) & (after // size > before // size)
        needs = s.has_zone & (after % size > 0) & ((slot < 0) | fills)
        found = lax.cond(needs, lambda: _free_slot(turn, pool.n_zone), lambda: jnp.int32(NONE))
        grows = needs & (found < 0)
        n_zone = pool.n_zone + grows
        n_granules, lost = n_usable(s, n_zone), n_usable(s, pool.n_zone) // s.per_unit - 1
        loses = n_granules // s.per_unit <= lost
        bad |= lax.cond(loses, lambda: _is_pinned(turn, lost), lambda: jnp.bool_(False))
        bad |= (n_zone * m.row_slots > b.max_slot) | (n_zone > m.rows_round)
        bad |= n_granule > n_granules - n_pinned
        bad |= after > s.cap
        home = jnp.int32(0)
        if b.max_home > 1:
            known = jnp.where(n_had > 0, turn.held(request, 0), share[0])
            chosen, room = _choose_home(turn, n_granules, n_granule)
            home = jnp.where(n_held > 0, _home(turn, turn.block(known, PLACE)), chosen)
            bad |= n_granule > room[home]
        return ~bad, can_carry, carried, open_, slot, fills, needs, found, n_zone, home

    memory, (ok, can_carry, carried, open_, slot, fills, needs, found, n_zone, home) = one_turn(
        b, s, memory, writes, plan, 10
    )
    ok, can_carry, fills, needs = (x > 0 for x in (ok, can_carry, fills, needs))
    n_zone = jnp.where(writes, n_zone, pool.n_zone)
    n_granules, lost = n_usable(s, n_zone), n_usable(s, pool.n_zone) // s.per_unit - 1
    loses = n_granules // s.per_unit <= lost

    # Back as it was: in reverse, so that the list of unused blocks closes as it opened.
    def undo(turn: Turn, carry: Any) -> Any:
        (k,) = carry
        block = share[k]
        ref, g = turn.block(block, REF) - 1, turn.of(turn.block(block, PLACE))
        is_unused = ref == 0
        turn.put(block, REF, ref)
        turn.put_granule(g, PINNED, turn.granule(g, PINNED) - 1, is_unused)
        turn.put(turn.block(block, PREV), NEXT, block, is_unused)
        turn.put(turn.block(block, NEXT), PREV, block, is_unused)
        return (k - 1,)

    n_undo = jnp.where(ok, 0, n_touched)
    memory, _ = turns(b, s, memory, (n_undo - 1,), lambda c: c[0] >= 0, undo)
    n_pinned = jnp.where(ok, n_pinned, pool.n_pinned)

    def carry_on(turn: Turn) -> None:
        turn.put_granule(carried, OWNER, request)
        turn.put_granule(carried, PINNED, turn.granule(carried, PINNED) + 1)

    memory, _ = one_turn(b, s, memory, ok & can_carry, carry_on)

    # Blocks of the row set that the zone takes.
    def clear(turn: Turn, carry: Any) -> Any:
        (k,) = carry
        block = turn.word(b.table + lost * s.unit + k)
        is_one = block >= 0
        turn.unlink(jnp.maximum(block, 0), is_one)
        _drop(turn, jnp.maximum(block, 0), is_one, gives_back=False)
        return (k + 1,)

    n_clear = jnp.where(ok & loses, s.unit, 0)
    memory, _ = turns(b, s, memory, (0,), lambda c: c[0] < n_clear, clear)

    # New blocks: into the open granule, or open one, or evict for one.
    def bind(turn: Turn, carry: Any) -> Any:
        k, open_, n_pinned = carry
        at = jnp.maximum(open_, 0)
        used, pins, resident = (turn.granule(at, f) for f in (USED, PINNED, RESIDENT))
        has_room = (open_ >= 0) & (used < s.own)
        fresh = lax.cond(
            has_room, lambda: jnp.int32(NONE), lambda: _free_granule(turn, open_, n_granules, home)
        )
        opens = ~has_room & (fresh >= 0)
        evicts = ~has_room & ~opens
        block = ids[k]
        place = at // s.per_unit * s.unit + at % s.per_unit * s.own + used
        is_full = (n_held + k + 1) * size <= after
        turn.put(block, PLACE, place, has_room)
        turn.put(block, REF, 1, has_room)
        turn.put(block, FILLED, jnp.where(is_full, pool.time, 0), has_room)
        turn.write(b.table + place, block, where=has_room)
        turn.write(b.held + request * b.max_held + n_held + k, block, where=has_room)
        turn.put_granule(at, USED, used + 1, has_room)
        turn.put_granule(at, RESIDENT, resident + 1, has_room)
        # What was open is full; it is pinned by what of it is in use.
        closes = opens & (open_ >= 0)
        is_empty = resident == 0
        turn.put_granule(at, OWNER, jnp.where(is_empty, NONE, CLOSED), closes)
        turn.write(
            b.granule + 4 * at + PINNED, jnp.where(has_room, pins + 1, pins - 1),
            where=has_room | closes,
        )  # fmt: skip
        turn.put_granule(jnp.maximum(fresh, 0), OWNER, request, opens)
        turn.put_granule(jnp.maximum(fresh, 0), USED, 0, opens)
        turn.put_granule(jnp.maximum(fresh, 0), PINNED, 1, opens)
        oldest = turn.block(b.max_block, NEXT)
        turn.unlink(oldest, evicts)
        _drop(turn, oldest, evicts, gives_back=False)
        n_pinned = n_pinned + opens - (closes & (pins == 1))
        return k + has_room, jnp.where(opens, fresh, open_), n_pinned

    n_bind = jnp.where(ok, n_new, 0)
    memory, (_, open_, n_pinned) = turns(
        b, s, memory, (0, open_, n_pinned), lambda c: c[0] < n_bind, bind
    )
    taken = jnp.where(found < 0, pool.n_zone * m.row_slots, found)
    stays = jnp.where(fills, NONE, slot)

    def settle(turn: Turn) -> None:
        tail = before // size
        is_begun = (before % size > 0) & (after // size > tail)
        turn.put(turn.held(request, tail), FILLED, pool.time, is_begun)
        for field, value in ((N_TOKEN, after), (N_BLOCK, n_held + n_new), (OPEN, open_)):
            turn.put_request(request, field, value)
        turn.put_request(request, SLOT, jnp.where(needs, taken, stays))
        turn.write(b.slot + taken, request, where=needs)

    memory, _ = one_turn(b, s, memory, ok, settle)
    pool = pool._replace(
        memory=memory, n_pinned=n_pinned, n_zone=jnp.where(ok, n_zone, pool.n_zone)
    )
    return pool, ok | (n_write <= 0), jnp.where(ok & fills, slot, NONE)


def step(b: Bounds, pool: Pool, events: Events, design: Any) -> tuple[Pool, Placement, Any]:
    """One scheduler step's events of all requests.

    Args:
        b: bounds, static.
        pool: before.
        events: of the step; requests act in their order, all who leave first.
        design: a `pim.Design`, traced.

    Returns:
        (pool, placement, ok [request]): a request whose event failed has changed nothing and takes
        no part in the step.

    Gradient: none (whole numbers).
    Source: PATTON 4.2 to 4.5; research/patton.md section 2.
    """
    s = sizes(design)
    number = jnp.arange(b.max_request, dtype=jnp.int32)
    pool = pool._replace(time=pool.time + 1)
    pool, _ = lax.scan(
        lambda p, x: (_leave(b, s, p, *x), None), pool, (number, jnp.asarray(events.leave))
    )
    pool = _shrink(b, s, pool, (jnp.asarray(events.leave) != STAYS).any())

    def act(pool: Pool, x: Any) -> Any:
        pool, ok, leaves = _append(b, s, pool, *x)
        return pool, (ok, leaves)

    given = (number, *(jnp.asarray(v) for v in (events.share, events.block, events.n_token)))
    pool, (ok, leaves) = lax.scan(act, pool, given)
    memory, found = _placement(b, s, pool, jnp.where(ok, events.n_token, 0), leaves)

    # What was committed leaves its slot after the copy.
    def vacate(turn: Turn, carry: Any) -> Any:
        (k,) = carry
        turn.write(b.slot + leaves[k], NONE, where=leaves[k] >= 0)
        return (k + 1,)

    is_one = (leaves >= 0).any()
    n = jnp.where(is_one, b.max_request, 0)
    memory, _ = turns(b, s, memory, (0,), lambda c: c[0] < n, vacate)
    return _shrink(b, s, pool._replace(memory=memory), is_one), found, ok


def _shrink(b: Bounds, s: Sizes, pool: Pool, is_so: Any) -> Pool:
    """Give back the Commit Zone rows beyond the last that is in use."""

    def last(turn: Turn) -> tuple[Any]:
        in_use = turn.memory[b.slot : b.trash] != NONE
        return (jnp.max(jnp.where(in_use, jnp.arange(b.max_slot, dtype=jnp.int32), -1)),)

    memory, (slot,) = one_turn(b, s, pool.memory, is_so, last, 1)
    n_zone = jnp.where(slot < 0, 0, slot // s.map.row_slots + 1)
    return pool._replace(memory=memory, n_zone=jnp.where(is_so, n_zone, pool.n_zone))


def _placement(b: Bounds, s: Sizes, pool: Pool, n_write: Any, leaves: Any) -> tuple[Any, Placement]:
    """(memory, placement) of the requests that write."""
    m = s.map

    def see(turn: Turn) -> tuple[Any, ...]:
        held = turn.memory[b.held : b.slot].reshape(b.max_request, b.max_held)
        place = turn.memory[5 * jnp.maximum(held, 0) + PLACE]
        words = turn.memory[b.request : b.held].reshape(-1, 4)
        return place, words[:, N_BLOCK], words[:, N_TOKEN], words[:, SLOT]

    memory, (place, n_block, n_token, slot) = look(b, s, pool.memory, True, see)
    runs = n_write > 0
    is_block = (jnp.arange(b.max_held)[None] < n_block[:, None]) & runs[:, None]
    slot = jnp.where(runs, slot, NONE)

    def where(condition: Any, value: Any) -> Any:
        return jnp.where(condition, value, NONE).astype(jnp.int32)

    return memory, Placement(
        row_set=where(is_block, place // m.set_blocks),
        index=where(is_block, place % m.set_blocks),
        zone_row=where(slot >= 0, slot // m.row_slots),
        zone_slot=where(slot >= 0, slot % m.row_slots),
        commit_row=where(leaves >= 0, leaves // m.row_slots),
        commit_slot=where(leaves >= 0, leaves % m.row_slots),
        n_token=jnp.where(runs, n_token, 0),
        n_write=n_write,
    )


def is_cached(b: Bounds, pool: Pool, block: Any, design: Any, is_so: Any = True) -> Any:
    """Whether each block id holds a full block that a request of the next step may share.

    Args:
        b: bounds, static.
        pool: before the step.
        block: ids of any shape.
        design: a `pim.Design`, traced.
        is_so: whether to look at all; nothing is cached where not.

    Returns:
        (pool, of each id).
    """

    def see(turn: Turn) -> tuple[Any, ...]:
        at = jnp.clip(block, 0, b.max_block - 1)
        place, filled = (turn.memory[5 * at + field] for field in (PLACE, FILLED))
        return (((block >= 0) & (place >= 0) & (filled > 0)).astype(jnp.int32),)

    memory, (found,) = look(b, sizes(design), pool.memory, is_so, see)
    return pool._replace(memory=memory), found > 0


def snapshot(b: Bounds, pool: Pool) -> dict[str, Any]:
    """A pool's state by name, on the host."""
    memory = np.asarray(pool.memory)
    block = memory[: b.granule].reshape(-1, 5)
    unused, at = [], block[-1, NEXT]
    while at != b.max_block:
        unused.append(int(at))
        at = block[at, NEXT]
    requests = memory[b.request : b.held].reshape(-1, 4)
    held = memory[b.held : b.slot].reshape(b.max_request, b.max_held)
    return {
        "place": block[:-1, PLACE].tolist(),
        "ref": block[:-1, REF].tolist(),
        "is_filled": (block[:-1, FILLED] > 0).tolist(),
        "unused": unused,
        "granule": memory[b.granule : b.table].reshape(-1, 4).tolist(),
        "table": memory[b.table : b.request].tolist(),
        "request": requests.tolist(),
        "held": [held[i, :n].tolist() for i, n in enumerate(requests[:, N_BLOCK])],
        "slot": memory[b.slot : b.trash].tolist(),
        "n_zone": int(pool.n_zone),
        "n_pinned": int(pool.n_pinned),
    }
