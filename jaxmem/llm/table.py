"""A model as arrays: one row a kind of layer, so that models are swept and vmapped like numbers.

Sums over kinds are written out: their order must not depend on the batch (a sweep's row equals the
scalar call). Padding rows have no layers and change no sum.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxmem.core import relax
from jaxmem.core.design import Leaf, design, leaf
from jaxmem.core.errors import InputError
from jaxmem.llm.model import ELEMENT_BYTES, KV_ELEMENT_BYTES, LLM, window_tokens
from jaxmem.llm.parallel import Parallel

DENSE_OPERATORS, EXPERT_OPERATORS = 10.0, 14.0
"""Operators of a layer that a fixed time is charged for (research/flashaccel.md section 3)."""


@design
class LayerTable:
    """Per-layer numbers of each kind of layer [kind], and the model's own []."""

    n_layer: Leaf = leaf("layers of the kind", unit="layers")  # [kind]
    n_q: Leaf = leaf("query heads")  # [kind]
    n_kv: Leaf = leaf("KV heads; 1 for MLA's latent")  # [kind]
    head_dim: Leaf = leaf("elements of a stored Key of one head")  # [kind]
    is_mla: Leaf = leaf("1 where the KV cache is MLA's latent")  # [kind]
    window_tokens: Leaf = leaf("reach of attention, infinite without a window", unit="tokens")
    kv_bytes_token: Leaf = leaf("KV cache a token, all heads", unit="B")  # [kind]
    kv_element_bytes: Leaf = leaf("width of a KV element", unit="B")  # [kind]
    state_bytes: Leaf = leaf("fixed state of a sequence", unit="B")  # [kind]
    attention_weight_bytes: Leaf = leaf("projections, norms, router", unit="B")  # [kind]
    attention_flops_token: Leaf = leaf("projections, router, state: a token", unit="FLOP")
    attention_flops_context: Leaf = leaf("attention: a token and context token", unit="FLOP")
    dense_weight_bytes: Leaf = leaf("dense FFN or shared experts", unit="B")  # [kind]
    dense_flops_token: Leaf = leaf("dense FFN or shared experts: a token", unit="FLOP")  # [kind]
    expert_weight_bytes: Leaf = leaf("one expert", unit="B")  # [kind]
    expert_flops_token: Leaf = leaf("one expert: a token", unit="FLOP")  # [kind]
    n_expert: Leaf = leaf("experts held")  # [kind]
    top_k: Leaf = leaf("experts a token visits")  # [kind]
    n_op: Leaf = leaf("operators that a fixed time is charged for")  # [kind]
    hidden: Leaf = leaf("width of the residual stream")  # []
    vocab: Leaf = leaf("vocabulary")  # []
    embedding_weight_bytes: Leaf = leaf("input embedding, 0 where tied", unit="B")  # []
    head_weight_bytes: Leaf = leaf("output head", unit="B")  # []
    head_flops_token: Leaf = leaf("output head: a token", unit="FLOP")  # []
    other_weight_bytes: Leaf = leaf("final norm, positions", unit="B")  # []
    is_fp8: Leaf = leaf("1 where matrices multiply in FP8")  # []
    activation_bytes: Leaf = leaf("width of an activation", unit="B")  # []


PER_MODEL = (
    "hidden", "vocab", "embedding_weight_bytes", "head_weight_bytes", "head_flops_token",
    "other_weight_bytes", "is_fp8", "activation_bytes",
)  # fmt: skip
_PADDING = {"window_tokens": np.inf, "n_q": 1.0, "n_kv": 1.0, "head_dim": 1.0,
            "kv_element_bytes": 1.0}  # fmt: skip


def table(llm: LLM, parallel: Parallel | None = None, n_kind: int | None = None) -> LayerTable:
    """The layer table of a model; one GPU's share of it where degrees are given.

    Args:
        llm: the model.
        parallel: resolved degrees (none 0), or None for the whole model.
        n_kind: rows of the table, so that models stack; by default the model's kinds of layer.

    Raises:
        InputError: a degree is left to the rule, or the rows are too few.

    Source: the counting formulas of `attention.py` and `ffn.py`.

    Example:
        >>> from jaxmem.llm import load
        >>> float(kv_bytes_token(table(load("llama3.1-8b"))))
        131072.0
    """
    if n_kind is not None and n_kind < len(llm.groups):
        raise InputError("n_kind", n_kind, f"at least {len(llm.groups)}, the kinds of {llm.name}")
    if parallel is not None:
        _require_resolved(parallel)
    width, attention = ELEMENT_BYTES[llm.dtype], ELEMENT_BYTES[llm.attention_dtype]
    matrix, expert = ELEMENT_BYTES[llm.matrix_dtype], ELEMENT_BYTES[llm.expert_dtype]
    kv = KV_ELEMENT_BYTES[llm.kv_dtype]
    rows = [
        {
            "n_layer": g.n_layer,
            "n_q": g.n_q,
            "n_kv": g.n_kv,
            "head_dim": g.head_dim,
            "is_mla": g.attention == "mla",
            "window_tokens": window_tokens(g),
            "kv_bytes_token": g.kv_elements * kv,
            "kv_element_bytes": kv,
            "state_bytes": g.state_bytes,
            "attention_weight_bytes": g.attention_params * attention
            + (g.router_params + g.other_params) * width,
            "attention_flops_token": 2 * (g.attention_params + g.router_params) + g.state_flops,
            "attention_flops_context": g.attention_context_flops,
            "dense_weight_bytes": g.dense_params * matrix,
            "dense_flops_token": 2 * g.dense_params,
            "expert_weight_bytes": g.expert_params * expert + g.expert_bias_params * width,
            "expert_flops_token": 2 * g.expert_params,
            "n_expert": g.n_expert,
            "top_k": g.top_k,
            "n_op": EXPERT_OPERATORS if g.n_expert else DENSE_OPERATORS,
        }
        for g in llm.groups
    ]
    columns = {name: np.asarray([row[name] for row in rows], np.float64) for name in rows[0]}
    head = llm.vocab * llm.hidden
    model = {
        "hidden": llm.hidden,
        "vocab": llm.vocab,
        "embedding_weight_bytes": 0.0 if llm.is_tied else head * width,
        "head_weight_bytes": head * width,
        "head_flops_token": 2 * head,
        "other_weight_bytes": llm.other_params * width,
        "is_fp8": llm.matrix_dtype.startswith("fp8"),
        "activation_bytes": width,
    }
    whole = LayerTable(**columns, **{k: np.float64(v) for k, v in model.items()})
    whole = pad(whole, n_kind or 0)
    return whole if parallel is None else shard(whole, parallel)


def _require_resolved(parallel: Parallel) -> None:
    for name in ("tp", "dp", "ep", "pp"):
        degree = getattr(parallel, name)
        if not isinstance(degree, Tracer) and np.any(np.less_equal(degree, 0)):
            raise InputError(f"parallel.{name}", 0, "a degree of at least 1 (`resolve` fills it)")


def shard(table: LayerTable, parallel: Parallel) -> LayerTable:
    """One GPU's share: matrices by TP, experts by EP, layers by PP, KV heads by TP, at least one.

    MLA's latent is not divided: every rank needs all of it. Heads that TP does not divide are
    rounded up, as engines replicate them. Experts that EP leaves whole are divided by what TP has
    left over (`expert_tp`). Of the pipeline it is the mean stage, with embedding and head.

    Args:
        table: the whole model.
        parallel: resolved degrees, which may be traced.

    Gradient: relaxed through the rounding of KV heads.
    Source: public reports on engines (transformers, tenstorrent/vllm: KV heads replicate above
        their number; TensorRT-LLM: MLA's latent does on every rank).

    Example:
        >>> from jaxmem.llm import load
        >>> rank = shard(table(load("llama3.1-70b")), Parallel.create(tp=16, dp=1, ep=1))
        >>> float(kv_bytes_token(rank))  # 8 KV heads on 16 ranks: one each
        40960.0
    """
    tp, ep, pp = (_beside_kinds(d) for d in (parallel.tp, parallel.ep, parallel.pp))
    within = _beside_kinds(expert_tp(parallel))
    n_kv = relax.ceil(table.n_kv / tp)
    kept = relax.where(table.is_mla > 0, 1.0, n_kv / table.n_kv)
    return dataclasses.replace(
        table,
        n_layer=table.n_layer / pp,
        n_q=table.n_q / tp,
        n_kv=n_kv,
        kv_bytes_token=table.kv_bytes_token * kept,
        state_bytes=table.state_bytes / tp,
        attention_weight_bytes=table.attention_weight_bytes / tp,
        attention_flops_token=table.attention_flops_token / tp,
        attention_flops_context=table.attention_flops_context / tp,
        dense_weight_bytes=table.dense_weight_bytes / tp,
        dense_flops_token=table.dense_flops_token / tp,
        expert_weight_bytes=table.expert_weight_bytes / within,
        expert_flops_token=table.expert_flops_token / within,
        n_expert=table.n_expert / ep,
        embedding_weight_bytes=table.embedding_weight_bytes / parallel.tp,
        head_weight_bytes=table.head_weight_bytes / parallel.tp,
        head_flops_token=table.head_flops_token / parallel.tp,
    )


def expert_tp(parallel: Parallel) -> Leaf:
    """GPUs that share each expert's matrices: what TP has beyond EP. Gradient: exact, 0 below 1."""
    return relax.maximum(parallel.tp / parallel.ep, 1.0)


def _beside_kinds(degree: Leaf) -> Leaf:
    """A degree [lane] beside columns [lane, kind]; one for all lanes as it is."""
    return jnp.asarray(degree)[..., None] if jnp.ndim(degree) else degree


def pad(table: LayerTable, n_kind: int) -> LayerTable:
    """The same model with `n_kind` rows, so that models stack; added rows have no layers."""
    missing = n_kind - table.n_layer.shape[-1]
    if missing <= 0:
        return table

    def longer(name, column):
        return np.concatenate([column, np.full(missing, _PADDING.get(name, 0.0))])

    names = [f.name for f in dataclasses.fields(table) if f.name not in PER_MODEL]
    return dataclasses.replace(table, **{n: longer(n, getattr(table, n)) for n in names})


def kind_of(table: LayerTable, kind: int) -> Any:
    """One kind's row; the model's own numbers stay."""
    names = [f.name for f in dataclasses.fields(table) if f.name not in PER_MODEL]
    return dataclasses.replace(table, **{n: getattr(table, n)[..., kind] for n in names})


def over_kinds(table: LayerTable, quantity) -> Leaf:
    """Sum of `quantity(row)` over all layers."""
    rows = (kind_of(table, kind) for kind in range(table.n_layer.shape[-1]))
    return relax.total(row.n_layer * quantity(row) for row in rows)


def expert_bytes(table: LayerTable) -> Leaf:
    """Bytes of all experts held."""
    return over_kinds(table, lambda row: row.n_expert * row.expert_weight_bytes)


def weight_bytes(table: LayerTable) -> Leaf:
    """Bytes of all weights held; a tied embedding once."""
    layers = over_kinds(table, lambda row: row.attention_weight_bytes + row.dense_weight_bytes)
    ends = table.embedding_weight_bytes + table.head_weight_bytes + table.other_weight_bytes
    return layers + expert_bytes(table) + ends


def kv_bytes_token(table: LayerTable) -> Leaf:
    """KV cache bytes that a token adds over all layers, while no window is full."""
    return over_kinds(table, lambda row: row.kv_bytes_token)


def kv_bytes(table: LayerTable, context_tokens: Leaf, *, unified: bool = False) -> Leaf:
    """KV cache bytes of a sequence, fixed states included.

    Args:
        table: the model, or one GPU's share of it.
        context_tokens: tokens of the sequence.
        unified: whether layers with a window keep pages for the whole context (one pool for all
            layers) or, by default, only a ring of their window.

    Gradient: exact; half at a full window.

    Example:
        >>> from jaxmem.llm import load
        >>> model = table(load("gpt-oss-20b"))
        >>> [32 * float(kv_bytes(model, 8192.0, unified=u)) / 2**30 for u in (False, True)]  # GiB
        [6.09375, 12.0]
    """

    def layer(row):
        kept = context_tokens if unified else relax.minimum(context_tokens, row.window_tokens)
        return row.kv_bytes_token * kept + row.state_bytes

    return over_kinds(table, layer)
