"""A GPU as rates, capacities and efficiencies: what a roofline and an energy account need.

Peaks are dense (no structured sparsity). Efficiencies are the share of a peak that kernels reach;
the shipped ones were set before any comparison, and their notes say what was measured. Left out:
cores, caches and clocks, which the mapped fidelity of `jaxmem.xpu` describes.
"""

from math import nan
from typing import Any

from jaxmem.core.design import Leaf, build, design, leaf, static
from jaxmem.devices.parts import text

_RATE = {"low": 0.0, "is_open": True, "high": 1e18, "unit": "FLOP/s"}
_SHARE = {"low": 0.0, "is_open": True, "high": 1.0}
_EFFICIENCY = "FlashAccel study of jaxmem, untuned set"


@design
class Gpu:
    """One GPU with its HBM, as sold."""

    name: str = static("catalog name", default="", parse=text)
    bf16_flops: Leaf = leaf("dense BF16 peak", source="datasheet", **_RATE)
    fp8_flops: Leaf = leaf(
        "dense FP8 peak; the BF16 peak where there is no FP8", source="datasheet", **_RATE
    )
    hbm_bytes: Leaf = leaf(
        "HBM capacity", unit="B", low=0.0, is_open=True, high=1e15, source="datasheet"
    )
    hbm_bytes_per_s: Leaf = leaf(
        "HBM peak bandwidth", unit="B/s", low=0.0, is_open=True, high=1e15, source="datasheet"
    )
    hbm_j_per_byte: Leaf = leaf(
        "energy of a byte read from HBM",
        unit="J/B",
        low=0.0,
        high=1e-6,
        may_be_unknown=True,
        default=nan,
        source="Antepara SC'25 as cited by FlashAccel VII-F",
    )
    tdp_w: Leaf = leaf(
        "thermal design power", unit="W", low=0.0, is_open=True, high=1e5, source="datasheet"
    )
    weight_read_efficiency: Leaf = leaf(
        "share of HBM bandwidth that weight reads reach (eta_w)", source=_EFFICIENCY, **_SHARE
    )
    kv_read_efficiency: Leaf = leaf(
        "share of HBM bandwidth that KV reads reach (eta_m)", source=_EFFICIENCY, **_SHARE
    )
    matmul_efficiency: Leaf = leaf(
        "share of peak that matrix products reach (eta_g)", source=_EFFICIENCY, **_SHARE
    )
    attention_efficiency: Leaf = leaf(
        "share of peak that attention reaches (eta_a)", source=_EFFICIENCY, **_SHARE
    )
    operator_s: Leaf = leaf(
        "fixed time of an operator (t_op)", unit="s", low=0.0, high=1.0, source=_EFFICIENCY
    )
    step_s: Leaf = leaf(
        "fixed time of a step (t_fixed)", unit="s", low=0.0, high=10.0, source=_EFFICIENCY
    )

    @classmethod
    def create(cls, **fields: Any) -> "Gpu":
        """A checked `Gpu`.

        Args:
            **fields: value by field name, in the field's SI unit.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.
        """
        return build(cls, fields)


def ridge_flops_per_byte(gpu: Gpu) -> Leaf:
    """Arithmetic intensity, in FLOP/B, above which BF16 work is bound by compute.

    Gradient: exact. Source: the roofline model.
    """
    return gpu.bf16_flops / gpu.hbm_bytes_per_s
