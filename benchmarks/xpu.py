"""Operators of a chip: mapped products a second, and against LLMCompass' own search."""

from collections.abc import Iterator

import jax
import numpy as np

from jaxmem.cli.bench import Row, best_s
from jaxmem.devices.chip import Chip
from jaxmem.xpu import matmul

N_PRODUCT = 64
PEER_S = 10.5
"""CPU seconds of LLMCompass for 8 x 4096 x 14336 on an A100 (research/llmcompass.md section 1)."""


def rows() -> Iterator[Row]:
    """What `jaxmem bench xpu` measures."""
    chip = Chip.create(
        n_core=108, clock_hz=1.41e9, l2_bytes=40 * 2**20, l2_bytes_per_cycle=5120,
        l1_bytes=192 * 1024, n_array=4, array_rows=16, array_columns=16, mac_per_cycle=1,
        vector_flops_per_cycle=512, n_vector=4, vector_width=32, lane_flops_per_cycle=4,
        flops_per_exp=35, memory_bytes_per_s=2.039e12,
    )  # fmt: skip
    m, n = np.linspace(8, 512, N_PRODUCT).round(), np.resize([4096.0, 14336.0], N_PRODUCT)
    mapped = jax.jit(
        lambda m, n: jax.lax.map(lambda x: matmul.mapped_s(chip, x[0], 4096.0, x[1]), (m, n))
    )
    second = best_s(lambda: mapped(m, n))
    yield Row("mapped products, the whole grid of tilings", N_PRODUCT / second, "products/s")
    yield Row("  against LLMCompass' search", PEER_S * N_PRODUCT / second, "x")
    plain = jax.jit(jax.vmap(lambda m, n: matmul.roofline_s(chip, m, 4096.0, n)))
    many = [np.resize(x, 1_000_000) for x in (m, n)]
    yield Row("roofline products", 1e6 / best_s(lambda: plain(*many)), "products/s")
