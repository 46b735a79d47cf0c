"""A node: GPUs of one kind, their links, and the flash stacks placed beside or instead of HBM.

CSI keeps every HBM stack and adds flash; CLI replaces five HBM stacks of six (FlashAccel VII-A). A
plain node has no stack; it still carries a flash part, so that all nodes are one pytree and vmap.
Every quantity below is per GPU.
"""

from typing import Any

from jaxmem.core.design import Leaf, build, count, design, leaf, part, static
from jaxmem.devices import nand
from jaxmem.devices.gpu import Gpu
from jaxmem.devices.link import Link
from jaxmem.devices.nand import FlashStack
from jaxmem.devices.parts import device, text


@design
class Node:
    """GPUs that serve one model together."""

    name: str = static("catalog name", default="", parse=text)
    integration: str = static("how flash is attached, in words", default="", parse=text)
    gpu: Gpu = part("a GPU (kind gpu)", parse=device("gpu"))
    n_gpu: Leaf = count("GPUs of the node", high=1e6, source="FlashAccel VII-A")
    n_gpu_domain: Leaf = count(
        "GPUs of one scale-up domain", high=1e6, source="DGX-H200: 8 in one NVLink domain"
    )
    scale_up: Link = part("link inside a domain (kind link)", parse=device("link"))
    scale_out: Link = part("link between domains (kind link)", parse=device("link"))
    flash: FlashStack = part(
        "a flash stack (kind flash); not counted where n_stack is 0", parse=device("flash")
    )
    n_stack: Leaf = count("flash stacks a GPU", low=0.0, high=1e3, source="FlashAccel VII-A")
    hbm_share: Leaf = leaf(
        "share of the GPU's HBM stacks that are kept", low=0.0, high=1.0, source="FlashAccel VII-A"
    )

    @classmethod
    def create(cls, **fields: Any) -> "Node":
        """A checked `Node`.

        Args:
            **fields: value by field name, in the field's SI unit; a part as a record, a catalog
                name or a path.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.

        Example:
            >>> from jaxmem.devices import Node
            >>> pair = dict(gpu="h200", scale_up="nvlink4", scale_out="rdma-400g")
            >>> node = Node.create(
            ...     **pair, flash="hbf-flashaccel", n_gpu=2, n_gpu_domain=2, n_stack=1, hbm_share=1
            ... )
            >>> float(n_plane(node))
            768.0
        """
        return build(cls, fields)


def hbm_bytes(node: Node) -> Leaf:
    """HBM bytes a GPU. Gradient: exact. Source: FlashAccel VII-A (CLI keeps 1 stack of 6)."""
    return node.gpu.hbm_bytes * node.hbm_share


def hbm_bytes_per_s(node: Node) -> Leaf:
    """HBM bytes per second a GPU. Gradient: exact. Source: FlashAccel VII-A."""
    return node.gpu.hbm_bytes_per_s * node.hbm_share


def flash_bytes(node: Node) -> Leaf:
    """Flash bytes a GPU. Gradient: exact. Source: FlashAccel VII-D (CSI 1152 GiB)."""
    return node.n_stack * nand.capacity_bytes(node.flash)


def flash_read_bytes_per_s(node: Node) -> Leaf:
    """Flash bytes read per second a GPU. Gradient: exact. Source: FlashAccel VII-D (4.6 TB/s)."""
    return node.n_stack * nand.read_bytes_per_s(node.flash)


def flash_write_bytes_per_s(node: Node) -> Leaf:
    """Flash bytes written per second a GPU. Gradient: exact. Source: FlashAccel VII-D."""
    return node.n_stack * nand.write_bytes_per_s(node.flash)


def flash_sram_bytes(node: Node) -> Leaf:
    """SRAM bytes of a GPU's flash stacks. Gradient: exact. Source: FlashAccel v1."""
    return node.n_stack * nand.sram_bytes(node.flash)


def n_plane(node: Node) -> Leaf:
    """Flash planes a GPU. Gradient: exact. Source: FlashAccel IV (CSI 4608, CLI 3840)."""
    return node.n_stack * nand.n_plane(node.flash)
