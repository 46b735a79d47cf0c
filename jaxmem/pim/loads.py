"""The load of a step on a placement, channel by channel: what its stream would count to.

The same placement as `commands`, the same order of work, as array arithmetic that is jit- and
vmap-able over designs and placements. What a channel does is a sequence of visits to rows; a visit
costs an activation where its row is not the one that the visit before left open. Every step begins
with all rows closed.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmem.pim import address, isa
from jaxmem.pim.address import CHANNEL, COLUMN, ROW, Map
from jaxmem.pim.commands import DECODE, has_single_banks
from jaxmem.pim.granule import granule_blocks, layers
from jaxmem.pim.isa import Load
from jaxmem.pim.placement import NONE, Placement
from jaxmem.pim.policy import V_WRITE, WRITE_ISSUE
from jaxmem.pim.visits import Visits, index_of, one_after_another, opens, shifted, visit

_FAR = 2**30  # sorts after everything


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
    v_write: Any
    home: Any  # [request] channel that all of a request lies in, where it lies in one


def load(
    design: Any,
    placement: Placement,
    step: str | Iterable[str] = DECODE,
    *,
    max_channel: int = 32,
    max_local: int = 0,
    max_bank: int = 16,
    max_subblock: int = 32,
) -> Load:
    """[channel] load of one layer: counts of the commands that `stream` would issue.

    Args:
        design: a `pim.Design`, concrete or traced.
        placement: the same.
        step: of `STEPS`; the loads of several are added.
        max_channel: channels that the result holds; at least the device's.
        max_local: a bound on the channels of a KV head; by default `max_channel`.
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
        v_write=jnp.asarray(policy.v_write),
        home=index_of(p.row_set[:, 0]) % m.n_home,
    )
    steps = (step,) if isinstance(step, str) else tuple(step)
    local = jnp.arange(max_local or max_channel, dtype=jnp.int32)
    of_step = {
        "prefill": lambda c: _prefill(batch, c, max_bank, max_subblock),
        "k_write": lambda c: _key_write(batch, c, max_bank),
        "v_write": lambda c: _value_write(batch, c, max_bank, max_subblock),
        "commit": lambda c: _commit(batch, c, max_subblock),
        "qk": lambda c: _query_key(batch, c),
        "sv": lambda c: _score_value(batch, c, max_subblock),
    }
    one = isa.add(*(jax.vmap(of_step[name])(local) for name in steps))
    one = dataclasses.replace(one, n_bank_row=one.n_bank_row.max(-1))
    channel = jnp.arange(max_channel, dtype=jnp.int32)
    group, of_group = channel // m.ch_per_head, channel % m.ch_per_head
    is_alone = m.n_home > 1
    group, of_group = jnp.where(is_alone, 0, group), jnp.where(is_alone, channel, of_group)
    n_turn = -(-(m.n_kv - group) // m.n_group)
    is_used = (group < m.n_group) & (channel < m.n_channel)
    n_turn = jnp.where(is_used, jnp.clip(n_turn, 0, m.n_round), 0)
    total = jax.tree.map(lambda n: jnp.asarray(n[of_group] * n_turn, float), one)
    # A field that no step counts is a plain zero there.
    return jax.tree.map(lambda n: jnp.broadcast_to(n, (max_channel,)), total)


def _load(**counts: Any) -> Load:
    """A load whose every field is an array, so that channels map over it; `n_bank_row` by bank."""
    zero = jnp.zeros((), jnp.int32)
    names = (field.name for field in dataclasses.fields(Load))
    whole = {name: zero + counts.get(name, 0) for name in names}
    return Load(**{**whole, "n_bank_row": jnp.atleast_1d(whole["n_bank_row"])})


# Keys -------------------------------------------------------------------------------------------


def _keys(b: Batch) -> tuple[Any, Any, Any, Any]:
    """[request, block] channel, first row, first burst, and whether there is a block."""
    p = b.placement
    is_block = jnp.arange(p.index.shape[1])[None] < b.n_block[:, None]
    return *address.key_block(b.map, index_of(p.row_set), index_of(p.index)), is_block


def _key_visits(b: Batch, c: Any) -> tuple[Visits, Any, Any]:
    """Visits to the rows of Key blocks in a channel, their number, and those who have one."""
    m = b.map
    channel, row, _, is_block = _keys(b)
    here = is_block & (channel == c)
    # Sorted once for all channels (nothing in the order depends on c), packed in one number.
    packed = jnp.sort(jnp.where(is_block, channel * m.rows_round + row, _FAR), axis=1)
    rows = packed % m.rows_round
    is_one = (packed < _FAR) & (packed // m.rows_round == c)
    more = m.key_unit_rows - 1
    before = shifted(jnp.where(is_one, rows + more, NONE))  # those of a channel are together
    return visit(rows, rows + more, more, is_one, before), here.sum(), here.any(1)


def _query_key(b: Batch, c: Any) -> Load:
    m = b.map
    _, _, burst, is_block = _keys(b)
    visits, n_block, has_block = _key_visits(b, c)
    # The buffer is written wherever some channel of the head has a block.
    columns = jnp.sort(jnp.where(is_block, burst, _FAR), axis=1)
    is_new = jnp.concatenate(
        [jnp.ones_like(columns[:, :1], bool), columns[:, 1:] != columns[:, :-1]], 1
    )
    n_column = (is_new & (columns < _FAR)).sum(1) * m.key_unit_groups * m.key_bursts
    n_step = n_block * m.key_groups * b.n_query
    return _load(
        n_gb=b.n_query * jnp.where(has_block, n_column, 0).sum(),
        n_step=n_step,
        n_burst=n_step * m.key_bursts,
        n_miss=opens(visits, b.n_query),
    )


def _key_write(b: Batch, c: Any, max_bank: int) -> Load:
    m, p = b.map, b.placement
    token = p.n_token - 1
    pick = index_of(token // m.block_tokens)[:, None]
    at = (jnp.take_along_axis(x, pick, 1)[:, 0] for x in (p.row_set, p.index))
    channel, row, _ = address.key_block(m, *map(index_of, at))
    inside = token % m.block_tokens
    row = row + inside // m.n_bank // m.key_unit_groups
    bank = inside % m.n_bank
    writes = (p.n_write == 1) & (p.n_token > 0)
    # Keys of one row follow one another: the first of them opens it.
    place = (channel * m.n_bank + bank) * m.rows_round + row
    number = jnp.arange(len(place))
    is_same = (place[:, None] == place[None]) & writes[None] & (number[None] < number[:, None])
    # Once for all channels: nothing above depends on c.
    here, changes = writes & (channel == c), writes & ~is_same.any(1)
    n_row = ((changes & here)[:, None] & (bank[:, None] == jnp.arange(max_bank)[None])).sum(0)
    return _load(n_write=here.sum() * m.key_bursts, n_write_row=n_row.sum(), n_bank_row=n_row)


# Values -----------------------------------------------------------------------------------------


class Cells(NamedTuple):
    """One channel's subblocks of a Value block, and of a Commit Zone slot."""

    home: Any  # channel whose requests it counts, where a request lies in one
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
    is_alone = m.n_home > 1
    kind = jnp.where(is_alone, 0, c // m.taken[CHANNEL])
    rows = jnp.sort(jnp.where(here, part[ROW], _FAR))
    n = here.sum()
    is_change = (rows[1:] != rows[:-1]) & (rows[1:] < _FAR)
    slot_kind = c // m.slot_span
    in_slot = (q < m.n_subblock) & (q % m.slot_span == c % m.slot_span)
    return Cells(
        home=jnp.where(is_alone, c, 0),
        kind=kind,
        is_used=(kind < m.block_extent[CHANNEL]) & (n > 0),
        n=n,
        first=rows[0],
        last=rows[jnp.maximum(n - 1, 0)],
        inner=is_change.sum(),
        slot_kind=slot_kind,
        slot_n=jnp.where(slot_kind < m.slot_interleave, in_slot.sum(), 0),
    )


def _value_visits(cells: Cells, is_one: Any, base: Any, before: Any = None) -> Visits:
    """Visits to the rows of Value blocks whose first row is `base`."""
    is_one = is_one & cells.is_used
    return visit(base + cells.first, base + cells.last, cells.inner, is_one, before)


def _slot_visits(b: Batch, cells: Cells, row: Any, slot: Any, is_one: Any) -> Visits:
    """[request, 1] visits to Commit Zone slots."""
    here = is_one & (row >= 0) & (index_of(slot) % b.map.slot_interleave == cells.slot_kind)
    here = (here & (cells.slot_n > 0))[:, None]
    at = (b.map.rows_round - 1 - row)[:, None]
    return visit(at, at, 0, here)


def _runs(b: Batch, cells: Cells, is_one: Any) -> tuple[Visits, Any]:
    """Runs of the blocks `is_one` in a channel, and how many blocks are its own."""
    m, p = b.map, b.placement
    row_set, index = index_of(p.row_set), index_of(p.index)
    digit = [index // m.block_stride[d] % m.block_extent[d] for d in range(3)]
    is_home = b.home == cells.home
    here = is_one & (digit[CHANNEL] == cells.kind) & cells.is_used & is_home[:, None]
    line = row_set * m.block_extent[ROW] + digit[ROW]
    # One column more than there are keeps lines apart, and classes of channels too.
    width = m.block_extent[COLUMN] + 1
    per_kind = address.n_set(m, 0) * m.block_extent[ROW] * width
    place = line * width + digit[COLUMN]
    # Sorted once for all channels, class by class, what does not take part last.
    packed = jnp.where(is_one, digit[CHANNEL] * per_kind + place, _FAR)
    packed = jnp.sort(packed, axis=1)
    kind, line, column = packed // per_kind, packed % per_kind // width, packed % width
    row = line % m.block_extent[ROW]
    is_here = (packed < _FAR) & (kind == cells.kind) & cells.is_used & is_home[:, None]
    stride = m.block_stride
    granule = (kind * stride[CHANNEL] + column * stride[COLUMN] + row * stride[ROW]) // b.granule
    first = (2 * (line // m.block_extent[ROW] // m.n_home) + 1) * m.value_rows
    base = first + m.taken[ROW] * row
    follows = (packed[:, 1:] == packed[:, :-1] + 1) & (m.taken[COLUMN] == 1)
    follows &= b.merges | (granule[:, 1:] == granule[:, :-1])
    begins = ~jnp.concatenate([jnp.zeros_like(follows[:, :1]), follows], 1)
    number = jnp.arange(packed.shape[1])[None]
    start = lax.cummax(jnp.where(begins, number, 0), axis=1)
    begins = is_here & ((number - start) % b.run_columns == 0)
    # Those of a class are together, and a run lies in the rows of its first block.
    before = shifted(jnp.where(is_here, base + cells.last, NONE))
    return _value_visits(cells, begins, base, before), here


def _score_value(b: Batch, c: Any, max_subblock: int) -> Load:
    plain = functools.partial(_by_runs, b, c, max_subblock)
    return _chosen(b, plain, functools.partial(_outer, b, c), plain)


def _by_runs(b: Batch, c: Any, max_subblock: int) -> Load:
    """A step a row and run of Value blocks, and those of partial blocks in their slots."""
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
        n_miss=opens(one_after_another(runs, staged), b.n_query),
    )


def _outer(b: Batch, c: Any) -> Load:
    """Values that lie as Keys do, each bank adding up its tokens' vectors."""
    m = b.map
    visits, n_block, _ = _key_visits(b, c)
    n_group = b.n_query * n_block * m.key_groups
    begins = visits.is_one & (visits.before == NONE)
    first = opens(visits._replace(inner=0 * visits.inner, is_counted=begins), b.n_query)
    return _load(
        n_gb=n_group,
        n_step=b.n_query * visits.is_one.any(1).sum() * m.key_bursts,
        n_burst=n_group * m.key_bursts,
        n_miss=first,
        n_extra_row=opens(visits, b.n_query) - first,
    )


def _pick(b: Batch, block: Any) -> tuple[Any, Any]:
    """[request, 1] first row of one block of each request, and its class of channels."""
    m, p = b.map, b.placement
    row_set = index_of(jnp.take_along_axis(p.row_set, index_of(block)[:, None], 1))
    index = index_of(jnp.take_along_axis(p.index, index_of(block)[:, None], 1))
    digit = [index // m.block_stride[d] % m.block_extent[d] for d in range(3)]
    base = (2 * (row_set // m.n_home) + 1) * m.value_rows + m.taken[ROW] * digit[ROW]
    return base, digit[CHANNEL]


def _value_write(b: Batch, c: Any, max_bank: int, max_subblock: int) -> Load:
    return _chosen(
        b,
        functools.partial(_element_write, b, c, max_bank, max_subblock),
        functools.partial(_key_write, b, c, max_bank),
        functools.partial(_bulk_write, b, max_bank),
    )


def _bulk_write(b: Batch, max_bank: int) -> Load:
    """The batch's Values side by side: whole bursts of all banks."""
    m, p = b.map, b.placement
    n_one = ((p.n_write == 1) & (p.n_token > 0)).sum()
    n = -(-n_one * m.key_bursts // (m.n_bank * m.ch_per_head))
    n_row = -(-n // m.row_bursts)
    return _load(n_write=n, n_write_row=n_row, n_bank_row=jnp.full(max_bank, n_row))


def _element_write(b: Batch, c: Any, max_bank: int, max_subblock: int) -> Load:
    """An element a bank, in slots or in place."""
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
    is_direct = is_one & ~is_zone & (b.home == cells.home)
    direct = _value_visits(cells, is_direct[:, None] & (kind == cells.kind), base)
    merged = jax.tree.map(lambda x: x[order], one_after_another(in_zone, direct))
    n_zone, n_direct = in_zone.is_one.sum() * cells.slot_n, direct.is_one.sum() * cells.n
    # A policy writes to the zone or not, so that one of the two is nothing.
    per = jnp.where(has_single_banks(b.write_issue, n_zone > 0), m.n_bank, 1)
    total = per * (n_zone + n_direct)
    closes = b.write_issue == WRITE_ISSUE["stock_all_bank"]
    n_row = jnp.where(closes, total, per * opens(merged))
    of_bank = jnp.full(max_bank, n_row // per)
    return _load(n_write=total, n_write_row=n_row, n_bank_row=of_bank)


def _chosen(b: Batch, *loads: Callable[[], Load]) -> Load:
    """The load of how the policy writes Values: element by element, in bursts, or in bulk."""
    is_burst, is_bulk = b.v_write == V_WRITE["burst"], b.v_write == V_WRITE["bulk"]
    return lax.switch(jnp.where(is_burst, 1, jnp.where(is_bulk, 2, 0)), loads)


def _commit(b: Batch, c: Any, max_subblock: int) -> Load:
    m, p = b.map, b.placement
    cells = _cells(m, c, max_subblock)
    is_one = (p.commit_row >= 0) & (p.n_token > 0)
    base, kind = _pick(b, (p.n_token - p.n_write) // m.block_tokens)
    to = _value_visits(cells, is_one[:, None] & (kind == cells.kind), base)
    # Reading the slot opens its row too, which is not a row opened to write.
    read = _slot_visits(b, cells, p.commit_row, p.commit_slot, is_one)
    n_row = opens(one_after_another(read._replace(is_counted=jnp.zeros_like(read.is_one)), to))
    n_copy_row = read.is_one.sum()
    n_copy = n_copy_row * cells.slot_n * m.value_bursts
    total = m.n_bank * to.is_one.sum() * cells.n * m.value_bursts
    return _load(
        n_write=total,
        n_write_row=m.n_bank * n_row,
        n_bank_row=n_row,
        n_copy=n_copy,
        n_copy_row=n_copy_row,
    )


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
    is_burst = b.v_write == V_WRITE["burst"]

    def of_bank(bank: Any) -> tuple[Any, Any]:
        # Tokens of a block that lie in this bank: one a group, groups low to high.
        begin, end = -(-(low - bank) // m.n_bank), -(-(high - bank) // m.n_bank)
        here = is_key & (begin < end)
        n_key = jnp.where(here, end - begin, 0).sum() * m.key_bursts
        start = row + begin // m.key_unit_groups
        stop = row + (end - 1) // m.key_unit_groups
        start, stop, here = (jnp.take_along_axis(x, order, 1) for x in (start, stop, here))
        keys = visit(start, stop, stop - start, here)
        below = keys._replace(
            first=start + m.value_rows,
            last=stop + m.value_rows,
            before=jnp.where(keys.before == NONE, NONE, keys.before + m.value_rows),
        )
        n_row = opens(one_after_another(keys, runs, *slots))
        n_row = jnp.where(is_burst, opens(one_after_another(keys, below)), n_row)
        is_bank = bank < m.n_bank
        n_both = n_key + jnp.where(is_burst, n_key, n_value)
        return jnp.where(is_bank, n_both, 0), jnp.where(is_bank, n_row, 0)

    total, n_row = jax.vmap(of_bank)(jnp.arange(max_bank, dtype=jnp.int32))
    return _load(n_write=total.sum(), n_write_row=n_row.sum(), n_bank_row=n_row)
