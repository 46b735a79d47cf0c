"""Where every element of the KV cache lies, and what lies in every cell: exact maps both ways.

A layer's rows begin with row sets: set k is r Key rows, then r Value rows; Commit Zone rows grow
downward from the last row of the region. Inside a set the extents are channel C, column (units of
a row) and row r, and one rule serves all six orders of Fig. 4 of the PATTON paper:

- a Key block's index is a mixed-radix number whose digits run over the dimensions in the order's
  sequence, the first named fastest;
- a Value block is cut into subblocks of 16 head elements, one a bank. They take dimensions first
  (channel where the order begins with it, then the order's from last to first), as much of each as
  is needed; blocks advance over what is left, in the order's sequence.

So ch_c_r is PATTON's O1K and O1V, and ch_r_c within one row is its Commit Zone slot. Where C
exceeds the subblocks of a head, blocks interleave over the channels left (research/patton.md
section 1; DESIGN section 6 of the project for what the paper leaves open). KV head h is served by
channel group h mod n_group in round h div n_group, and rounds share the layer's rows evenly. Where
a request lives in one channel (`spread` request) all heads take their turns there: row set k of
channel c has number k * n_home + c. Values written in whole bursts lie as Keys do.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.devices.dram import row_bursts
from jaxmem.pim import granule
from jaxmem.pim.policy import ORDER, V_WRITE

NONE = -1
"""Nothing is there."""
KEY, VALUE, ZONE = range(3)
"""What a row holds."""
_DIMENSION = {"ch": 0, "c": 1, "r": 2}
CHANNEL, COLUMN, ROW = range(3)
SEQUENCE = np.array([[_DIMENSION[d] for d in name.split("_")] for name in ORDER], np.int32)
# Subblocks prefer channels if the order does, then the dimensions that blocks fill last.
PREFERENCE = np.array(
    [[s[0], s[2], s[1]] if s[0] == CHANNEL else s[::-1] for s in SEQUENCE], np.int32
)


class Map(NamedTuple):
    """The sizes that fix every address; whole numbers, concrete or traced."""

    n_channel: Any
    n_bank: Any
    row_bursts: Any  # bursts of a row
    burst_elements: Any
    n_layer: Any  # layers with a KV cache
    n_kv: Any
    head_dim: Any
    block_tokens: Any
    ch_per_head: Any  # C
    n_group: Any  # channel groups
    n_round: Any
    n_home: Any  # channels that a request may live in, 1 where it lives in all of a group
    is_burst: Any  # whether Values lie as Keys do
    rows_layer: Any
    rows_round: Any  # rows of one layer and round: the region
    value_rows: Any  # r
    key_bursts: Any  # g, of one token
    key_groups: Any  # groups of one token a bank in a block
    key_unit_groups: Any  # of them, those in one row
    key_unit_rows: Any  # rows of a block
    key_extent: Any  # [3] blocks along channel, column, row
    key_stride: Any  # [3]
    n_subblock: Any  # of a Value block
    value_bursts: Any  # width of a subblock
    taken: Any  # [3] subblocks along channel, column, row
    subblock_stride: Any  # [3]
    block_extent: Any  # [3] Value blocks along what is left
    block_stride: Any  # [3]
    set_blocks: Any  # blocks of a row set
    slot_span: Any  # channels of a Commit Zone slot
    slot_bursts: Any  # its width
    slot_interleave: Any  # slots beside each other in channels
    row_slots: Any  # slots of a Commit Zone row


class Cell(NamedTuple):
    """An element's place."""

    channel: Any
    bank: Any
    row: Any
    burst: Any
    element: Any


class Owner(NamedTuple):
    """What a cell holds; `kind` is NONE where it is not in use, and so is all else."""

    kind: Any
    layer: Any
    head: Any
    row_set: Any  # or Commit Zone row
    index: Any  # block of the set, or slot of the row
    token: Any
    element: Any


def map_of(design: Any) -> Map:
    """The map of a design's KV cache; jit- and vmap-able.

    Args:
        design: a `pim.Design`.

    Gradient: none (whole numbers).
    """
    s, n_layer = granule.layers(design)
    device, layer = design.device, granule.kv_kind(design.llm)

    def whole(x: Any) -> Any:
        return jnp.asarray(jnp.round(x), jnp.int32)

    c, r, row = whole(s.ch_per_head), whole(s.value_rows), whole(row_bursts(device))
    key_groups, groups_row = whole(s.key_groups), whole(s.key_groups_row)
    block_rows = _up(key_groups, groups_row)
    key_extent = jnp.stack([c, jnp.maximum(groups_row // key_groups, 1), r // block_rows])
    key_sequence = jnp.asarray(SEQUENCE)[design.policy.k_order]
    n_subblock = whole(jnp.maximum(jnp.ceil(layer.head_dim / device.n_bank), 1))
    value_bursts = whole(s.value_bursts)
    extent = jnp.stack([c, row // value_bursts, r])
    spanned = extent.at[CHANNEL].set(whole(s.value_span))
    taken, subblock_stride = _take(spanned, n_subblock, design.policy.v_order)
    block_extent = extent // taken
    block_stride = _stride(block_extent, jnp.asarray(SEQUENCE)[design.policy.v_order])
    span = jnp.minimum(c, n_subblock)
    interleave = jnp.maximum(c // span, 1)
    slot = r * value_bursts
    n_layer, n_round = jnp.maximum(whole(n_layer), 1), whole(s.n_round)
    rows_layer = whole(device.n_row) // n_layer
    is_burst = jnp.asarray(design.policy.v_write) == V_WRITE["burst"]
    key_blocks, value_blocks = jnp.prod(key_extent), jnp.prod(block_extent)
    value_blocks = jnp.where(is_burst, key_blocks, value_blocks)
    return Map(
        n_channel=whole(device.n_channel),
        n_bank=whole(device.n_bank),
        row_bursts=row,
        burst_elements=whole(device.burst_bytes / layer.kv_element_bytes),
        n_layer=n_layer,
        n_kv=whole(layer.n_kv),
        head_dim=whole(layer.head_dim),
        block_tokens=whole(s.block_tokens),
        ch_per_head=c,
        n_group=jnp.where(s.n_home > 1, 1, jnp.maximum(whole(device.n_channel) // c, 1)),
        n_round=n_round,
        n_home=whole(s.n_home),
        is_burst=is_burst,
        rows_layer=rows_layer,
        rows_round=rows_layer // n_round,
        value_rows=r,
        key_bursts=whole(s.key_bursts),
        key_groups=key_groups,
        key_unit_groups=jnp.minimum(key_groups, groups_row),
        key_unit_rows=block_rows,
        key_extent=key_extent,
        key_stride=_stride(key_extent, key_sequence),
        n_subblock=n_subblock,
        value_bursts=value_bursts,
        taken=taken,
        subblock_stride=subblock_stride,
        block_extent=block_extent,
        block_stride=block_stride,
        set_blocks=jnp.minimum(key_blocks, value_blocks),
        slot_span=span,
        slot_bursts=slot,
        slot_interleave=interleave,
        row_slots=interleave * (row // slot),
    )


def concrete(design: Any) -> Map:
    """`map_of` a concrete design, in NumPy, for the host."""
    return jax.tree.map(np.asarray, _jitted(design))


_jitted = jax.jit(map_of)


def n_set(m: Map, n_zone: Any) -> Any:
    """Row sets of a region beside `n_zone` Commit Zone rows."""
    return m.n_home * (_at_least(m.rows_round - n_zone, 0) // (2 * m.value_rows))


def key_block(m: Map, row_set: Any, index: Any) -> tuple[Any, Any, Any]:
    """Channel of the head's group, first row in the region and first burst of a Key block."""
    at = [index // m.key_stride[d] % m.key_extent[d] for d in range(3)]
    row = 2 * m.value_rows * (row_set // m.n_home) + at[ROW] * m.key_unit_rows
    channel = at[CHANNEL] + row_set % m.n_home
    return channel, row, at[COLUMN] * (m.key_unit_groups * m.key_bursts)


def value_block(m: Map, row_set: Any, index: Any) -> tuple[Any, Any, Any]:
    """The same of a Value block that lies as a Key block does (`is_burst`)."""
    channel, row, burst = key_block(m, row_set, index)
    return channel, row + m.value_rows, burst


def value_subblock(m: Map, row_set: Any, index: Any, subblock: Any) -> tuple[Any, Any, Any]:
    """Channel, row and first burst of a Value block's 16 head elements, one a bank."""
    part = [subblock // m.subblock_stride[d] % m.taken[d] for d in range(3)]
    at = [index // m.block_stride[d] % m.block_extent[d] for d in range(3)]
    channel, column, row = (part[d] + m.taken[d] * at[d] for d in range(3))
    first = (2 * (row_set // m.n_home) + 1) * m.value_rows
    return channel + row_set % m.n_home, first + row, column * m.value_bursts


def zone_subblock(m: Map, zone_row: Any, slot: Any, subblock: Any) -> tuple[Any, Any, Any]:
    """The same in a Commit Zone slot: r subblocks side by side in a row, over C channels."""
    channel = subblock % m.slot_span + m.slot_span * (slot % m.slot_interleave)
    burst = slot // m.slot_interleave * m.slot_bursts + subblock // m.slot_span * m.value_bursts
    return channel, m.rows_round - 1 - zone_row, burst


def key_cell(
    m: Map, layer: Any, head: Any, row_set: Any, index: Any, token: Any, element: Any
) -> Cell:
    """Place of an element of a token's Key in a block.

    Args:
        m: the map.
        layer: layer, of those with a KV cache.
        head: KV head.
        row_set: row set of the block.
        index: the block in its set.
        token: of the block.
        element: of the head.
    """
    return _by_token(m, layer, head, key_block(m, row_set, index), token, element)


def _by_token(m: Map, layer: Any, head: Any, block: Any, token: Any, element: Any) -> Cell:
    channel, row, burst = block
    group, bank = token // m.n_bank, token % m.n_bank
    row = row + group // m.key_unit_groups
    burst = burst + group % m.key_unit_groups * m.key_bursts + element // m.burst_elements
    return _cell(m, layer, head, channel, bank, row, burst, element % m.burst_elements)


def value_cell(
    m: Map, layer: Any, head: Any, row_set: Any, index: Any, token: Any, element: Any
) -> Cell:
    """Place of an element of a token's Value in a full block; arguments as for `key_cell`."""
    channel, row, burst = value_subblock(m, row_set, index, element // m.n_bank)
    burst, lane = burst + token // m.burst_elements, token % m.burst_elements
    spread = _cell(m, layer, head, channel, element % m.n_bank, row, burst, lane)
    whole = _by_token(m, layer, head, value_block(m, row_set, index), token, element)
    return Cell(*(_where(m.is_burst, a, b) for a, b in zip(whole, spread, strict=True)))


def zone_cell(
    m: Map, layer: Any, head: Any, zone_row: Any, slot: Any, token: Any, element: Any
) -> Cell:
    """Place of an element of a token's Value in a Commit Zone slot.

    Args:
        m: the map.
        layer: layer, of those with a KV cache.
        head: KV head.
        zone_row: Commit Zone row, counted from the region's last row upward.
        slot: of the row.
        token: of the block.
        element: of the head.
    """
    channel, row, burst = zone_subblock(m, zone_row, slot, element // m.n_bank)
    burst, lane = burst + token // m.burst_elements, token % m.burst_elements
    return _cell(m, layer, head, channel, element % m.n_bank, row, burst, lane)


def owner(m: Map, n_zone: Any, cell: Cell) -> Owner:
    """What a cell holds, of `n_zone` Commit Zone rows: the inverse of the three maps above."""
    layer, row = cell.row // m.rows_layer, cell.row % m.rows_layer
    turn, row = row // m.rows_round, row % m.rows_round
    group, channel = cell.channel // m.ch_per_head, cell.channel % m.ch_per_head
    home = _where(m.n_home > 1, cell.channel, 0)
    group = _where(m.n_home > 1, 0, group)
    head = turn * m.n_group + group
    is_in = (layer < m.n_layer) & (turn < m.n_round) & (group < m.n_group) & (head < m.n_kv)
    row_set, row_in = row // (2 * m.value_rows), row % (2 * m.value_rows)
    row_set = row_set * m.n_home + home
    zone_row = m.rows_round - 1 - row
    is_zone = zone_row < n_zone
    is_set = ~is_zone & (row_set < n_set(m, n_zone))
    is_key = is_set & (row_in < m.value_rows)
    found = (
        (is_in & is_key, KEY, row_set, _key_owner(m, channel, row_in, cell)),
        (
            is_in & is_set & ~is_key,
            VALUE,
            row_set,
            _value_owner(m, channel, row_in - m.value_rows, cell),
        ),
        (is_in & is_zone, ZONE, zone_row, _zone_owner(m, channel, cell)),
    )
    kind = where_at = index = token = element = NONE
    for is_here, code, place, (is_used, i, t, e) in found:
        is_it = is_here & is_used & (t < m.block_tokens) & (e < m.head_dim)
        kind, where_at = _where(is_it, code, kind), _where(is_it, place, where_at)
        index, token, element = (
            _where(is_it, new, old) for new, old in ((i, index), (t, token), (e, element))
        )
    is_some = kind >= 0
    return Owner(
        kind, _where(is_some, layer, NONE), _where(is_some, head, NONE), where_at, index, token,
        element,
    )  # fmt: skip


def _key_owner(m, channel, row, cell):
    unit = m.key_unit_groups * m.key_bursts
    column, burst = cell.burst // unit, cell.burst % unit
    at = (channel, column, row // m.key_unit_rows)
    index = sum(at[d] * m.key_stride[d] for d in range(3))
    is_used = (column < m.key_extent[COLUMN]) & (at[ROW] < m.key_extent[ROW])
    group = row % m.key_unit_rows * m.key_unit_groups + burst // m.key_bursts
    token = group * m.n_bank + cell.bank
    element = burst % m.key_bursts * m.burst_elements + cell.element
    return is_used & (index < m.set_blocks), index, token, element


def _value_owner(m, channel, row, cell):
    spread, whole = _by_element(m, channel, row, cell), _key_owner(m, channel, row, cell)
    return tuple(_where(m.is_burst, a, b) for a, b in zip(whole, spread, strict=True))


def _by_element(m, channel, row, cell):
    place = (channel, cell.burst // m.value_bursts, row)
    at = [place[d] // m.taken[d] for d in range(3)]
    subblock = sum(place[d] % m.taken[d] * m.subblock_stride[d] for d in range(3))
    index = sum(at[d] * m.block_stride[d] for d in range(3))
    is_used = (subblock < m.n_subblock) & (index < m.set_blocks)
    for d in range(3):
        is_used = is_used & (at[d] < m.block_extent[d])
    token = cell.burst % m.value_bursts * m.burst_elements + cell.element
    return is_used, index, token, subblock * m.n_bank + cell.bank


def _zone_owner(m, channel, cell):
    column, burst = cell.burst // m.slot_bursts, cell.burst % m.slot_bursts
    beside, first = channel // m.slot_span, channel % m.slot_span
    slot = column * m.slot_interleave + beside
    subblock = burst // m.value_bursts * m.slot_span + first
    is_used = (beside < m.slot_interleave) & (slot < m.row_slots) & (subblock < m.n_subblock)
    token = burst % m.value_bursts * m.burst_elements + cell.element
    return is_used, slot, token, subblock * m.n_bank + cell.bank


def _cell(m, layer, head, channel, bank, row, burst, element):
    turn, group = head // m.n_group, head % m.n_group
    row = layer * m.rows_layer + turn * m.rows_round + row
    return Cell(group * m.ch_per_head + channel, bank, row, burst, element)


def _take(extent, n, order):
    """[3] subblocks along each dimension, and their strides."""
    preference = jnp.asarray(PREFERENCE)[order]
    taken, stride, step = jnp.ones(3, jnp.int32), jnp.ones(3, jnp.int32), jnp.int32(1)
    for i in range(3):
        dimension = preference[i]
        some = jnp.minimum(extent[dimension], n)
        taken, stride = taken.at[dimension].set(some), stride.at[dimension].set(step)
        n, step = _up(n, some), step * some
    return taken, stride


def _stride(extent, sequence):
    """[3] strides of a mixed-radix number whose digits run in `sequence`."""
    ordered = extent[sequence]
    before = jnp.concatenate([jnp.ones(1, jnp.int32), jnp.cumprod(ordered)[:-1]])
    return jnp.zeros(3, jnp.int32).at[sequence].set(before.astype(jnp.int32))


def _up(x, y):
    return (x + y - 1) // y


def _module(*values: Any) -> Any:
    return jnp if any(isinstance(v, jax.Array) for v in values) else np


def _where(condition, x, y):
    return _module(condition, x, y).where(condition, x, y)


def _at_least(x, low):
    return _module(x).maximum(x, low)
