"""Where the blocks of a batch lie, and what one step does with them.

The same for every layer and KV head, whose rows and channels differ but not the granules: an
allocator (`occupancy`) makes it, `layout.stream` and `layout.load` read it. Fixed shapes; -1 where
there is nothing.
"""

from typing import Any

import numpy as np

from jaxmem.core.design import Leaf, leaf, record
from jaxmem.pim import address
from jaxmem.pim.policy import V_WRITE

NONE = -1
"""No block, no slot."""


@record
class Placement:
    """Blocks of every request of a step, in the order of its tokens.

    The step first writes the last `n_write` tokens of a request: one in decode, more in prefill.
    It then copies a slot that this filled to the block's own place, and attends over `n_token`.
    """

    row_set: Leaf = leaf("row set of each block")  # [request, block] int32
    index: Leaf = leaf("index of each block in its row set")  # [request, block] int32
    zone_row: Leaf = leaf("Commit Zone row of the partial block, from the last row up")  # [request]
    zone_slot: Leaf = leaf("its slot in that row")  # [request]
    commit_row: Leaf = leaf("Commit Zone row of the block that this step fills")  # [request]
    commit_slot: Leaf = leaf("its slot in that row")  # [request]
    n_token: Leaf = leaf("tokens in the cache, those written included", unit="tokens")  # [request]
    n_write: Leaf = leaf("of these, written in this step", unit="tokens")  # [request]


def contiguous(design: Any, n_token: Any, n_write: Any = 1, *, max_block: int = 0) -> Placement:
    """Requests one after another, each from a row set of its own on: the best case.

    Args:
        design: a concrete `pim.Design`.
        n_token: [request] tokens of each, after the step.
        n_write: [request] tokens that the step writes.
        max_block: blocks that the arrays hold; by default as many as the longest request has.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> p = contiguous(d, [40, 1100])
        >>> p.row_set[1, 62:66].tolist(), p.index[0].tolist()[:4], p.zone_slot.tolist()
        ([1, 1, 2, 2], [0, 1, 2, -1], [0, 1])
    """
    m = address.concrete(design)
    has_zone = int(design.policy.v_write) == V_WRITE["commit_zone"]
    tokens = np.asarray(n_token, np.int32)
    writes = np.broadcast_to(np.asarray(n_write, np.int32), tokens.shape)
    size, per_set = int(m.block_tokens), int(m.set_blocks)
    n_block = -(-tokens // size)
    sets = -(-n_block // per_set)
    first = np.cumsum(sets) - sets
    block = np.arange(max(max_block, int(n_block.max(initial=1))))[None]
    is_block = block < n_block[:, None]
    before = tokens - writes
    is_partial = (tokens % size > 0) & has_zone
    # A block that was begun before and is full now leaves its slot.
    fills = (before % size > 0) & (before // size < tokens // size) & has_zone
    slot = np.cumsum(is_partial) - 1
    leaving = is_partial.sum() + np.cumsum(fills) - 1

    def where(condition: Any, value: Any) -> np.ndarray:
        return np.where(condition, value, NONE).astype(np.int32)

    per_row = int(m.row_slots)
    return Placement(
        row_set=where(is_block, first[:, None] + block // per_set),
        index=where(is_block, block % per_set),
        zone_row=where(is_partial, slot // per_row),
        zone_slot=where(is_partial, slot % per_row),
        commit_row=where(fills, leaving // per_row),
        commit_slot=where(fills, leaving % per_row),
        n_token=tokens,
        n_write=writes.astype(np.int32),
    )
