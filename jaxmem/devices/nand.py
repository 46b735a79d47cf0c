"""A stack of High-Bandwidth Flash: geometry, cell timing, endurance, energy, SRAM and area.

Parameters are those of FlashAccel (section VII-A, Table III); the functions derive what a whole
stack holds and delivers. Left out: placement, imbalance and prefetch, which `jaxmem.hbf` adds.
"""

from math import inf, nan
from typing import Any

import jax.numpy as jnp

from jaxmem.core.design import Leaf, build, count, design, leaf, static
from jaxmem.devices.parts import text

_PAPER = "FlashAccel Table III"
_AREA = {"unit": "mm2", "low": 0.0, "high": 1e4, "may_be_unknown": True, "default": nan}
_TIME = {"unit": "s", "low": 0.0, "is_open": True, "high": 10.0}
_ENERGY = {"unit": "J/B", "low": 0.0, "high": 1e-3, "may_be_unknown": True, "default": nan}
_LONG = {"unit": "s", "low": 0.0, "is_open": True, "high": 1e10}


@design
class FlashStack:
    """One HBF stack: array dies, circuit dies and a base die."""

    name: str = static("catalog name", default="", parse=text)
    n_plane_die: Leaf = count("planes a die", high=1e5, source=_PAPER)
    n_die: Leaf = count("array dies a stack", high=1e3, source=_PAPER)
    page_bytes: Leaf = count("page size, for capacity", unit="B", high=2.0**24, source=_PAPER)
    page_payload_bytes: Leaf = count(
        "bytes a page read delivers, for bandwidth (the paper counts 4 KB as 4000 B)",
        unit="B",
        high=2.0**24,
        source="FlashAccel VII-D: 4.6 TB/s and 245.8 GB/s",
    )
    n_page_block: Leaf = count("pages a block", high=1e6, source=_PAPER)
    n_block_plane: Leaf = count("blocks a plane", high=1e7, source=_PAPER)
    read_s: Leaf = leaf("time to sense a page (t_R)", source=_PAPER, **_TIME)
    program_s: Leaf = leaf("time to program a page (t_Prog)", source=_PAPER, **_TIME)
    erase_s: Leaf = leaf("time to erase a block (t_Erase)", source="AERO, ASPLOS'24", **_TIME)
    program_erase_cycles: Leaf = leaf(
        "program/erase cycles a block endures at the base retention",
        low=0.0,
        is_open=True,
        high=1e12,
        source="FlashAccel VII-D",
    )
    retention_gain: Leaf = leaf(
        "factor on the cycles when retention is relaxed to `retention_gain_s`",
        low=1.0,
        high=1e6,
        source="FlashAccel VII-D",
    )
    retention_gain_s: Leaf = leaf("the relaxed retention", source="FlashAccel VII-D", **_LONG)
    retention_base_s: Leaf = leaf("the base retention", source="FlashAccel VII-D", **_LONG)
    read_j_per_byte: Leaf = leaf("energy of a byte read", source="FlashAccel VII-F", **_ENERGY)
    program_j_per_byte: Leaf = leaf("energy of a byte programmed", source="none found", **_ENERGY)
    erase_j_per_byte: Leaf = leaf("energy of a byte erased", source="none found", **_ENERGY)
    link_bytes_per_s: Leaf = leaf(
        "cap of the stack's interface; inf where none is stated",
        unit="B/s",
        low=0.0,
        is_open=True,
        default=inf,
        source="not stated",
    )
    sram_plane_bytes: Leaf = leaf(
        "SRAM a plane on its circuit die", unit="B", low=0.0, high=2.0**30, source="FlashAccel v1"
    )
    sram_base_bytes: Leaf = leaf(
        "SRAM on the base die", unit="B", low=0.0, high=2.0**40, source="FlashAccel v1"
    )
    plane_array_mm2: Leaf = leaf("array die area a plane", source="FlashAccel v1", **_AREA)
    plane_circuit_mm2: Leaf = leaf("circuit die area a plane", source="FlashAccel v1", **_AREA)
    sram_plane_mm2: Leaf = leaf("area of a plane's SRAM", source="FlashAccel v1", **_AREA)
    tsv_mm2: Leaf = leaf("TSV area, on either die", source="FlashAccel v1", **_AREA)
    other_circuit_mm2: Leaf = leaf(
        "rest of the circuit die, with the control of `n_megaplane_stated`",
        source="FlashAccel v1",
        **_AREA,
    )
    control_mm2_per_megaplane: Leaf = leaf(
        "command control of one megaplane, a part of the rest", source="assumed", **_AREA
    )
    n_megaplane_stated: Leaf = count(
        "megaplanes a die for which `other_circuit_mm2` is stated",
        high=1e5,
        default=3,
        source="FlashAccel V-B: M = 32 of 96 planes",
    )
    dram_die_mm2: Leaf = leaf("an HBM3e die, to compare", source="FlashAccel VII-F", **_AREA)

    @classmethod
    def create(cls, **fields: Any) -> "FlashStack":
        """A checked `FlashStack`.

        Args:
            **fields: value by field name, in the field's SI unit.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.
        """
        return build(cls, fields)


def n_plane(stack: FlashStack) -> Leaf:
    """Planes of a stack. Gradient: exact. Source: FlashAccel section IV."""
    return stack.n_plane_die * stack.n_die


def block_bytes(stack: FlashStack) -> Leaf:
    """Bytes of a block. Gradient: exact. Source: FlashAccel Table III (1 MiB)."""
    return stack.page_bytes * stack.n_page_block


def capacity_bytes(stack: FlashStack) -> Leaf:
    """Bytes of a stack. Gradient: exact. Source: FlashAccel VII-A (192 GiB)."""
    return n_plane(stack) * stack.n_block_plane * block_bytes(stack)


def read_bytes_per_s(stack: FlashStack) -> Leaf:
    """Bytes per second with every plane reading, at most the interface's.

    Gradient: exact; none to the planes once the interface binds. Source: FlashAccel VII-D.
    """
    planes = n_plane(stack) * stack.page_payload_bytes / stack.read_s
    return jnp.minimum(planes, stack.link_bytes_per_s)


def write_bytes_per_s(stack: FlashStack) -> Leaf:
    """Bytes per second with every plane programming, erase not counted.

    Gradient: exact; none to the planes once the interface binds. Source: FlashAccel VII-D.
    """
    planes = n_plane(stack) * stack.page_payload_bytes / stack.program_s
    return jnp.minimum(planes, stack.link_bytes_per_s)


def sram_bytes(stack: FlashStack) -> Leaf:
    """SRAM bytes of a stack. Gradient: exact. Source: FlashAccel v1 (32 MiB)."""
    return n_plane(stack) * stack.sram_plane_bytes + stack.sram_base_bytes


def array_die_mm2(stack: FlashStack) -> Leaf:
    """Area of an array die, mm2. Gradient: exact. Source: FlashAccel v1 (149)."""
    return stack.n_plane_die * stack.plane_array_mm2 + stack.tsv_mm2


def circuit_die_mm2(stack: FlashStack, n_megaplane: Leaf) -> Leaf:
    """Area of a circuit die, mm2, whose planes form `n_megaplane` megaplanes.

    Gradient: exact. Source: FlashAccel v1 (143 at 3); the share of control is assumed.
    """
    planes = stack.n_plane_die * (stack.plane_circuit_mm2 + stack.sram_plane_mm2)
    share = n_megaplane / stack.n_megaplane_stated - 1.0
    control = stack.control_mm2_per_megaplane * stack.n_megaplane_stated * share
    return planes + stack.tsv_mm2 + stack.other_circuit_mm2 + control


def footprint_mm2(stack: FlashStack, n_megaplane: Leaf) -> Leaf:
    """Area of the larger die, mm2: what the stack takes beside the GPU.

    Gradient: that of the larger die. Source: FlashAccel VII-F (149).
    """
    return jnp.maximum(array_die_mm2(stack), circuit_die_mm2(stack, n_megaplane))
