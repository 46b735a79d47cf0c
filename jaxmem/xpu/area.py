"""Die area and cost of an accelerator from its parts, as LLMCompass counts them.

Transistors over a process' density for logic, bit cells over an array efficiency for SRAM, a fitted
polynomial for register files, and measured areas for PHYs. Source: research/llmcompass.md section
4. Left out: packaging, test, and everything of a system that is not a die or its memory.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.chip import Chip

_FPU64, _INT32 = 685_300.0, 177_690.0  # transistors
_FPU32, _FPU16 = _FPU64 * (23 / 52) ** 2, _FPU64 * (10 / 52) ** 2
_CONTROL, _CROSSBAR = 996_200.0, 44.3e6  # of a sublane and lane of its width; of a core
_SRAM_UNIT = 512 * 1024.0  # bytes of one array
_ARRAY_EFFICIENCY = np.array([0.076, 0.142, 0.247, 0.393, 0.559, 0.704, 0.526, 0.602, 0.561])
"""Share of an SRAM array of 4 KB, 8 KB, ... 1 MB that is bit cells."""
_REGISTER_DENSITY = 1.6  # Mtransistor/mm2 of the 90 nm process that the polynomial is of


class Process(NamedTuple):
    """A logic process.

    Attributes:
        density: transistors of a mm2.
        bit_cell_mm2: of an SRAM bit.
        wafer_usd: price of a 300 mm wafer.
        defects_mm2: of a mm2.
    """

    density: Leaf
    bit_cell_mm2: Leaf
    wafer_usd: Leaf
    defects_mm2: Leaf


N7 = Process(96.3e6, 1.70e-7, 9_346.0, 1.5e-3)
N5 = Process(138.2e6, 1.25e-7, 16_988.0, 1.5e-3)  # its defects: as 7 nm, assumed


class Extras(NamedTuple):
    """What a die has beside what `Chip` says; the defaults are GA100's.

    Attributes:
        n_fp64, n_fp32, n_int32: vector units of a sublane.
        n_register: registers of a sublane.
        register_bits: of one.
        n_port: ports of its file.
        n_memory, memory_phy_mm2, memory_transistors: units, area of a PHY, a controller (HBM2e).
        n_link, link_phy_mm2, link_transistors: the same of links (NVLink 3).
    """

    n_fp64: Leaf = 8.0
    n_fp32: Leaf = 16.0
    n_int32: Leaf = 16.0
    n_register: Leaf = 16384.0
    register_bits: Leaf = 32.0
    n_port: Leaf = 4.0
    n_memory: Leaf = 6.0
    memory_phy_mm2: Leaf = 10.45
    memory_transistors: Leaf = 552.743e6
    n_link: Leaf = 12.0
    link_phy_mm2: Leaf = 1.888
    link_transistors: Leaf = 74.632e6


def die_mm2(chip: Chip, process: Process = N7, extras: Extras = Extras()) -> dict[str, Leaf]:  # noqa: B008
    """Area of a die by part.

    Gradient: exact but for whole SRAM arrays.

    Example:
        >>> ga100 = Chip.create(
        ...     n_core=128, clock_hz=1.41e9, l2_bytes=50331648, l2_bytes_per_cycle=5120,
        ...     l1_bytes=196608, n_array=4, array_rows=16, array_columns=16, mac_per_cycle=1,
        ...     vector_flops_per_cycle=512, n_vector=4, vector_width=32, lane_flops_per_cycle=4,
        ...     flops_per_exp=35, memory_bytes_per_s=2.048e12,
        ... )
        >>> round(float(sum(die_mm2(ga100).values())), 1)  # the real die has 826 mm2
        826.8
    """
    cores, sublanes, x = chip.n_core, chip.n_array, extras
    vector = x.n_fp64 * _FPU64 + x.n_fp32 * _FPU32 + x.n_int32 * _INT32
    array = _FPU16 * chip.array_rows * chip.array_columns
    control = _CONTROL * chip.vector_width
    per_core = {
        "control": sublanes * control / process.density,
        "vector": sublanes * vector / process.density,
        "array": sublanes * array / process.density,
        "register": sublanes * _register_mm2(x) * _REGISTER_DENSITY * 1e6 / process.density,
        "local_buffer": _sram_mm2(chip.l1_bytes, process),
    }
    n_unit = relax.ceil(chip.l2_bytes / _SRAM_UNIT)
    return {
        **{name: cores * area for name, area in per_core.items()},
        "crossbar": cores * _CROSSBAR / process.density,
        "global_buffer": n_unit * _sram_mm2(_SRAM_UNIT, process),
        "memory": x.n_memory * (x.memory_phy_mm2 + x.memory_transistors / process.density),
        "link": x.n_link * (x.link_phy_mm2 + x.link_transistors / process.density),
    }


def _sram_mm2(n_byte: Leaf, process: Process) -> Leaf:
    size = jnp.clip(jnp.ceil(jnp.log2(n_byte / 4096.0)), 0, len(_ARRAY_EFFICIENCY) - 1)
    efficiency = jnp.asarray(_ARRAY_EFFICIENCY, float)[size.astype(int)]
    return n_byte * 8.0 * process.bit_cell_mm2 / efficiency


def _register_mm2(x: Extras) -> Leaf:
    """At 90 nm."""
    d, w, p = x.n_register, x.register_bits, x.n_port
    um2 = 3.29e4 - 1.09e3 * d - 8.83e2 * w - 5.55e3 * p + 53.5 * d * w + 0.015 * d**2
    um2 += 0.0108 * w**2 + 0.586 * p**2 + 142.0 * d * p + 368.0 * w * p
    return um2 * 1e-6


def die_usd(area_mm2: Leaf, process: Process = N7) -> Leaf:
    """Price of a good die: a wafer's, over dies and yield. Gradient: exact.

    Example:
        >>> round(float(die_usd(826.8)))
        423
    """
    dies = np.pi * 150.0**2 / area_mm2 - 300.0 * np.pi / jnp.sqrt(2.0 * area_mm2)
    good = (1.0 + area_mm2 * process.defects_mm2 / 3.0) ** -3
    return process.wafer_usd / dies / good


def memory_usd(n_byte: Leaf, usd_per_gb: Leaf = 7.0) -> Leaf:
    """Price of memory: HBM at 7 $/GB, DDR5 at 2.4 (spot, October 2023). Gradient: exact."""
    return n_byte / 1e9 * usd_per_gb
