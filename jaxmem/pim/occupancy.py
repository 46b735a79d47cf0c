"""What fits in PIM: row sets, granules and Commit Zone rows, in closed form.

Layers share the rows of every bank evenly; a row set of r Key rows and r Value rows holds a fixed
number of blocks, which Order-2 granules divide (research/patton.md section 2, Capacity). The
allocator itself, which knows every block, is `pool`'s; its names are here too.
"""

from typing import Any

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.pim.expected import zone_rows
from jaxmem.pim.granule import Shape, granule_blocks
from jaxmem.pim.pool import Bounds, Events, Pool, bounds, create, snapshot, step

__all__ = [
    "Bounds",
    "Events",
    "Pool",
    "bounds",
    "capacity_tokens",
    "create",
    "granule_blocks",
    "granules_needed",
    "n_granule",
    "snapshot",
    "step",
]


def n_granule(design: Any, s: Shape, n_layer: Leaf, batch: Leaf) -> Leaf:
    """Order-2 granules of a layer, beside the Commit Zone of `batch` requests."""
    rows = relax.floor(design.device.n_row / relax.at_least(n_layer, 1.0))
    rows = relax.floor(rows / s.n_round) - zone_rows(design, s, batch)
    n_set = s.n_home * relax.at_least(relax.floor(rows / (2 * s.value_rows)), 0.0)
    owned = granule_blocks(design, s)
    of_set = n_set * relax.floor(s.blocks_set / owned)
    return relax.where(owned <= s.blocks_set, of_set, relax.floor(n_set * s.blocks_set / owned))


def capacity_tokens(design: Any, s: Shape, n_layer: Leaf, batch: Leaf) -> Leaf:
    """KV tokens that fit, tails of open granules included."""
    blocks = n_granule(design, s, n_layer, batch) * granule_blocks(design, s)
    return blocks * s.block_tokens


def granules_needed(design: Any, s: Shape, batch: Leaf, context_tokens: Leaf) -> Leaf:
    """Granules that `batch` requests own at a context, or reserve under a static policy."""
    reserved = relax.where(
        design.policy.is_static > 0, design.policy.max_context_tokens, context_tokens
    )
    n_block = relax.ceil(reserved / s.block_tokens)
    return batch * relax.ceil(n_block / granule_blocks(design, s))
