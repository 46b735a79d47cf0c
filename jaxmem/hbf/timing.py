"""How long flash takes: a read lasts tR times the fullest megaplane (FlashAccel III-A, IV).

Bandwidth, latency and the SRAM that hides it. Programs and erases share the planes with reads, so
write-back time is added to a step.
"""

from typing import Any

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.node import flash_write_bytes_per_s, hbm_bytes_per_s, n_plane
from jaxmem.hbf import layout
from jaxmem.hbf.layout import Load
from jaxmem.xpu.step import Memory, hbm


def read_s(design: Any, load: Load) -> Leaf:
    """Seconds to read a load from flash, its replicas from HBM meanwhile.

    The SRAM must hold twice what is in flight; less of it caps the rate at sram / (2 tR)
    (FlashAccel's rule: more than 2 x bandwidth x tR).
    """
    flash = design.device.flash
    flash_s = load.fullest * flash.read_s
    fill_s = load.mean * layout.n_megaplane(design) * layout.megapage_bytes(design)
    sram_bytes = design.sram_bytes * design.device.n_stack
    sram_rate = sram_bytes / (2 * flash.read_s)
    starved_s = fill_s / relax.at_least(sram_rate, 1.0)
    limited_s = relax.where(design.is_prefetched > 0, starved_s, 0.0)
    hbm_s = load.replicated_bytes / hbm_bytes_per_s(design.device)
    return relax.maximum(relax.maximum(flash_s, limited_s), hbm_s)


def stall_s(design: Any, n_bytes: Leaf) -> Leaf:
    """Access latency that an operator exposes: tR for every hyperpage in turn, 0 with prefetch.

    Without prefetch one hyperpage is outstanding at a time (research/flashaccel.md section 2).
    """
    flash = design.device.flash
    hyperpage_bytes = relax.at_least(n_plane(design.device), 1.0) * flash.page_payload_bytes
    exposed_s = relax.ceil(n_bytes / hyperpage_bytes) * flash.read_s
    return relax.where(design.is_prefetched > 0, 0.0, exposed_s)


def program_s(design: Any, n_bytes: Leaf) -> Leaf:
    """Seconds to program `n_bytes` across all planes of a GPU, erases aside (pre-erased blocks)."""
    return relax.divide(n_bytes, flash_write_bytes_per_s(design.device), 0.0)


def memory(design: Any) -> Memory:
    """Where operands are read from: flash if the node has any, else HBM.

    The read efficiencies of the GPU's HBM are its own measurements and do not apply to flash.
    """
    plain = hbm(design.device)
    has_flash = design.device.n_stack > 0

    def select(from_flash, from_hbm):
        return lambda n: relax.where(has_flash, from_flash(n), from_hbm(n))

    return Memory(
        weight_s=select(lambda n: read_s(design, layout.weight_load(design, n)), plain.weight_s),
        kv_s=select(lambda n: read_s(design, layout.kv_load(design, n)), plain.kv_s),
        stall_s=select(lambda n: stall_s(design, n), plain.stall_s),
    )
