"""A GPU node with High-Bandwidth Flash as a point of a design space."""

from typing import Any, Self

from jaxmem.core.design import Leaf, build, code, count, design, flag, leaf, part, record
from jaxmem.core.metrics import Metrics
from jaxmem.core.units import DAY_S, KIB, MIB
from jaxmem.devices.node import Node
from jaxmem.devices.parts import device
from jaxmem.llm import LayerTable, Parallel, layer_table
from jaxmem.xpu.step import EXPERT_READ

MEGAPLANE_LATTICE = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0, 96.0)
"""Divisors of the 96 planes of a die (FlashAccel Table III)."""


@design
class Design:
    """A FlashAccel node, or with no flash stacks a plain GPU node, and the model it serves."""

    device: Node = part("node: a catalog name or TOML path", parse=device("node"))
    llm: LayerTable = part("model: a zoo name, path or dict", parse=layer_table)
    parallel: Parallel = part("degrees of parallelism", default=Parallel.create())
    planes_per_megaplane: Leaf = count(
        "planes that share NAND command circuits and are read together (M)",
        lattice=MEGAPLANE_LATTICE,
        high=768,
        default=32,
        source="FlashAccel V-B",
    )
    sram_bytes: Leaf = leaf(
        "SRAM a stack that holds prefetched data",
        unit="B",
        low=0,
        default=96 * 8 * 32 * KIB + 8 * MIB,
        source="32 KB a plane and 8 MB on the base die: arXiv 2607.10186v1 Table 2",
    )
    block_pages: Leaf = count(
        "pages of an erase block",
        lattice=(64.0, 128.0, 256.0, 384.0, 512.0, 768.0),
        high=4096,
        default=256,
        source="arXiv 2607.10186v1 Table 2",
    )
    retention_s: Leaf = leaf(
        "time that data must stay readable; less of it buys endurance",
        unit="s",
        low=60.0,
        high=10 * 365 * DAY_S,
        default=3 * DAY_S,
        source="FlashAccel VII-D",
    )
    expert_read: Leaf = code(
        "experts that a step reads", EXPERT_READ, default="all", source="FlashAccel VII-B"
    )
    is_replicated: Leaf = flag(
        "selective replication of overloaded megapages to HBM", default=1, source="FlashAccel V-B"
    )
    is_prefetched: Leaf = flag(
        "prefetch into SRAM that hides tR", default=1, source="FlashAccel VI-B3"
    )

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked design.

        Raises:
            InputError: a field is unknown, missing or out of bounds, with the nearest known name.

        Example:
            >>> import jaxmem as jm
            >>> d = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")
            >>> float(d.planes_per_megaplane)
            32.0
        """
        return build(cls, values)


@record
class HbfMetrics(Metrics):
    """What a node with flash achieves, beyond `Metrics`; per GPU where a unit is a GPU's."""

    write_bytes_per_s: Leaf = leaf("KV cache written to a GPU's flash", unit="B/s")
    lifetime_s: Leaf = leaf("time to wear the flash out at that rate", unit="s")
    hbm_buffer_bytes: Leaf = leaf("HBM a GPU uses for unwritten KV and replicas", unit="B")
    area_mm2: Leaf = leaf("footprint of a GPU's flash stacks", unit="mm2")
    power_w: Leaf = leaf("average power of a GPU with its memory", unit="W")
