"""The load of a step on a placement, channel by channel: what its stream would count to.

The same placement as `commands`, the same order of work, as array arithmetic that is jit- and
vmap-able over designs and placements. What a channel does is a sequence of visits to rows; a visit
costs an activation where its row is not the one that the visit before left open. Every step begins
with all rows closed.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmem.pim import address, isa
from jaxmem.pim.address import CHANNEL, COLUMN, ROW, Map
from jaxmem.pim.commands import DECODE, has_single_banks
from jaxmem.pim.granule import granule_blocks, layers
from jaxmem.pim.isa import Load
from jaxmem.pim.placement import Placement
from jaxmem.pim.policy import WRITE_ISSUE

_FAR = 2**30  # sorts after everything


class Visits(NamedTuple):
    """Visits to rows in the order of time, by request: [request, visit]."""

    first: Any  # row that the visit begins in
    last: Any  # and ends in
    inner: Any  # rows changed on the way
    is_one: Any  # whether there is such a visit
    is_counted: Any  # whether its activations count


class Batch(NamedTuple):
    """A placement and the sizes that its commands depend on."""

    map: Map
    placement: Placement
    n_query: Any
    n_block: Any  # [request]
    n_own: Any  # [request] blocks in row sets, the others being in the zone
    granule: Any  # blocks of a granule
    merges: Any
    run_columns: Any
    write_issue: Any


def load(
    design: Any,
    placement: Placement,
    step: str | Iterable[str] = DECODE,
    *,
    max_channel: int = 32,
    max_bank: int = 16,
    max_subblock: int = 32,
) -> Load:
    """[channel] load of one layer: counts of the commands that `stream` would issue.

    Args:
        design: a `pim.Design`, concrete or traced.
        placement: the same.
        step: of `STEPS`; the loads of several are added.
        max_channel: channels that the result holds; at least the device's.
        max_bank: a bound on the banks.
        max_subblock: a bound on the subblocks of a Value block: head elements a bank.

    Gradient: none (whole numbers).
    Source: research/patton.md sections 1 and 5.

    Example:
        >>> import jaxmem as jm
        >>> from jaxmem.pim import layout
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> int(load(d, layout.contiguous(d, [2048]), "sv").n_step[0])
        16
    """
    m, (shape, _) = address.map_of(design), layers(design)
    p = placement
    n_block = -(-p.n_token // m.block_tokens)
    policy = design.policy
    batch = Batch(
        map=m,
        placement=p,
        n_query=jnp.asarray(jnp.round(shape.n_query), jnp.int32),
        n_block=n_block,
        n_own=jnp.where(p.zone_row >= 0, p.n_token // m.block_tokens, n_block),
        granule=jnp.asarray(granule_blocks(design, shape), jnp.int32),
        merges=jnp.asarray(policy.merges_adjacent) > 0,
        run_columns=jnp.maximum(
            jnp.asarray(jnp.minimum(policy.run_max_blocks, _FAR), jnp.int32)
            // m.block_extent[CHANNEL],
            1,
        ),
        write_issue=policy.write_issue,
    )
    steps = (step,) if isinstance(step, str) else tuple(step)
    local = jnp.arange(max_channel, dtype=jnp.int32)
    of_step = {
        "prefill": lambda c: _prefill(batch, c, max_bank, max_subblock),
        "k_write": lambda c: _key_write(batch, c),
        "v_write": lambda c: _value_write(batch, c, max_subblock),
        "commit": lambda c: _commit(batch, c, max_subblock),
        "qk": lambda c: _query_key(batch, c),
        "sv": lambda c: _score_value(batch, c, max_subblock),
    }
    one = [jax.vmap(of_step[name])(local) for name in steps]
    group, channel = local // m.ch_per_head, local % m.ch_per_head
    n_turn = -(-(m.n_kv - group) // m.n_group)
    is_used = (group < m.n_group) & (local < m.n_channel)
    n_turn = jnp.where(is_used, jnp.clip(n_turn, 0, m.n_round), 0)
    total = jax.tree.map(lambda n: jnp.asarray(n[channel] * n_turn, float), isa.add(*one))
    # A field that no step counts is a plain zero there.
    return jax.tree.map(lambda n: jnp.broadcast_to(n, (max_channel,)), total)


def _load(**counts: Any) -> Load:
    """A load whose every field is an array, so that channels map over it."""
    zero = jnp.zeros((), jnp.int32)
    names = ("n_gb", "n_step", "n_burst", "n_miss", "n_extra_row", "n_write", "n_write_row")
    return Load(**{name: zero + counts.get(name, 0) for name in (*names, "n_copy")})


def _opens(v: Visits, n_pass: Any = 1) -> Any:
    """Activations of the visits, each request's repeated `n_pass` times before the next's."""
    flat = jax.tree.map(jnp.ravel, v)
    n = flat.is_one.shape[0]
    at = jnp.where(flat.is_one, jnp.arange(n), -1)
    before = jnp.concatenate([jnp.full(1, -1), lax.cummax(at)[:-1]])
    previous = jnp.where(before >= 0, flat.last[before], -1)
    change = (flat.is_one & (flat.first != previous)).reshape(v.is_one.shape)
    counted = v.is_one & v.is_counted
    once = jnp.where(counted, v.inner + change, 0).sum()
    # Later passes of a request begin where its last visit ended.
    rank = jnp.cumsum(v.is_one, axis=1)
    is_begin = v.is_one & (rank == 1)
    is_end = v.is_one & (rank == rank[:, -1:])
    first = jnp.where(is_begin, v.first, 0).sum(1)
    last = jnp.where(is_end, v.last, 0).sum(1)
    inside = jnp.where(counted, v.inner + (change & ~is_begin), 0).sum(1)
    again = jnp.where(v.is_one.any(1), inside + (first != last), 0).sum()
    return once + (n_pass - 1) * again


def _visits(first: Any, last: Any, inner: Any, is_one: Any) -> Visits:
    shape = is_one.shape
    full = [jnp.broadcast_to(x, shape) for x in (first, last, inner)]
    return Visits(*full, is_one, jnp.ones(shape, bool))


def _after(*parts: Visits) -> Visits:
    """Visits of each request, one part after another."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *parts)


def _index(x: Any) -> Any:
    """Block indices that address something; where there is no block, the answer is masked."""
    return jnp.maximum(x, 0)


# Keys -------------------------------------------------------------------------------------------


def _keys(b: Batch) -> tuple[Any, Any, Any, Any]:
    """[request, block] channel, first row, first burst, and whether there is a block."""
    p = b.placement
    is_block = jnp.arange(p.index.shape[1])[None] < b.n_block[:, None]
    return *address.key_block(b.map, _index(p.row_set), _index(p.index)), is_block


def _query_key(b: Batch, c: Any) -> Load:
    m = b.map
    channel, row, burst, is_block = _keys(b)
    here = is_block & (channel == c)
    # Sorted once for all channels: nothing in the order depends on c.
    order = jnp.lexsort((row, channel), axis=1)
    rows, is_one = (jnp.take_along_axis(x, order, 1) for x in (row, here))
    more = m.key_unit_rows - 1
    visits = _visits(rows, rows + more, more, is_one)
    # The buffer is written wherever some channel of the head has a block.
    columns = jnp.sort(jnp.where(is_block, burst, _FAR), axis=1)
    is_new = jnp.concatenate(
        [jnp.ones_like(columns[:, :1], bool), columns[:, 1:] != columns[:, :-1]], 1
    )
    n_column = (is_new & (columns < _FAR)).sum(1) * m.key_unit_groups * m.key_bursts
    n_step = here.sum() * m.key_groups * b.n_query
    return _load(
        n_gb=b.n_query * jnp.where(here.any(1), n_column, 0).sum(),
        n_step=n_step,
        n_burst=n_step * m.key_bursts,
        n_miss=_opens(visits, b.n_query),
    )


def _key_write(b: Batch, c: Any) -> Load:
    m, p = b.map, b.placement
    channel, row, _, _ = _keys(b)
    token = p.n_token - 1
    block, inside = token // m.block_tokens, token % m.block_tokens
    pick = _index(block)[:, None]
    channel = jnp.take_along_axis(channel, pick, 1)[:, 0]
    row = jnp.take_along_axis(row, pick, 1)[:, 0]
    row = row + inside // m.n_bank // m.key_unit_groups
    bank = inside % m.n_bank
    here = (p.n_write == 1) & (p.n_token > 0) & (channel == c)
    # The row that a bank has open is that of the last request before, in the same bank.
    n = here.shape[0]
    is_before = jnp.tril(jnp.ones((n, n), bool), -1) & here[None] & (bank[:, None] == bank[None])
    last = jnp.max(jnp.where(is_before, jnp.arange(n)[None], -1), axis=1)
    n_row = (here & ((last < 0) | (row[last] != row))).sum()
    return _load(n_write=here.sum() * m.key_bursts, n_write_row=n_row)


# Values -----------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """One channel's subblocks of a Value block, and of a Commit Zone slot."""

    kind: Any  # class of channels, which blocks interleave over
    is_used: Any
    n: Any  # subblocks
    first: Any  # row digits of the first and the last, in order of rows
    last: Any
    inner: Any  # rows changed between
    slot_kind: Any
    slot_n: Any


def _cells(m: Map, c: Any, max_subblock: int) -> Cells:
    q = jnp.arange(max_subblock, dtype=jnp.int32)
    part = [q // m.subblock_stride[d] % m.taken[d] for d in range(3)]
    here = (q < m.n_subblock) & (part[CHANNEL] == c % m.taken[CHANNEL])
    kind = c // m.taken[CHANNEL]
    rows = jnp.sort(jnp.where(here, part[ROW], _FAR))
    n = here.sum()
    is_change = (rows[1:] != rows[:-1]) & (rows[1:] < _FAR)
    slot_kind = c // m.slot_span
    in_slot = (q < m.n_subblock) & (q % m.slot_span == c % m.slot_span)
    return Cells(
        kind=kind,
        is_used=(kind < m.block_extent[CHANNEL]) & (n > 0),
        n=n,
        first=rows[0],
        last=rows[jnp.maximum(n - 1, 0)],
        inner=is_change.sum(),
        slot_kind=slot_kind,
        slot_n=jnp.where(slot_kind < m.slot_interleave, in_slot.sum(), 0),
    )


def _value_visits(b: Batch, cells: Cells, is_one: Any, base: Any) -> Visits:
    """Visits to the rows of Value blocks whose first row is `base`."""
    return _visits(base + cells.first, base + cells.last, cells.inner, is_one & cells.is_used)


def _slot_visits(b: Batch, cells: Cells, row: Any, slot: Any, is_one: Any) -> Visits:
    """[request, 1] visits to Commit Zone slots."""
    here = is_one & (row >= 0) & (_index(slot) % b.map.slot_interleave == cells.slot_kind)
    here = (here & (cells.slot_n > 0))[:, None]
    at = (b.map.rows_round - 1 - row)[:, None]
    return _visits(at, at, 0, here)


def _runs(b: Batch, cells: Cells, is_one: Any) -> tuple[Visits, Any]:
    """Runs of the blocks `is_one` in a channel, and how many blocks are its own."""
    m, p = b.map, b.placement
    row_set, index = _index(p.row_set), _index(p.index)
    digit = [index // m.block_stride[d] % m.block_extent[d] for d in range(3)]
    here = is_one & (digit[CHANNEL] == cells.kind) & cells.is_used
    line = row_set * m.block_extent[ROW] + digit[ROW]
    # One column more than there are keeps lines apart.
    place = line * (m.block_extent[COLUMN] + 1) + digit[COLUMN]
    # Sorted once for all channels, class by class, what does not take part last.
    order = jnp.lexsort((place, digit[CHANNEL], ~is_one), axis=1)
    sort = lambda x: jnp.take_along_axis(x, order, 1)  # noqa: E731
    is_here, at, granule = sort(here), sort(place), sort(index // b.granule)
    kind = sort(digit[CHANNEL])
    base = (2 * row_set + 1) * m.value_rows + m.taken[ROW] * digit[ROW]
    follows = (at[:, 1:] == at[:, :-1] + 1) & (m.taken[COLUMN] == 1)
    follows &= kind[:, 1:] == kind[:, :-1]
    follows &= b.merges | (granule[:, 1:] == granule[:, :-1])
    begins = is_here & ~jnp.concatenate([jnp.zeros_like(follows[:, :1]), follows], 1)
    number = jnp.arange(at.shape[1])[None]
    start = lax.cummax(jnp.where(begins, number, 0), axis=1)
    begins = is_here & ((number - start) % b.run_columns == 0)
    return _value_visits(b, cells, begins, sort(base)), here


def _score_value(b: Batch, c: Any, max_subblock: int) -> Load:
    m, p = b.map, b.placement
    cells = _cells(m, c, max_subblock)
    is_own = jnp.arange(p.index.shape[1])[None] < b.n_own[:, None]
    runs, here = _runs(b, cells, is_own)
    staged = _slot_visits(b, cells, p.zone_row, p.zone_slot, p.n_token > 0)
    n_run, n_block, n_slot = runs.is_one.sum(), here.sum(), staged.is_one.sum()
    width, v = m.taken[COLUMN] * m.value_bursts, m.value_bursts
    return _load(
        n_gb=b.n_query * (n_block * width + n_slot * m.slot_bursts),
        n_step=b.n_query * (n_run * cells.n + n_slot * cells.slot_n),
        n_burst=b.n_query * v * (n_block * cells.n + n_slot * cells.slot_n),
        n_miss=_opens(_after(runs, staged), b.n_query),
    )


def _pick(b: Batch, block: Any) -> tuple[Any, Any]:
    """[request, 1] first row of one block of each request, and its class of channels."""
    m, p = b.map, b.placement
    row_set = _index(jnp.take_along_axis(p.row_set, _index(block)[:, None], 1))
    index = _index(jnp.take_along_axis(p.index, _index(block)[:, None], 1))
    digit = [index // m.block_stride[d] % m.block_extent[d] for d in range(3)]
    base = (2 * row_set + 1) * m.value_rows + m.taken[ROW] * digit[ROW]
    return base, digit[CHANNEL]


def _value_write(b: Batch, c: Any, max_subblock: int) -> Load:
    m, p = b.map, b.placement
    cells = _cells(m, c, max_subblock)
    is_one = (p.n_write == 1) & (p.n_token > 0)
    leaves = p.commit_row >= 0
    row = jnp.where(leaves, p.commit_row, p.zone_row)
    slot = jnp.where(leaves, p.commit_slot, p.zone_slot)
    is_zone = row >= 0
    # Writes to the zone go row by row; all others follow.
    order = jnp.argsort(jnp.where(is_zone, row * m.row_slots + slot, _FAR), stable=True)
    in_zone = _slot_visits(b, cells, row, slot, is_one)
    base, kind = _pick(b, (p.n_token - 1) // m.block_tokens)
    direct = _value_visits(b, cells, (is_one & ~is_zone)[:, None] & (kind == cells.kind), base)
    merged = jax.tree.map(lambda x: x[order], _after(in_zone, direct))
    n_zone, n_direct = in_zone.is_one.sum() * cells.slot_n, direct.is_one.sum() * cells.n
    # A policy writes to the zone or not, so that one of the two is nothing.
    per = jnp.where(has_single_banks(b.write_issue, n_zone > 0), m.n_bank, 1)
    total = per * (n_zone + n_direct)
    closes = b.write_issue == WRITE_ISSUE["stock_all_bank"]
    n_row = jnp.where(closes, total, per * _opens(merged))
    return _load(n_write=total, n_write_row=n_row)


def _commit(b: Batch, c: Any, max_subblock: int) -> Load:
    m, p = b.map, b.placement
    cells = _cells(m, c, max_subblock)
    is_one = (p.commit_row >= 0) & (p.n_token > 0)
    base, kind = _pick(b, (p.n_token - p.n_write) // m.block_tokens)
    to = _value_visits(b, cells, is_one[:, None] & (kind == cells.kind), base)
    # Reading the slot opens its row too, which is not a row opened to write.
    read = _slot_visits(b, cells, p.commit_row, p.commit_slot, is_one)
    read = read._replace(is_counted=jnp.zeros_like(read.is_one))
    n_row = m.n_bank * _opens(_after(read, to))
    total = m.n_bank * to.is_one.sum() * cells.n * m.value_bursts
    return _load(n_write=total, n_write_row=n_row)


# Prefill ----------------------------------------------------------------------------------------


def _prefill(b: Batch, c: Any, max_bank: int, max_subblock: int) -> Load:
    m, p = b.map, b.placement
    cells = _cells(m, c, max_subblock)
    block = jnp.arange(p.index.shape[1])[None]
    is_one = (p.n_write > 1) & (p.n_token > 0)
    first, past = (p.n_token - p.n_write)[:, None], p.n_token[:, None]
    low = jnp.clip(first - block * m.block_tokens, 0, m.block_tokens)
    high = jnp.clip(past - block * m.block_tokens, 0, m.block_tokens)
    is_written = is_one[:, None] & (low < high)
    # Values: whole bursts of the tokens written, in every bank.
    n_burst = jnp.where(is_written, -(-high // m.burst_elements) - low // m.burst_elements, 0)
    leaves, stays = p.commit_row >= 0, p.zone_row >= 0
    head, tail = first // m.block_tokens, past // m.block_tokens
    in_commit = leaves[:, None] & (block == head)
    in_zone = stays[:, None] & (block == tail)
    runs, own = _runs(b, cells, is_written & ~in_commit & ~in_zone)
    slots = [
        _slot_visits(b, cells, p.commit_row, p.commit_slot, is_one),
        _slot_visits(b, cells, p.zone_row, p.zone_slot, is_one & (n_burst * in_zone).any(1)),
    ]
    n_value = cells.n * jnp.where(own, n_burst, 0).sum()
    for slot, here in zip(slots, (in_commit, in_zone), strict=True):
        n_value += cells.slot_n * jnp.where(slot.is_one & here, n_burst, 0).sum()
    channel, row, _, _ = _keys(b)
    is_key = is_written & (channel == c)
    order = jnp.lexsort((row, channel), axis=1)

    def of_bank(bank: Any) -> tuple[Any, Any]:
        # Tokens of a block that lie in this bank: one a group, groups low to high.
        begin, end = -(-(low - bank) // m.n_bank), -(-(high - bank) // m.n_bank)
        here = is_key & (begin < end)
        start = row + begin // m.key_unit_groups
        stop = row + (end - 1) // m.key_unit_groups
        keys = jax.tree.map(
            lambda x: jnp.take_along_axis(x, order, 1), _visits(start, stop, stop - start, here)
        )
        is_bank = bank < m.n_bank
        n_key = jnp.where(here, end - begin, 0).sum() * m.key_bursts
        n_row = _opens(_after(keys, runs, *slots))
        return jnp.where(is_bank, n_key + n_value, 0), jnp.where(is_bank, n_row, 0)

    total, n_row = jax.vmap(of_bank)(jnp.arange(max_bank, dtype=jnp.int32))
    return _load(n_write=total.sum(), n_write_row=n_row.sum())
