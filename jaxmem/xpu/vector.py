"""Element-wise and row-wise operators on a chip's vector units: softmax, normalisation, activation.

As LLMCompass times them (research/llmcompass.md section 2): a tile of the global buffer is read
from memory, spread over the cores in waves, and written back; memory and cores do not overlap.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.chip import Chip, peak_vector_flops
from jaxmem.xpu import matmul

_CUTS = np.array(list(itertools.product(2.0 ** np.arange(9), 2.0 ** np.arange(6)))).T
"""[2, tiling] rows of a core's tile, and pieces that a row is cut into."""
_NORM_FLOPS = 7.0  # of an element: mean, variance, scale and shift
_GELU_FLOPS = 10.0  # and an exponential


def _by_tiles(chip: Chip, m: Leaf, held: Leaf, cycles: Callable[[Any], Any]) -> Leaf:
    """Seconds of `m` rows, as many at once as the global buffer holds, and the rest."""
    rows = jnp.minimum(m, jnp.maximum(jnp.floor(held), 1.0))
    whole = jnp.floor(m / rows)
    rest = m - whole * rows
    more = jnp.where(rest > 0, cycles(jnp.maximum(rest, 1.0)), 0.0)
    return (whole * cycles(rows) + more) / chip.clock_hz


def _io(chip: Chip, rows: Leaf, n: Leaf, word: Leaf) -> Leaf:
    """Cycles of reading or writing rows of memory."""
    return relax.ceil(rows * n * word / (chip.memory_bytes_per_s / chip.clock_hz))


def softmax_s(chip: Chip, m: Leaf, n: Leaf, word: Leaf = 2.0) -> Leaf:
    """Seconds of a softmax over the rows of [m, n], online, without what an operator always takes.

    Gradient: relaxed in waves, exact in rates.
    """
    x, y = _CUTS[0], relax.ceil(n / _CUTS[1])
    tile = x * y * word
    fits = tile <= chip.l1_bytes
    e, vector = chip.flops_per_exp, chip.vector_flops_per_cycle
    one = 2.0 * relax.ceil(tile / chip.l2_bytes_per_cycle)
    one += relax.ceil(x * y * (3.0 * e + 7.0) / vector)
    joined = x * y * (e + 2.0) / vector + 2.0 * tile * chip.n_core / chip.l2_bytes_per_cycle
    one += jnp.log2(relax.ceil(n / y)) * joined

    def cycles(rows: Leaf) -> Leaf:
        waves = relax.ceil(relax.ceil(rows / x) * relax.ceil(n / y) / chip.n_core) + 1.0
        best = jnp.min(jnp.where(fits, waves * one, jnp.inf))
        return 2.0 * _io(chip, rows, n, word) + best

    return _by_tiles(chip, m, chip.l2_bytes / (n * word), cycles)


def norm_s(chip: Chip, m: Leaf, n: Leaf, word: Leaf = 2.0) -> Leaf:
    """Seconds of a layer normalisation over the rows of [m, n]; otherwise as `softmax_s`.

    A row is halved until a core holds one for each of its vector units.
    """
    room = chip.l1_bytes / 2.0 / word
    y = jnp.ceil(n / 2.0 ** jnp.arange(12))
    y = y[jnp.argmax(room / y >= chip.n_vector)]
    x = jnp.maximum(jnp.floor(room / y), 1.0)
    tile = x * y * word
    lanes = relax.ceil(y / chip.vector_width) * relax.ceil(x / chip.n_vector)
    work = _NORM_FLOPS * relax.ceil(lanes / chip.lane_flops_per_cycle)
    work += 2.0 * jnp.log2(chip.vector_width)
    joined = x * y / chip.vector_flops_per_cycle
    joined += 2.0 * tile * chip.n_core / chip.l2_bytes_per_cycle
    one = 4.0 * relax.ceil(tile / chip.l2_bytes_per_cycle) + work
    one += (relax.ceil(n / y) - 1.0) * joined

    def cycles(rows: Leaf) -> Leaf:
        waves = relax.ceil(relax.ceil(rows / x) * relax.ceil(n / y) / chip.n_core)
        return 2.0 * _io(chip, rows, n, word) + waves * one

    return _by_tiles(chip, m, chip.l2_bytes / (2.0 * n * word), cycles)


def gelu_s(chip: Chip, n_element: Leaf, word: Leaf = 2.0) -> Leaf:
    """Seconds of a GELU of `n_element`; otherwise as `softmax_s`."""
    lanes = chip.n_core * chip.vector_width * chip.n_vector
    n = relax.ceil(n_element / lanes) * lanes
    moved = 2.0 * n * word
    memory_s = moved / chip.memory_bytes_per_s
    memory_s += moved / (chip.l2_bytes_per_cycle * chip.clock_hz)
    return relax.maximum(n * (_GELU_FLOPS + chip.flops_per_exp) / peak_vector_flops(chip), memory_s)


def elementwise_s(
    chip: Chip, n_element: Leaf, *, flops: Leaf, n_read: Leaf = 1.0, n_write: Leaf = 1.0,
    word: Leaf = 2.0,
) -> Leaf:  # fmt: skip
    """Seconds of an operator on each of `n_element`, memory or arithmetic, whichever is longer.

    Args:
        chip: the accelerator.
        n_element: elements.
        flops: of an element.
        n_read: operands read of an element.
        n_write: results written.
        word: bytes of an element.

    Gradient: exact.
    """
    moved = (n_read + n_write) * n_element * word
    return relax.maximum(
        n_element * flops / peak_vector_flops(chip), moved / chip.memory_bytes_per_s
    )


def gated_s(chip: Chip, n_element: Leaf, word: Leaf = 2.0) -> Leaf:
    """Seconds of SiLU(gate) x up: an exponential, a division and three more FLOP an element."""
    return elementwise_s(chip, n_element, flops=chip.flops_per_exp + 4.0, n_read=2.0, word=word)


def rotary_s(chip: Chip, n_element: Leaf, word: Leaf = 2.0) -> Leaf:
    """Seconds of rotating queries and keys: three FLOP an element; its angles stay in caches."""
    return elementwise_s(chip, n_element, flops=3.0, word=word)


def unfused_attention_s(
    chip: Chip, *, n_head: Leaf, n_token: Leaf, context_tokens: Leaf, head_dim: Leaf,
    word: Leaf = 2.0,
) -> Leaf:  # fmt: skip
    """Seconds of attention whose scores go to memory: two products a head and a softmax.

    Args:
        chip: the accelerator.
        n_head: heads of all sequences.
        n_token: new tokens of a sequence.
        context_tokens: tokens that each attends to.
        head_dim: elements of a head.
        word: bytes of an element.

    Source: research/llmcompass.md section 2 (no fusion); fused kernels are in `operators`.
    """
    settings = {"n_batch": n_head, "word": word}
    scores = matmul.mapped_s(chip, n_token, head_dim, context_tokens, **settings)
    values = matmul.mapped_s(chip, n_token, context_tokens, head_dim, **settings)
    return scores + softmax_s(chip, n_head * n_token, context_tokens, word) + values
