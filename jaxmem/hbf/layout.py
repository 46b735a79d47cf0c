"""Where weights and KV cache lie in flash, and the load that reading them puts on megaplanes.

A megaplane is M planes that are read together; a megapage is one page of each. Weights go round
the megaplanes in execution order (FlashAccel V-A), so their load is even. The KV cache of the
active requests lands like balls in bins (V-B): its fullest megaplane is an expected maximum, which
selective replication to HBM cuts to the mean. These are expectations; actual placements come with
the storage manager.
"""

from typing import Any

from jaxmem.core import balance, relax
from jaxmem.core.design import Leaf, leaf, record
from jaxmem.devices.node import n_plane


@record
class Load:
    """Megapages that one read puts on the megaplanes of a GPU."""

    mean: Leaf = leaf("megapages a megaplane, on average", unit="megapages")
    fullest: Leaf = leaf("megapages on the fullest megaplane", unit="megapages")
    replicated_bytes: Leaf = leaf("bytes read from their replicas in HBM", unit="B")


def n_megaplane(design: Any) -> Leaf:
    """Megaplanes of a GPU (the paper's K). Gradient: exact, with M taken as real."""
    return relax.at_least(n_plane(design.device) / design.planes_per_megaplane, 1.0)


def megapage_bytes(design: Any) -> Leaf:
    """Bytes that a megapage delivers in one read (4,000 a page, the paper's bandwidth)."""
    return design.planes_per_megaplane * design.device.flash.page_payload_bytes


def megablock_bytes(design: Any) -> Leaf:
    """Capacity of a megablock: one erase block of every plane of a megaplane."""
    return design.planes_per_megaplane * design.block_pages * design.device.flash.page_bytes


def block_tokens(design: Any, kv_bytes_token_layer: Leaf) -> Leaf:
    """Tokens of a KV block (the paper's N): as many as one layer's megapage holds, at least one.

    Source: FlashAccel V-B; N = floor(4096 M / S), research/flashaccel.md section 2.
    """
    page = design.planes_per_megaplane * design.device.flash.page_bytes
    return relax.at_least(relax.floor(relax.divide(page, kv_bytes_token_layer, 1.0)), 1.0)


def weight_load(design: Any, n_bytes: Leaf) -> Load:
    """Load of reading `n_bytes` of weights in execution order: even, streamed across operators."""
    mean = n_bytes / megapage_bytes(design) / n_megaplane(design)
    return Load(mean=mean, fullest=mean, replicated_bytes=0.0 * mean)


def kv_load(design: Any, n_bytes: Leaf) -> Load:
    """Load of reading one layer's KV cache of all active requests, `n_bytes` on one GPU.

    Gradient: exact, of the closed forms of `core.balance`.
    """
    mean = n_bytes / megapage_bytes(design) / n_megaplane(design)
    fullest = balance.expected_max(mean, n_megaplane(design))
    is_cut = design.is_replicated > 0
    moved = balance.expected_excess(mean) * n_megaplane(design) * megapage_bytes(design)
    return Load(
        mean=mean,
        fullest=relax.where(is_cut, mean, fullest),
        replicated_bytes=relax.where(is_cut, moved, 0.0),
    )
