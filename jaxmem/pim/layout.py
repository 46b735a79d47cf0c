"""How a model's KV cache lies in the banks, and the load that using it puts on a channel.

PATTON's granules in closed form (research/patton.md sections 1 and 5; DESIGN section 6 of the
project for what the paper leaves open). One KV head has C channels; a Key block of T tokens is
T/16 groups of g bursts in one channel's row, token to bank; a Value block is a burst column over
min(C, g) channels and r rows, token to element. All channels of a head do the same, so one
channel's load is the head's.
"""

from typing import Any, NamedTuple

from jaxmem.core import balance, relax
from jaxmem.core.design import Leaf
from jaxmem.devices.dram import row_bursts
from jaxmem.pim.isa import Load, add, scale
from jaxmem.pim.policy import V_WRITE


class Shape(NamedTuple):
    """Granule shapes of one layer kind under a design; every entry a traced number."""

    ch_per_head: Any  # C
    n_round: Any  # turns in which heads share the channel groups
    n_query: Any  # query heads per KV head
    key_bursts: Any  # g: bursts of one token's Key
    key_groups: Any  # Order-0 rows of 16 tokens in a Key block
    key_groups_row: Any  # how many fit a row
    value_rows: Any  # r
    value_bursts: Any  # width of a Value block's column
    n_interleave: Any  # block interleave, where C exceeds the channels that a Value block spans
    blocks_set: Any  # blocks that a row set of r + r rows holds
    slots_row: Any  # Commit Zone slots of a row


def shape(design: Any, layer: Any) -> Shape:
    """Granule shapes of a layer kind.

    Args:
        design: a `pim.Design`.
        layer: one kind's row of a `LayerTable`.

    Gradient: relaxed.
    """
    device = design.device
    row = row_bursts(device)
    automatic = relax.at_least(relax.floor(device.n_channel / relax.at_least(layer.n_kv, 1.0)), 1.0)
    c = relax.where(design.ch_per_head > 0, design.ch_per_head, automatic)
    element_burst = device.burst_bytes / relax.at_least(layer.kv_element_bytes, 1e-3)
    key_bursts = relax.at_least(relax.ceil(layer.head_dim / element_burst), 1.0)
    value_groups = relax.at_least(relax.ceil(layer.head_dim / device.n_bank), 1.0)
    span = relax.minimum(c, value_groups)
    n_interleave = relax.at_least(relax.floor(c / span), 1.0)
    value_rows = relax.ceil(value_groups / span)
    key_groups = relax.at_least(relax.ceil(design.block_tokens / device.n_bank), 1.0)
    value_bursts = relax.at_least(relax.ceil(design.block_tokens / element_burst), 1.0)
    key_groups_row = relax.at_least(relax.floor(row / key_bursts), 1.0)
    key_blocks_set = relax.floor(value_rows * c * key_groups_row / key_groups)
    value_blocks_set = relax.floor(row / value_bursts) * n_interleave
    n_group = relax.at_least(relax.floor(device.n_channel / c), 1.0)
    return Shape(
        ch_per_head=c,
        n_round=relax.at_least(relax.ceil(layer.n_kv / n_group), 1.0),
        n_query=layer.n_q / relax.at_least(layer.n_kv, 1.0),
        key_bursts=key_bursts,
        key_groups=key_groups,
        key_groups_row=key_groups_row,
        value_rows=value_rows,
        value_bursts=value_bursts,
        n_interleave=n_interleave,
        blocks_set=relax.at_least(relax.minimum(key_blocks_set, value_blocks_set), 1.0),
        slots_row=relax.at_least(relax.floor(row / (value_rows * value_bursts)), 1.0),
    )


def run_blocks(design: Any, s: Shape, n_block: Leaf) -> Leaf:
    """Consecutive Value blocks that one MAC sequence covers.

    `expected_run_blocks` where it is known, else one owned granule; never longer than a row, the
    request or the policy's cap.
    """
    row_blocks = relax.floor(row_bursts(design.device) / s.value_bursts) * s.n_interleave
    is_known = design.expected_run_blocks == design.expected_run_blocks
    known = relax.where(is_known, design.expected_run_blocks, 1.0)
    longest = relax.minimum(row_blocks, design.policy.run_max_blocks)
    granule = relax.where(design.policy.shares_rowset > 0, design.policy.own_blocks, row_blocks)
    # At ties the row is what limits: a longer block leaves it room for fewer.
    unmerged = relax.where(longest <= granule, longest, granule)
    cap = relax.where(design.policy.merges_adjacent > 0, longest, unmerged)
    run = relax.where(is_known, relax.where(cap <= known, cap, known), unmerged)
    return relax.at_least(relax.minimum(run, n_block), 1.0)


def query_key(design: Any, s: Shape, n_token: Leaf) -> Load:
    """Load of QK for one request and all query heads of one KV head.

    For each query head: the query is duplicated in the global buffer at the offsets of the Key
    blocks of a row, and every 16 tokens take one WRBIAS, g MACAB, RDMAC. Rows change where a row
    fills and where a run of owned granules ends.
    """
    n_block = relax.ceil(n_token / design.block_tokens)
    n_step = relax.ceil(n_block / s.ch_per_head) * s.key_groups
    run = run_blocks(design, s, relax.at_least(n_block, 1.0))
    run_steps = relax.ceil(run / s.ch_per_head) * s.key_groups
    n_row = n_block / run * relax.ceil(run_steps / s.key_groups_row)
    one = Load(
        n_gb=s.key_bursts * relax.minimum(n_step, s.key_groups_row),
        n_step=n_step,
        n_burst=n_step * s.key_bursts,
        n_miss=relax.minimum(n_row, n_step),
    )
    return scale(one, s.n_query)


def score_value(design: Any, s: Shape, n_token: Leaf) -> Load:
    """Load of SV for one request and all query heads of one KV head.

    Each run loads its scores and takes r steps. The partial block runs slot by slot in the Commit
    Zone, or as the last column of a run without one.
    """
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    n_all = relax.ceil(n_token / design.block_tokens)
    n_full = relax.floor(n_token / design.block_tokens)
    n_block = relax.where(has_zone, n_full, n_all)
    run = run_blocks(design, s, relax.at_least(n_block, 1.0))
    n_run = n_block / run
    n_column = n_block / s.n_interleave * s.value_bursts
    full = Load(
        n_gb=n_column,
        n_step=n_run * s.value_rows,
        n_burst=n_column * s.value_rows,
        n_miss=n_run * s.value_rows,
    )
    width = s.value_rows * s.value_bursts
    staged = Load(n_gb=width, n_step=s.value_rows, n_burst=width, n_miss=1.0 + 0.0 * width)
    n_staged = relax.where(has_zone, n_all - n_full, 0.0)
    return scale(add(full, scale(staged, n_staged)), s.n_query)


def zone_rows(design: Any, s: Shape, batch: Leaf) -> Leaf:
    """Commit Zone rows that `batch` partial blocks take; existing rows fill first."""
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    return relax.where(has_zone, relax.ceil(batch / s.slots_row), 0.0)


def key_write(design: Any, s: Shape, batch: Leaf) -> Load:
    """Load of writing one token's Key for every request: g bursts into one bank each.

    Requests fall on channels and banks at random; the fullest bank serialises its row changes.
    """
    device = design.device
    n_place = s.ch_per_head * device.n_bank
    fullest = balance.expected_max(batch / n_place, n_place)
    in_channel = relax.maximum(batch / s.ch_per_head, relax.minimum(batch, 1.0))
    return Load(n_write=in_channel * s.key_bursts, n_write_row=fullest)


def value_write(design: Any, s: Shape, batch: Leaf) -> Load:
    """Load of writing one token's Value for every request, all-bank bursts of one channel.

    Direct: r rows a request. Commit Zone: r bursts a request into the rows it shares with others.
    """
    n_write = batch * s.value_rows
    zone = zone_rows(design, s, batch)
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    return Load(n_write=n_write, n_write_row=relax.where(has_zone, zone, n_write))


def commit(design: Any, s: Shape, batch: Leaf) -> Load:
    """Expected load of a decode step's commits: one block in T tokens of every request.

    The filled slot is read burst by burst and written to its r destination rows.
    """
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    n_commit = relax.where(has_zone, batch / design.block_tokens, 0.0)
    width = s.value_rows * s.value_bursts
    one = Load(n_copy=width, n_write_row=s.value_rows, n_miss=1.0 + 0.0 * width)
    return scale(one, n_commit)


def prefill_write(design: Any, s: Shape, n_token: Leaf) -> tuple[Load, Load]:
    """Loads of writing a prompt's Keys and Values, one request: bursts to single banks."""
    device = design.device
    n_block = relax.ceil(n_token / design.block_tokens)
    n_group = relax.ceil(n_block / s.ch_per_head) * s.key_groups
    key = Load(
        n_write=n_group * s.key_bursts * device.n_bank,
        n_write_row=relax.ceil(n_group / s.key_groups_row),
    )
    n_column = n_block / s.n_interleave * s.value_bursts
    value = Load(n_write=s.value_rows * n_column * device.n_bank, n_write_row=s.value_rows)
    return key, value
