"""One transformer step, decode or prefill, as the sum of its operators.

Every operator takes the longer of its memory time and its compute time; collectives and fixed
overheads are added (research/flashaccel.md section 3). Where the operands lie is the caller's
business: `Memory` says how long reading them takes, so that HBM and flash share one step. At the
mapped fidelity matrix products are tiled over a chip instead. Overlap between operators is left
out.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf, leaf, part, record
from jaxmem.core.errors import InputError
from jaxmem.devices.chip import Chip
from jaxmem.devices.engine import Engine
from jaxmem.devices.gpu import Gpu
from jaxmem.devices.link import transfer_s
from jaxmem.devices.node import Node, hbm_bytes_per_s
from jaxmem.llm.parallel import Parallel
from jaxmem.llm.table import LayerTable, expert_tp, kind_of, shard
from jaxmem.xpu import collectives, tiling
from jaxmem.xpu.tiling import Product

EXPERT_READ = {"all": 0, "touched": 1}
"""Which local experts a step reads: all of them, or those that its tokens are expected to touch."""


FIDELITIES = ("roofline", "mapped")
"""How closely matrix products are modelled: by the GPU's rates, or tiled over a chip's cores."""


PLAIN = Engine()
"""An engine that adds nothing to the operators."""
_PARTS = ("attention", "kv", "ffn", "expert", "collective", "overhead", "head")
_DOWN = 1 / 3
"""Share of a gated FFN's width in its last matrix."""
_PRODUCTS = 4.0
"""Products of a layer whose inputs are quantised: query-key-value, output, up, down."""


class Memory(NamedTuple):
    """How long a GPU takes to read its operands, each a function of bytes to seconds.

    Attributes:
        weight_s: reading weights, latency aside.
        kv_s: reading the KV cache of one layer, latency aside.
        stall_s: access latency exposed when an operator reads so many bytes.
    """

    weight_s: Callable[[Any], Any]
    kv_s: Callable[[Any], Any]
    stall_s: Callable[[Any], Any]


@record
class StepTime:
    """A step's time by cause, and what it moved and computed, per GPU."""

    parts: dict[str, Any] = part("seconds by cause")
    weight_bytes: Leaf = leaf("weights read by a GPU", unit="B")
    kv_bytes: Leaf = leaf("KV cache read by a GPU", unit="B")
    link_bytes: Leaf = leaf("bytes sent by a GPU to others", unit="B")


def total_s(time: StepTime) -> Leaf:
    """Seconds of the whole step."""
    return sum(time.parts.values())


def gpu_of(device: Node | Gpu) -> Gpu:
    """The GPU of a node, or the GPU itself."""
    return device.gpu if isinstance(device, Node) else device


def hbm(device: Node | Gpu) -> Memory:
    """Weights and KV cache in HBM: bandwidth only, its 100 ns latency being hidden."""
    gpu = gpu_of(device)
    rate = hbm_bytes_per_s(device) if isinstance(device, Node) else gpu.hbm_bytes_per_s
    return Memory(
        weight_s=lambda n: n / (gpu.weight_read_efficiency * rate),
        kv_s=lambda n: n / (gpu.kv_read_efficiency * rate),
        stall_s=lambda n: 0.0 * n,
    )


def step(
    table: LayerTable,
    device: Node | Gpu,
    parallel: Parallel,
    n_token: Leaf,
    context_tokens: Leaf,
    *,
    n_request: Leaf,
    memory: Memory,
    expert_read: Leaf = 0,
    engine: Engine = PLAIN,
    fidelity: str = "roofline",
    chip: Chip | None = None,
) -> StepTime:
    """Time of one step that computes `n_token` new tokens of `n_request` requests.

    Decode has `n_token == n_request`. Prefill of n tokens over a cached context has more tokens
    than requests; each of its tokens attends to the cached context and, on average, to half of
    the new tokens of its request. Pipeline stages work on as many equal parts of the batch in
    turn, so that all are busy and a token takes the time of every stage at one part.

    Args:
        table: the whole model, not sharded.
        device: the GPUs and links of a node, or one GPU by itself.
        parallel: resolved degrees: tp, dp, ep, pp.
        n_token: new tokens on the whole node, spread evenly over the dp replicas.
        context_tokens: tokens already cached, per request.
        n_request: requests that the new tokens belong to.
        memory: how long reads take.
        expert_read: code of `EXPERT_READ`.
        engine: fixed times, and how tokens spread over experts; none and evenly by default. Its
            rates are the device's (`devices.engine.tuned` puts them there).
        fidelity: one of `FIDELITIES` (static).
        chip: the inside of each GPU, which the mapped fidelity tiles products over.

    Returns:
        Seconds by cause (attention, kv, ffn, expert, collective, head, overhead), and bytes.

    Gradient: exact where smooth, half to each side at a roofline ridge; counts relaxed.
    Source: research/flashaccel.md section 3; expected experts touched N(1-(1-k/N)^B).
    """
    if fidelity not in FIDELITIES:
        raise InputError("fidelity", fidelity, "one of " + ", ".join(FIDELITIES), known=FIDELITIES)
    if fidelity == "mapped" and chip is None:
        raise InputError("chip", None, "a Chip for fidelity mapped (devices of kind chip)")
    gpu = gpu_of(device)
    peak = relax.where(table.is_fp8 > 0, gpu.fp8_flops, gpu.bf16_flops)
    matmul_flops = gpu.matmul_efficiency * peak
    attention_flops = gpu.attention_efficiency * gpu.bf16_flops
    rank = relax.once(shard(table, parallel))
    n_part = n_token / parallel.pp
    n_local, request_local = n_part / parallel.dp, n_request / (parallel.pp * parallel.dp)
    # Tokens that meet at one set of all experts: the whole node, or a part where ep is smaller.
    n_routed = n_part * parallel.ep * expert_tp(parallel) / (parallel.tp * parallel.dp)
    new_tokens = relax.divide(n_token, n_request, 1.0)

    def of_kind(layer, whole):
        """All layers of one kind: products, seconds of the rest by cause, and bytes moved."""
        repeat = whole.n_layer
        attended = relax.minimum(context_tokens + (new_tokens - 1) / 2, layer.window_tokens)
        cached = relax.minimum(context_tokens, layer.window_tokens)
        kv_read = request_local * (layer.kv_bytes_token * cached + layer.state_bytes)
        kv_flops = n_local * layer.attention_flops_context * attended
        read_s = memory.kv_s(kv_read) + engine.piece_s * request_local * layer.n_kv
        kv_s = relax.maximum(read_s, kv_flops / attention_flops)

        share = _experts_read(layer, whole, n_routed * engine.independence, expert_read)
        n_read = layer.n_expert * share
        expert_bytes = n_read * layer.expert_weight_bytes
        visits = n_routed * layer.top_k / parallel.ep
        message = n_local * table.hidden * table.activation_bytes
        has_expert = jnp.sign(layer.n_expert)
        sent, link_s = 0.0, 0.0
        if isinstance(device, Node):
            sent, link_s = collectives.layer(device, parallel, message, layer.top_k, has_expert)

        weight = layer.attention_weight_bytes + layer.dense_weight_bytes + expert_bytes
        fixed_s = layer.n_op * gpu.operator_s + layer.is_mla * engine.latent_s
        fixed_s += engine.passes * message / gpu.hbm_bytes_per_s
        fixed_s += has_expert * engine.expert_s + table.is_fp8 * _PRODUCTS * engine.quantize_s
        second = {
            "kv": repeat * (kv_s + memory.stall_s(kv_read)),
            "collective": repeat * link_s,
            "overhead": repeat * fixed_s,
        }
        heads = relax.divide(
            2.0 * table.hidden * layer.n_q * layer.head_dim, layer.attention_flops_token, 0.5
        )
        out = relax.where(layer.is_mla > 0, 0.5, relax.minimum(heads, 0.9))
        products = {
            "attention": Product(
                layer.attention_weight_bytes, n_local * layer.attention_flops_token,
                matmul_flops, n_local, 1.0, out, repeat,
            ),
            "ffn": Product(
                layer.dense_weight_bytes, n_local * layer.dense_flops_token, matmul_flops,
                n_local, 1.0, _DOWN, repeat,
            ),
            "expert": Product(
                expert_bytes, visits * layer.expert_flops_token,
                engine.expert_share * matmul_flops, relax.divide(visits, n_read, 1.0), n_read,
                _DOWN, repeat * engine.imbalance,
            ),
        }  # fmt: skip
        return products, (second, (repeat * weight, repeat * kv_read, repeat * sent))

    kinds = range(table.n_layer.shape[-1])
    found = [of_kind(kind_of(rank, k), kind_of(table, k)) for k in kinds]
    rest_s, n_bytes = relax.total(rest for _, rest in found)
    head = Product(
        rank.head_weight_bytes, request_local * rank.head_flops_token, matmul_flops,
        request_local, 1.0, 0.0, 1.0,
    )  # fmt: skip
    named = [*(item for products, _ in found for item in products.items()), ("head", head)]
    flops_s = [product.flops / product.flops_per_s for _, product in named]
    if chip is not None and fidelity == "mapped":
        flops_s = tiling.seconds(chip, table.hidden, table.is_fp8, [p for _, p in named])
    product_s = dict.fromkeys(("attention", "ffn", "expert", "head"), 0.0)
    for (name, product), compute_s in zip(named, flops_s, strict=True):
        one_s = relax.maximum(memory.weight_s(product.n_byte), compute_s)
        product_s[name] += product.repeat * (one_s + memory.stall_s(product.n_byte))
    part_s = {name: {**product_s, **rest_s}[name] for name in _PARTS}
    part_s["overhead"] += gpu.step_s + engine.request_s * n_request / parallel.dp
    if isinstance(device, Node):
        message = n_local * table.hidden * table.activation_bytes
        stages = parallel.pp * parallel.tp * parallel.dp
        hop_s = transfer_s(collectives.link(device, stages), message / parallel.tp)
        part_s["collective"] += relax.where(jnp.greater(parallel.pp, 1), parallel.pp * hop_s, 0.0)
    part_s, (weight_bytes, kv_bytes, link_bytes) = relax.once((part_s, n_bytes))
    return StepTime(
        parts=part_s,
        weight_bytes=weight_bytes + rank.head_weight_bytes,
        kv_bytes=kv_bytes,
        link_bytes=link_bytes,
    )


def experts_touched(n_expert: Leaf, top_k: Leaf, n_token: Leaf) -> Leaf:
    """Expected number of distinct experts that `n_token` tokens use: N (1 - (1 - k/N)^B).

    Uniform routing; equals `top_k` for one token and never exceeds `n_expert`.

    Example:
        >>> round(float(experts_touched(256.0, 8.0, 32.0)), 1)
        163.3
    """
    visits_all = jnp.greater_equal(top_k, n_expert)  # also where there are no experts
    share = relax.where(visits_all, 0.5, relax.divide(top_k, n_expert, 0.0))
    touched = -n_expert * jnp.expm1(n_token * jnp.log1p(-share))
    return relax.where(visits_all, n_expert * jnp.sign(n_token), touched)


def _experts_read(layer, whole, n_routed, expert_read):
    touched = experts_touched(whole.n_expert, whole.top_k, n_routed)
    share = relax.divide(touched, whole.n_expert, 0.0)
    return relax.where(expert_read == EXPERT_READ["touched"], share, 1.0)
