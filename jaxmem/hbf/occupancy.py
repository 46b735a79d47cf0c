"""What fits: weights and KV cache in a GPU's memory, unwritten KV and replicas in its HBM.

Closed forms (research/flashaccel.md section 2, Write-back). The storage manager that places
objects, chunks and megablocks comes beside them.
"""

from typing import Any

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.node import flash_bytes, hbm_bytes
from jaxmem.hbf import layout
from jaxmem.llm import LayerTable, Parallel, kv_bytes, weight_bytes
from jaxmem.llm.table import expert_bytes


def capacity_bytes(design: Any) -> Leaf:
    """Bytes of a GPU that hold weights and KV cache: its flash if it has any, else its HBM.

    HBM beside flash holds activations, buffers and replicas only.
    """
    node = design.device
    return relax.where(node.n_stack > 0, flash_bytes(node), hbm_bytes(node))


def weights_held_bytes(rank: LayerTable, parallel: Parallel) -> Leaf:
    """Weights that a GPU holds: its share, those that DP replicates spread evenly if so asked.

    Spreading is the reading under which Qwen3-480B fits 8 H200 at all (120 GB a GPU against 141.0;
    research/flashaccel.md, corrections).
    """
    experts = expert_bytes(rank)
    others = weight_bytes(rank) - experts
    return experts + others / relax.where(parallel.spreads_weights > 0, parallel.dp, 1.0)


def held_bytes(design: Any, rank: LayerTable, parallel: Parallel, batch: Leaf, context: Leaf):
    """Weights and KV cache of `batch` requests at `context` tokens on one GPU."""
    return weights_held_bytes(rank, parallel) + batch * kv_bytes(rank, context)


def hbm_buffer_bytes(design: Any, rank: LayerTable, batch: Leaf, context: Leaf) -> Leaf:
    """HBM that a GPU's unwritten KV cache and replicas take; 0 without flash.

    Each request leaves half a megablock and half a KV block unwritten on average, the pool of
    megablocks that are ready for write-back holds half of one a megaplane, and replicas are kept
    for every layer.
    """
    n_layer, kv_token = 0.0, 0.0
    for kind in range(rank.n_layer.shape[-1]):
        has_kv = relax.where(rank.kv_bytes_token[..., kind] > 0, rank.n_layer[..., kind], 0.0)
        n_layer = n_layer + has_kv
        kv_token = kv_token + has_kv * rank.kv_bytes_token[..., kind]
    kv_token_layer = relax.divide(kv_token, n_layer, 1.0)
    block = layout.block_tokens(design, kv_token_layer) * kv_token
    megablock = layout.megablock_bytes(design)
    unwritten = batch * (megablock + block) / 2
    ready = layout.n_megaplane(design) * megablock / 2
    layer_kv = relax.divide(batch * kv_bytes(rank, context), n_layer, 0.0)
    replicas = n_layer * layout.kv_load(design, layer_kv).replicated_bytes
    return relax.where(design.device.n_stack > 0, unwritten + ready + replicas, 0.0)
