"""Energy, endurance and area of a GPU with flash.

Reads are charged per bit (HBF 8 pJ, HBM3e 2.99 pJ: FlashAccel VII-F); the GPU's core draws its
board power less that of its HBM at full rate while a step runs. Program and erase energy have no
source and are left out: the bytes written are about a thousandth of those read.
"""

from typing import Any

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.nand import footprint_mm2
from jaxmem.devices.node import flash_bytes


def step_j(design: Any, latency_s: Leaf, flash_read: Leaf, hbm_read: Leaf) -> dict[str, Leaf]:
    """Joules of one step on one GPU by cause: flash, hbm, core.

    Args:
        design: an `hbf.Design`.
        latency_s: how long the step takes.
        flash_read: bytes read from flash.
        hbm_read: bytes read from HBM.
    """
    gpu, flash = design.device.gpu, design.device.flash
    core_w = gpu.tdp_w - gpu.hbm_bytes_per_s * gpu.hbm_j_per_byte
    return {
        "flash": flash_read * flash.read_j_per_byte,
        "hbm": hbm_read * gpu.hbm_j_per_byte,
        "core": core_w * latency_s,
    }


def program_erase_cycles(design: Any) -> Leaf:
    """P/E cycles at the design's retention time, a power law through the two points known.

    1e5 at three years, ten times that at three days (FlashAccel VII-D, conservatively; up to 50
    times in Cai et al. 2012). The power law between them is assumed.
    """
    flash = design.device.flash
    span = jnp.log(flash.retention_base_s / flash.retention_gain_s)
    shortened = jnp.log(flash.retention_base_s / design.retention_s)
    return flash.program_erase_cycles * jnp.exp(jnp.log(flash.retention_gain) * shortened / span)


def lifetime_s(design: Any, write_bytes_per_s: Leaf) -> Leaf:
    """Seconds until a GPU's flash has taken its P/E cycles; NaN without flash or writes.

    Write amplification is 1 by block isolation (FlashAccel VI-A).
    """
    endurance_bytes = flash_bytes(design.device) * program_erase_cycles(design)
    return relax.divide(endurance_bytes, write_bytes_per_s, jnp.nan)


def area_mm2(design: Any) -> Leaf:
    """Footprint of a GPU's flash stacks: the larger of the array die and the circuit die.

    The circuit die shrinks as more planes share command control (larger M); how much of it is
    control is assumed (see the catalog), so that the published 143 mm2 hold at M = 32.
    """
    flash = design.device.flash
    n_megaplane_die = flash.n_plane_die / design.planes_per_megaplane
    return design.device.n_stack * footprint_mm2(flash, n_megaplane_die)
