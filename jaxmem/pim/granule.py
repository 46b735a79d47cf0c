"""Granule shapes: how many channels, rows and bursts a block of a model's KV cache takes.

PATTON's granules (research/patton.md section 1; DESIGN section 6 of the project for what the paper
leaves open). One KV head has C channels; a Key block of T tokens is T/16 groups of g bursts in one
channel's row, token to bank; a Value block is a burst column over min(C, g) channels and r rows,
token to element. Where a policy keeps a block, or a whole request, in one channel, a Value spans
that channel alone with all its rows; where Values are written in whole bursts they lie as Keys do.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.dram import row_bursts
from jaxmem.llm import LayerTable, kind_of
from jaxmem.pim.policy import SPREAD, V_WRITE


class Shape(NamedTuple):
    """Granule shapes of one layer kind under a design; every entry a traced number."""

    block_tokens: Any  # T
    ch_per_head: Any  # C
    n_home: Any  # channels that a request may live in, 1 where it lives in all of a group
    n_round: Any  # turns in which heads share the channel groups
    n_query: Any  # query heads per KV head
    key_bursts: Any  # g: bursts of one token's Key
    key_groups: Any  # Order-0 rows of 16 tokens in a Key block
    key_groups_row: Any  # how many fit a row
    value_rows: Any  # r
    value_bursts: Any  # width of a Value block's column
    value_span: Any  # channels that a Value block spans
    n_interleave: Any  # block interleave, where C exceeds that span
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
    spread = design.policy.spread
    is_alone = spread == SPREAD["request"]
    c = relax.where(design.ch_per_head > 0, design.ch_per_head, automatic)
    c = relax.where(is_alone, 1.0, c)
    element_burst = device.burst_bytes / relax.at_least(layer.kv_element_bytes, 1e-3)
    key_bursts = relax.at_least(relax.ceil(layer.head_dim / element_burst), 1.0)
    value_groups = relax.at_least(relax.ceil(layer.head_dim / device.n_bank), 1.0)
    is_whole = (spread == SPREAD["block"]) | (spread == SPREAD["token"])
    span = relax.where(is_whole, 1.0, relax.minimum(c, value_groups))
    n_interleave = relax.at_least(relax.floor(c / span), 1.0)
    value_rows = relax.ceil(value_groups / span)
    block = relax.where(design.block_tokens > 0, design.block_tokens, design.policy.prefix_tokens)
    key_groups = relax.at_least(relax.ceil(block / device.n_bank), 1.0)
    value_bursts = relax.at_least(relax.ceil(block / element_burst), 1.0)
    key_groups_row = relax.at_least(relax.floor(row / key_bursts), 1.0)
    # Whole blocks in a row, or whole rows of a block.
    row_blocks = value_rows * relax.floor(key_groups_row / key_groups)
    block_rows = relax.floor(value_rows / relax.ceil(key_groups / key_groups_row))
    key_blocks_set = c * relax.where(key_groups <= key_groups_row, row_blocks, block_rows)
    value_blocks_set = relax.floor(row / value_bursts) * n_interleave
    is_burst = design.policy.v_write == V_WRITE["burst"]
    value_blocks_set = relax.where(is_burst, key_blocks_set, value_blocks_set)
    n_group = relax.at_least(relax.floor(device.n_channel / c), 1.0)
    n_group = relax.where(is_alone, 1.0, n_group)
    return Shape(
        block_tokens=block,
        ch_per_head=c,
        n_home=relax.where(is_alone, device.n_channel, 1.0),
        n_round=relax.at_least(relax.ceil(layer.n_kv / n_group), 1.0),
        n_query=layer.n_q / relax.at_least(layer.n_kv, 1.0),
        key_bursts=key_bursts,
        key_groups=key_groups,
        key_groups_row=key_groups_row,
        value_rows=value_rows,
        value_bursts=value_bursts,
        value_span=span,
        n_interleave=n_interleave,
        blocks_set=relax.at_least(relax.minimum(key_blocks_set, value_blocks_set), 1.0),
        slots_row=relax.at_least(relax.floor(row / (value_rows * value_bursts)), 1.0)
        * n_interleave,
    )


def granule_blocks(design: Any, s: Shape) -> Leaf:
    """Blocks of the granule that a request owns.

    At most a row set, and all of it if unshared; under a static policy the row sets of the context
    cap.
    """
    policy = design.policy
    owned = relax.minimum(policy.own_blocks, s.blocks_set)
    owned = relax.where(policy.shares_rowset > 0, owned, s.blocks_set)
    capped = relax.ceil(policy.max_context_tokens / (s.block_tokens * s.blocks_set)) * s.blocks_set
    return relax.where(policy.is_static > 0, capped, owned)


def layers(design: Any) -> tuple[Shape, Leaf]:
    """Shape of the layer kind that holds the KV cache, and how many layers hold one."""
    table = design.llm
    n_layer = sum(
        table.n_layer[..., kind] * jnp.sign(table.kv_bytes_token[..., kind])
        for kind in range(table.n_layer.shape[-1])
    )
    return shape(design, kv_kind(table)), n_layer


def kv_kind(table: LayerTable) -> Any:
    """The first layer kind with a KV cache: heads and head size are a model's, not a layer's."""
    chosen = kind_of(table, 0)
    for kind in range(1, table.n_layer.shape[-1]):
        candidate = kind_of(table, kind)
        is_better = (chosen.kv_bytes_token <= 0) & (candidate.kv_bytes_token > 0)
        chosen = jax.tree.map(
            lambda a, b, is_better=is_better: jnp.where(is_better, a, b), candidate, chosen
        )
    return chosen
