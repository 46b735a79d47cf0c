"""A serving engine: what its software makes of a GPU's rates, and how it mixes prompts into steps.

Shipped engines are fitted to served models on Hopper machines (docs/gpu.md), one set of constants
for all models; each keeps its untuned value beside it. `tuned` puts what an engine makes of rates
into a node; the rest is added by `jaxmem.xpu.step` and `jaxmem.xpu.online`.
"""

import dataclasses
from typing import Any

from jaxmem.core.design import Leaf, build, design, flag, leaf, static
from jaxmem.devices.node import Node
from jaxmem.devices.parts import text

_UNTUNED = "untuned: FlashAccel study of jaxmem, or nothing added; an engine's file says its fit"
_SHARE = {"low": 0.0, "is_open": True, "high": 1.0, "source": _UNTUNED}
_TIME = {"unit": "s", "low": 0.0, "high": 1.0, "source": _UNTUNED}


@design
class Engine:
    """Serving software on GPUs. The defaults are the untuned values."""

    name: str = static("catalog name", default="", parse=text)
    read_efficiency: Leaf = leaf(
        "share of HBM bandwidth that reads of weights and KV cache reach", default=0.95, **_SHARE
    )
    matmul_efficiency: Leaf = leaf(
        "share of peak that matrix products reach", default=0.7, **_SHARE
    )
    expert_share: Leaf = leaf(
        "of that, the share that products of experts reach", default=1.0, **_SHARE
    )
    attention_efficiency: Leaf = leaf(
        "share of the BF16 peak that attention reaches", default=0.6, **_SHARE
    )
    link_efficiency: Leaf = leaf(
        "share of the scale-up link that large messages reach", default=0.8, **_SHARE
    )
    reduce_s: Leaf = leaf("latency of half an all-reduce inside a domain", default=6e-6, **_TIME)
    cross_s: Leaf = leaf("latency of half an all-reduce across domains", default=12e-6, **_TIME)
    cross_efficiency: Leaf = leaf(
        "share of the scale-out link that a step's messages reach", default=0.8, **_SHARE
    )
    operator_s: Leaf = leaf("fixed time of an operator", default=1e-6, **_TIME)
    quantize_s: Leaf = leaf(
        "fixed time of quantising a product's input, where matrices are FP8", default=0.0, **_TIME
    )
    latent_s: Leaf = leaf("fixed time that MLA adds to a layer", default=0.0, **_TIME)
    expert_s: Leaf = leaf(
        "fixed time that routing and experts add to a layer", default=0.0, **_TIME
    )
    step_s: Leaf = leaf("fixed time of a step", default=300e-6, **_TIME)
    request_s: Leaf = leaf(
        "time of a request in a step: sampling, scheduling, sending", default=0.0, **_TIME
    )
    piece_s: Leaf = leaf(
        "time of one KV head of one request in decode attention, over all cores",
        default=0.0,
        **_TIME,
    )
    independence: Leaf = leaf(
        "tokens that choose experts independently, as a share: those of one text choose alike",
        low=0.0, is_open=True, high=1.0, default=1.0, source=_UNTUNED,
    )  # fmt: skip
    imbalance: Leaf = leaf(
        "work of the busiest GPU's experts over the mean GPU's", low=1.0, high=100.0, default=1.0,
        source=_UNTUNED,
    )  # fmt: skip
    is_mixed: Leaf = flag(
        "prompts are computed within steps of the other requests, else in passes of their own",
        default=1, source=_UNTUNED,
    )  # fmt: skip
    passes: Leaf = leaf(
        "reads and writes of a layer's activations by norms, rotations, residuals and conversions",
        low=0.0, high=1e3, default=0.0, source=_UNTUNED,
    )  # fmt: skip
    prefill_share: Leaf = leaf(
        "share of the other requests' prompt passes that a request decodes through: 1 where "
        "prompts arrive one by one, 1/2 where they come in bursts that all wait for",
        low=0.0, high=1.0, default=1.0, source=_UNTUNED,
    )  # fmt: skip
    own_passes: Leaf = leaf(
        "prompt passes that a request by itself takes to its first token", low=0.0, high=100.0,
        default=1.0, source=_UNTUNED,
    )  # fmt: skip
    queue_share: Leaf = leaf(
        "passes that it also waits for, as a share of the other requests'", low=0.0, high=1.0,
        default=0.0, source=_UNTUNED,
    )  # fmt: skip
    first_s: Leaf = leaf("time from a request's arrival to its turn", default=0.0, **_TIME)

    @classmethod
    def create(cls, **fields: Any) -> "Engine":
        """A checked `Engine`.

        Args:
            **fields: value by field name, in the field's SI unit; others keep the untuned value.

        Raises:
            InputError: unknown field, wrong type, out of bounds.
        """
        return build(cls, fields)


def tuned(node: Node, engine: Engine) -> Node:
    """The node with the rates that an engine reaches on it.

    Example:
        >>> from jaxmem import devices
        >>> node = tuned(devices.load("8xH200"), Engine.create(read_efficiency=0.9))
        >>> float(node.gpu.weight_read_efficiency)
        0.9
    """
    gpu = dataclasses.replace(
        node.gpu,
        weight_read_efficiency=engine.read_efficiency,
        kv_read_efficiency=engine.read_efficiency,
        matmul_efficiency=engine.matmul_efficiency,
        attention_efficiency=engine.attention_efficiency,
        operator_s=engine.operator_s,
        step_s=engine.step_s,
    )
    up = dataclasses.replace(
        node.scale_up, latency_s=engine.reduce_s, efficiency=engine.link_efficiency
    )
    out = dataclasses.replace(
        node.scale_out, latency_s=engine.cross_s, efficiency=engine.cross_efficiency
    )
    return dataclasses.replace(node, gpu=gpu, scale_up=up, scale_out=out)
