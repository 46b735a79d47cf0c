"""Devices: DRAM-PIM, High-Bandwidth Flash, GPUs, links and nodes, and a catalog with sources."""

from jaxmem.devices.catalog import Row, load, names, rows, stack
from jaxmem.devices.dram import PimDevice, PimEnergy, PimTiming
from jaxmem.devices.gpu import Gpu
from jaxmem.devices.link import Link
from jaxmem.devices.nand import FlashStack
from jaxmem.devices.node import Node

__all__ = [
    "FlashStack",
    "Gpu",
    "Link",
    "Node",
    "PimDevice",
    "PimEnergy",
    "PimTiming",
    "Row",
    "load",
    "names",
    "rows",
    "stack",
]
