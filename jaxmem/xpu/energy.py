"""Joules of an operator: arithmetic, memory and links, each by its own price.

A byte of HBM has a published price (the GPU's `hbm_j_per_byte`), a byte between chips one of 5
pJ/bit (Micron, HotInfra'26). No measured joules per FLOP were found: the price of a FLOP is what is
left of the board's power at the BF16 peak, an upper bound, and is marked derived.
"""

from typing import Any

from jaxmem.core.design import Leaf
from jaxmem.devices.gpu import Gpu

LINK_J_PER_BYTE = 5.0e-12 * 8
"""Chip to chip (Micron HotInfra'26, as HBFSim quotes it; research/related.md)."""


def flop_j(gpu: Gpu, is_fp8: Leaf = 0.0) -> Leaf:
    """Joules of a FLOP, derived: (TDP - HBM at full rate) / peak. Gradient: exact.

    Example:
        >>> from jaxmem import devices
        >>> round(float(flop_j(devices.load("h200"))) * 1e12, 2)  # pJ
        0.59
    """
    core_w = gpu.tdp_w - gpu.hbm_bytes_per_s * gpu.hbm_j_per_byte
    return core_w / (gpu.bf16_flops + (gpu.fp8_flops - gpu.bf16_flops) * is_fp8)


def operator_j(
    gpu: Gpu, *, flop: Leaf, moved: Leaf, sent: Leaf = 0.0, is_fp8: Leaf = 0.0
) -> dict[str, Any]:
    """Joules of an operator by cause.

    Args:
        gpu: whose prices.
        flop: arithmetic.
        moved: bytes of HBM.
        sent: bytes over links.
        is_fp8: 1 where the arithmetic is FP8.
    """
    return {
        "compute": flop * flop_j(gpu, is_fp8),
        "hbm": moved * gpu.hbm_j_per_byte,
        "link": sent * LINK_J_PER_BYTE,
    }
