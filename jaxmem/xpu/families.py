"""The kinds of kernels whose efficiency curves are fitted: how each is counted, and what is free.

Priors are what kernels of the kind are known to reach (research/related.md section 5); spreads say
how little is known. A family's name and a library's make the name of a shipped curve.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxmem.core.design import Leaf
from jaxmem.devices.curve import Curve
from jaxmem.xpu import operators
from jaxmem.xpu.calibrate import Prior


class Family(NamedTuple):
    """A kind of kernel.

    Attributes:
        seconds: time by curve, device (a GPU, or a link for collectives) and counts by name.
        priors: the curve's constants that are fitted; the others keep their defaults.
    """

    seconds: Callable[..., Leaf]
    priors: dict[str, Prior]


def _constants(curve: Any) -> Curve:
    return curve if isinstance(curve, Curve) else Curve(**curve)


def _gemm(curve: Any, device: Any, *, m, n, k, is_fp8) -> Leaf:
    return operators.gemm_s(_constants(curve), device, m, n, k, is_fp8=is_fp8)


def _attention(curve: Any, device: Any, **counts: Any) -> Leaf:
    return operators.decode_attention_s(_constants(curve), device, **counts)


def _latent(curve: Any, device: Any, **counts: Any) -> Leaf:
    return operators.latent_attention_s(_constants(curve), device, **counts)


def _experts(curve: Any, device: Any, **counts: Any) -> Leaf:
    return operators.experts_s(_constants(curve), device, **counts)


def _collective(curve: Any, device: Any, **counts: Any) -> Leaf:
    return operators.collective_s(_constants(curve), device.bytes_per_s, **counts)


def _dispatch(curve: Any, device: Any, **counts: Any) -> Leaf:
    return operators.dispatch_s(_constants(curve), device.bytes_per_s, **counts)


_GEMM = {
    "fixed_s": Prior(4e-6, 1.0), "read_share": Prior(0.85, 0.3, 1.0),
    "flops_share": Prior(0.75, 0.3, 1.0), "sharpness": Prior(2.5, 0.5, 64.0),
    "chain_s": Prior(2e-10, 1.5),
}  # fmt: skip
_QUANTISED = {**_GEMM, "extra": Prior(2.0, 1.0, 100.0)}
_LINK = {
    "fixed_s": Prior(6e-6, 1.0), "read_share": Prior(0.8, 0.3, 1.0), "chain_s": Prior(1e-6, 1.0),
    "root_s": Prior(5e-6, 1.0),
}  # fmt: skip
_SENT = {
    "fixed_s": Prior(10e-6, 1.0), "read_share": Prior(0.5, 0.5, 1.0),
    "chain_s": Prior(1e-7, 1.5), "root_s": Prior(1e-6, 1.5),
}  # fmt: skip
_ATTENTION = {
    "fixed_s": Prior(8e-6, 0.5), "read_share": Prior(0.85, 0.3, 1.0),
    "flops_share": Prior(0.5, 0.5, 1.0), "sharpness": Prior(2.0, 0.5, 64.0),
    "piece_s": Prior(24e-9, 0.5), "split": Prior(20.0, 1.0, 1e6),
}  # fmt: skip
_LATENT = {
    "fixed_s": Prior(14e-6, 0.5), "read_share": Prior(0.7, 0.4, 1.0),
    "flops_share": Prior(0.6, 0.5, 1.0), "sharpness": Prior(1.5, 0.4, 64.0),
    "piece_s": Prior(2e-8, 1.0), "split": Prior(130.0, 1.0, 1e6),
}  # fmt: skip
_EXPERTS = {
    "fixed_s": Prior(35e-6, 0.5), "read_share": Prior(0.9, 0.3, 1.0),
    "flops_share": Prior(0.6, 0.5, 1.0), "sharpness": Prior(2.0, 0.5, 64.0),
    "chain_s": Prior(5e-8, 1.5), "extra": Prior(2.0, 1.0, 100.0), "padding": Prior(20.0, 1.5, 1e4),
    "skew": Prior(0.35, 0.5, 1.0), "passes": Prior(2.0, 0.7, 100.0), "crowd": Prior(5.0, 1.0, 1e4),
}  # fmt: skip

FAMILIES = {
    "gemm-bf16": Family(_gemm, _GEMM),
    "gemm-fp8": Family(_gemm, _QUANTISED),
    "gemm-fp8-block": Family(_gemm, _QUANTISED),
    "attention-bf16": Family(_attention, _ATTENTION),
    "attention-fp8": Family(_attention, _ATTENTION),
    "latent-bf16": Family(_latent, _LATENT),
    "latent-fp8": Family(_latent, _LATENT),
    "experts-bf16": Family(_experts, _EXPERTS),
    "experts-fp8": Family(_experts, _EXPERTS),
    "experts-fp8-block": Family(_experts, _EXPERTS),
    "all-reduce": Family(_collective, _LINK),
    "all-gather": Family(_collective, _LINK),
    "reduce-scatter": Family(_collective, _LINK),
    "all-to-all": Family(_collective, _LINK),
    "dispatch": Family(_dispatch, _SENT),
    "combine": Family(_dispatch, _SENT),
    "dispatch-low-latency": Family(_dispatch, _SENT),
    "combine-low-latency": Family(_dispatch, _SENT),
}
"""Kinds of kernels by name; collectives and dispatch take a link for the device."""
LINKED = frozenset(
    name for name in FAMILIES if name.startswith(("all-", "reduce-", "dispatch", "combine"))
)
"""Those whose bytes go over a link."""
