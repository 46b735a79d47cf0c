"""The matrix products of a step, all at once, tiled over the cores of a chip.

Matrices that read the residual stream, and those that write it, are one product each: a layer table
knows their sum and how it divides. All products of a step go through one search of tilings.
"""

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.chip import Chip
from jaxmem.xpu import matmul


class Product(NamedTuple):
    """Matrices that the same rows meet.

    Attributes:
        n_byte: of all their weights.
        flops: of all rows.
        flops_per_s: that they reach by the GPU's rates.
        m: rows that meet one of them.
        n_batch: how many there are (experts), 1 for others.
        out: share of their width that writes the residual stream.
        repeat: how often a step takes their time.
    """

    n_byte: Leaf
    flops: Leaf
    flops_per_s: Leaf
    m: Leaf
    n_batch: Leaf
    out: Leaf
    repeat: Leaf


def seconds(chip: Chip, hidden: Leaf, is_fp8: Leaf, products: Sequence[Product]) -> list[Leaf]:
    """Seconds of each product on the mapped fidelity, memory at the chip's peak included.

    Args:
        chip: the inside of a GPU.
        hidden: width of the residual stream.
        is_fp8: 1 where elements are a byte and the arrays twice as fast.
        products: of a step.
    """
    chip = dataclasses.replace(chip, mac_per_cycle=chip.mac_per_cycle * (1.0 + is_fp8))
    rows = []
    for product in products:
        n_batch = relax.maximum(product.n_batch, 1e-6)
        m = relax.maximum(product.m, 1.0)
        width = relax.divide(product.flops, 2.0 * product.m * n_batch * hidden, 0.0)
        into, back = width * (1.0 - product.out), width * product.out
        rows += [(m, hidden, into, n_batch), (m, back, hidden, n_batch)]
    columns = [jnp.stack([jnp.asarray(row[i], float) for row in rows]) for i in range(4)]

    def one(m: Leaf, k: Leaf, n: Leaf, n_batch: Leaf) -> Leaf:
        taken = matmul.mapped_s(
            chip, m, relax.maximum(k, 2.0), relax.maximum(n, 2.0), n_batch=n_batch,
            word=2.0 - is_fp8, grid=matmul.COARSE,
        )  # fmt: skip
        return relax.where(jnp.minimum(k, n) > 0, taken, 0.0)

    found = jax.vmap(one)(*columns)
    return [found[2 * i] + found[2 * i + 1] for i in range(len(products))]
