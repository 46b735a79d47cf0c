"""The load of a decode step on one channel, in closed form: what a placement takes on average.

Counts of the commands under the Ch-C order (research/patton.md section 5). Where blocks go round
the channels of a head, these do the same and one channel's load is the head's. Where a policy puts
a block or a request in one channel, the load is that of the fullest: blocks fall on channels at
random (an upper estimate for one that picks the emptiest), requests are dealt out evenly. How long
the Value runs are is a field; the load of a given placement is `layout.load`'s business.
"""

from typing import Any

import jax

from jaxmem.core import balance, relax
from jaxmem.core.design import Leaf
from jaxmem.devices.dram import row_bursts
from jaxmem.pim.granule import Shape, granule_blocks
from jaxmem.pim.isa import Load, add, scale
from jaxmem.pim.policy import SPREAD, V_WRITE


def run_blocks(design: Any, s: Shape, n_block: Leaf) -> Leaf:
    """Consecutive Value blocks that one MAC sequence covers.

    `expected_run_blocks` where it is known, else one owned granule; never longer than a row, the
    request or the policy's cap.
    """
    row_blocks = relax.floor(row_bursts(design.device) / s.value_bursts) * s.n_interleave
    is_known = design.expected_run_blocks == design.expected_run_blocks
    known = relax.where(is_known, design.expected_run_blocks, 1.0)
    longest = relax.minimum(row_blocks, design.policy.run_max_blocks)
    granule = relax.minimum(granule_blocks(design, s), row_blocks)
    # At ties the row is what limits: a longer block leaves it room for fewer.
    unmerged = relax.where(longest <= granule, longest, granule)
    cap = relax.where(design.policy.merges_adjacent > 0, longest, unmerged)
    run = relax.where(is_known, relax.where(cap <= known, cap, known), unmerged)
    return relax.at_least(relax.minimum(run, n_block), 1.0)


def requests_in_turn(s: Shape, batch: Leaf) -> Leaf:
    """Requests that the fullest channel serves, one after another."""
    return relax.where(s.n_home > 1, relax.ceil(batch / s.n_home), batch)


def imbalance(design: Any, s: Shape, batch: Leaf, n_token: Leaf) -> Leaf:
    """Blocks of a step on the fullest channel of a head, to the mean; 1 where they go round."""
    n_block = relax.at_least(batch * relax.ceil(n_token / s.block_tokens), 1.0)
    mean = n_block / s.ch_per_head
    fullest = relax.minimum(balance.expected_max(mean, s.ch_per_head), n_block)
    return relax.where(design.policy.spread == SPREAD["block"], fullest / mean, 1.0)


def _blocks_in_channel(design: Any, s: Shape, n_block: Leaf) -> Leaf:
    """Key blocks of one request in one channel: in rounds, or on average where each goes alone."""
    share = n_block / s.ch_per_head
    is_apart = design.policy.spread == SPREAD["block"]
    return relax.where(is_apart, share, relax.ceil(share))


def query_key(design: Any, s: Shape, n_token: Leaf) -> Load:
    """Load of QK for one request and all query heads of one KV head.

    For each query head: the query is duplicated in the global buffer at the offsets of the Key
    blocks of a row, and every 16 tokens take one WRBIAS, g MACAB, RDMAC. Rows change where a row
    fills and where a run of owned granules ends.
    """
    n_block = relax.ceil(n_token / s.block_tokens)
    n_step = _blocks_in_channel(design, s, n_block) * s.key_groups
    run = run_blocks(design, s, relax.at_least(n_block, 1.0))
    run_steps = relax.ceil(run / s.ch_per_head) * s.key_groups
    # A run shorter than the channels of a head leaves some of them to others.
    n_row = n_block / relax.maximum(run, s.ch_per_head) * relax.ceil(run_steps / s.key_groups_row)
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
    n_all = relax.ceil(n_token / s.block_tokens)
    n_full = relax.floor(n_token / s.block_tokens)
    n_block = relax.where(has_zone, n_full, n_all)
    run = run_blocks(design, s, relax.at_least(n_block, 1.0))
    # A run takes as many columns in each of the channels that blocks interleave over.
    n_run = n_block / s.n_interleave / relax.at_least(run / s.n_interleave, 1.0)
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
    plain = scale(add(full, scale(staged, n_staged)), s.n_query)
    is_burst = design.policy.v_write == V_WRITE["burst"]
    one = _outer(design, s, n_all)
    return jax.tree.map(lambda a, b: relax.where(is_burst, a, b), one, plain)


def _outer(design: Any, s: Shape, n_block: Leaf) -> Load:
    """The same where each bank adds up its tokens' vectors: g read-outs, whatever the length."""
    n_group = _blocks_in_channel(design, s, n_block) * s.key_groups
    n_row = relax.at_least(n_group / s.key_groups_row, 1.0)
    one = Load(
        n_gb=n_group,
        n_step=s.key_bursts,
        n_burst=n_group * s.key_bursts,
        n_miss=1.0 + 0.0 * n_group,
        n_extra_row=n_row - 1.0,
    )
    return scale(one, s.n_query)


def zone_rows(design: Any, s: Shape, batch: Leaf) -> Leaf:
    """Commit Zone rows that `batch` partial blocks take; existing rows fill first."""
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    return relax.where(has_zone, relax.ceil(batch / s.slots_row), 0.0)


def key_write(design: Any, s: Shape, batch: Leaf) -> Load:
    """Load of writing one token's Key for every request: g bursts into one bank each.

    Requests fall on channels and banks at random; the fullest bank serialises its row changes.
    """
    device = design.device
    n_channel = s.ch_per_head * s.n_home
    n_place = n_channel * device.n_bank
    fullest = balance.expected_max(batch / n_place, n_place)
    in_channel = relax.maximum(batch / n_channel, relax.minimum(batch, 1.0))
    return Load(n_write=in_channel * s.key_bursts, n_write_row=in_channel, n_bank_row=fullest)


def value_write(design: Any, s: Shape, batch: Leaf) -> Load:
    """Load of writing one token's Value for every request, all-bank bursts of one channel.

    Direct: r rows a request. Commit Zone: r bursts a request into the rows it shares with others.
    Whole bursts: as a Key. In bulk: the batch's vectors side by side.
    """
    turns = requests_in_turn(s, batch) / s.n_interleave
    n_write = s.value_rows * relax.maximum(turns, relax.minimum(batch, 1.0))
    zone = zone_rows(design, s, batch)
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    n_row = relax.where(has_zone, zone, n_write)
    plain = Load(n_write=n_write, n_write_row=n_row, n_bank_row=n_row)
    device, how = design.device, design.policy.v_write
    n_bulk = relax.ceil(batch * s.key_bursts / (device.n_bank * s.ch_per_head))
    n_bulk_row = relax.ceil(n_bulk / row_bursts(device))
    bulk = Load(n_write=n_bulk, n_write_row=n_bulk_row, n_bank_row=n_bulk_row)
    plain = jax.tree.map(lambda a, b: relax.where(how == V_WRITE["bulk"], a, b), bulk, plain)
    burst = key_write(design, s, batch)
    return jax.tree.map(lambda a, b: relax.where(how == V_WRITE["burst"], a, b), burst, plain)


def commit(design: Any, s: Shape, batch: Leaf) -> Load:
    """Expected load of a decode step's commits: one block in T tokens of every request.

    The filled slot is read burst by burst and written to its r destination rows.
    """
    has_zone = design.policy.v_write == V_WRITE["commit_zone"]
    n_commit = relax.where(has_zone, batch / s.block_tokens / s.n_interleave, 0.0)
    width = s.value_rows * s.value_bursts
    n_bank = design.device.n_bank
    one = Load(
        n_copy=width,
        n_copy_row=1.0 + 0.0 * width,
        n_write=n_bank * width,
        n_write_row=n_bank * s.value_rows,
        n_bank_row=s.value_rows,
    )
    return scale(one, n_commit)


def prefill_write(design: Any, s: Shape, n_token: Leaf) -> tuple[Load, Load]:
    """Loads of writing a prompt's Keys and Values, one request: bursts to single banks."""
    device = design.device
    n_block = relax.ceil(n_token / s.block_tokens)
    n_group = relax.ceil(n_block / s.ch_per_head) * s.key_groups
    n_column = n_block / s.n_interleave * s.value_bursts

    def banks(n_burst: Leaf, n_row: Leaf) -> Load:
        every = device.n_bank
        return Load(n_write=n_burst * every, n_write_row=n_row * every, n_bank_row=n_row)

    key = banks(n_group * s.key_bursts, relax.ceil(n_group / s.key_groups_row))
    value = banks(s.value_rows * n_column, s.value_rows)
    is_burst = design.policy.v_write == V_WRITE["burst"]
    return key, jax.tree.map(lambda a, b: relax.where(is_burst, a, b), key, value)
