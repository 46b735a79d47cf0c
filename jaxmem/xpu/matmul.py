"""Matrix products on a chip: the best of a grid of tilings, and the roofline beside it.

A product is cut into tiles of the global buffer, those into tiles of a core's local buffer, and
those over a core's systolic arrays; LLMCompass searches such tilings and times each by stepping
through its tiles. Here every tiling of its grid is timed at once, by counts instead of steps
(research/llmcompass.md section 5). Gradients flow through rates and clocks; whole tiles and waves
are relaxed. Left out, as there: memory latency, and any unit but one chip.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.chip import Chip, peak_array_flops, peak_vector_flops

_SPLITS = ((1, 1, 4), (1, 2, 2), (1, 4, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1))
_MAX_WHOLE_K = 12288.0
"""Longest K that is cut into 1, 2, 4 or 8; a longer one into pieces of about 1,024 to 8,192."""


class Tiling(NamedTuple):
    """Columns of the grid of tilings; static."""

    l2_m: Any
    l2_n: Any  # times l2_m
    k_cut: Any  # 0..3
    l1: Any
    l1_cut: Any
    split: Any  # [3, tiling] of a core's arrays over M, N, K, for four of them


def _grid() -> Tiling:
    columns = itertools.product(
        (64, 128, 256, 512, 1024, 2048), (0.5, 1.0, 2.0), range(4), (32, 64, 128, 256),
        (1, 2, 4, 8, 16, 32), _SPLITS,
    )  # fmt: skip
    m, n, k, one, cut, split = zip(*columns, strict=True)
    return Tiling(*(np.array(x, float) for x in (m, n, k, one, cut)), np.array(split, float).T)


GRID = _grid()


def _coarse() -> Tiling:
    *sizes, split = zip(*_FEW, strict=True)
    return Tiling(*(np.array(x, float) for x in sizes), np.array(split, float).T)


_FEW = (
    (256, 1, 0, 32, 16, (2, 2, 1)),
    (2048, 1, 0, 32, 2, (2, 2, 1)),
    (512, 1, 3, 64, 32, (1, 4, 1)),
    (1024, 1, 0, 128, 32, (1, 4, 1)),
    (1024, 2, 0, 32, 1, (2, 2, 1)),
    (64, 2, 1, 32, 32, (2, 2, 1)),
    (256, 2, 0, 32, 8, (2, 2, 1)),
    (512, 1, 0, 64, 32, (1, 4, 1)),
    (1024, 1, 0, 128, 8, (1, 4, 1)),
    (128, 1, 0, 32, 32, (2, 2, 1)),
    (256, 1, 0, 32, 8, (2, 2, 1)),
    (2048, 2, 0, 32, 1, (2, 2, 1)),
    (128, 2, 3, 32, 32, (2, 2, 1)),
    (256, 1, 0, 32, 32, (2, 2, 1)),
    (2048, 2, 1, 32, 1, (2, 2, 1)),
    (512, 1, 0, 64, 16, (1, 4, 1)),
    (64, 1, 0, 32, 32, (1, 2, 2)),
    (256, 2, 0, 32, 4, (2, 2, 1)),
    (512, 2, 0, 64, 16, (1, 4, 1)),
    (512, 1, 0, 64, 8, (1, 4, 1)),
    (256, 2, 0, 32, 16, (2, 2, 1)),
    (64, 2, 3, 32, 32, (2, 2, 1)),
    (256, 0.5, 0, 32, 16, (2, 2, 1)),
    (1024, 2, 3, 32, 8, (2, 2, 1)),
    (1024, 2, 0, 128, 8, (1, 4, 1)),
    (512, 2, 0, 32, 4, (2, 2, 1)),
    (64, 1, 1, 32, 32, (1, 2, 2)),
    (128, 2, 1, 32, 32, (2, 2, 1)),
    (512, 0.5, 0, 64, 16, (1, 4, 1)),
    (1024, 2, 0, 128, 16, (1, 4, 1)),
    (2048, 2, 3, 64, 4, (1, 4, 1)),
    (128, 2, 3, 32, 16, (2, 2, 1)),
    (512, 2, 0, 128, 16, (1, 4, 1)),
    (512, 1, 1, 128, 16, (1, 4, 1)),
    (1024, 2, 1, 128, 32, (1, 4, 1)),
    (512, 0.5, 0, 64, 32, (1, 4, 1)),
    (1024, 0.5, 3, 64, 32, (1, 4, 1)),
    (2048, 2, 2, 32, 2, (2, 2, 1)),
    (64, 1, 0, 32, 32, (2, 2, 1)),
    (512, 2, 0, 32, 1, (2, 2, 1)),
    (256, 2, 2, 32, 8, (2, 2, 1)),
    (64, 1, 3, 32, 32, (1, 2, 2)),
    (2048, 2, 1, 64, 1, (1, 4, 1)),
    (128, 2, 1, 64, 16, (1, 4, 1)),
    (64, 2, 0, 64, 32, (1, 4, 1)),
    (2048, 2, 0, 128, 8, (1, 4, 1)),
    (128, 2, 2, 32, 32, (1, 2, 2)),
    (1024, 2, 3, 32, 16, (2, 2, 1)),
)
COARSE = _coarse()
"""The tilings that matter for products of today's models (sweeps/xpu/tilings.py): at most a few
tenths of a percent slower than the whole grid's best there, and 200 times quicker to search."""


def roofline_s(chip: Chip, m: Leaf, k: Leaf, n: Leaf, *, n_batch: Leaf = 1.0, word: Leaf = 2.0):
    """Seconds that the peak rates alone allow: memory, or arithmetic. Gradient: exact.

    Args:
        chip: the accelerator.
        m: rows of the first matrix.
        k: its columns.
        n: columns of the second.
        n_batch: products.
        word: bytes of an element.
    """
    moved = word * n_batch * (m * k + k * n + m * n)
    memory_s = moved / jnp.minimum(chip.memory_bytes_per_s, chip.l2_bytes_per_cycle * chip.clock_hz)
    return relax.maximum(memory_s, 2.0 * n_batch * m * k * n / peak_array_flops(chip))


def mapped_s(
    chip: Chip, m: Leaf, k: Leaf, n: Leaf, *, n_batch: Leaf = 1.0, word: Leaf = 2.0,
    grid: Tiling | None = None,
):  # fmt: skip
    """Seconds of the best tiling; several products run one after another or as one along K.

    Args: as `roofline_s`, and
        grid: the tilings to choose from; by default all of LLMCompass', or `COARSE`.

    Gradient: relaxed in tiles and waves, exact in rates; of the tiling that is best.
    Source: research/llmcompass.md section 2 (the grid and its rules) and 5 (counts for steps).
    """
    grid = GRID if grid is None else grid
    one = n_batch * _one_s(chip, m, k, n, word, grid)
    more = (n_batch - 1.0) * m * n * word / chip.memory_bytes_per_s
    joined = _one_s(chip, m, k * n_batch, n, word, grid) + more
    return jnp.where(n_batch > 1, jnp.minimum(one, joined), one)


def _one_s(chip: Chip, m: Leaf, k: Leaf, n: Leaf, word: Leaf, grid: Tiling) -> Leaf:
    cycles, fits = tiling_cycles(chip, m, k, n, word, grid)
    best = jnp.min(jnp.where(fits, cycles, jnp.inf)) / chip.clock_hz
    moved = word * (m * k + k * n + m * n)
    vector = relax.maximum(
        2.0 * m * n * k / peak_vector_flops(chip), moved / chip.memory_bytes_per_s
    )
    return jnp.where((m <= 1) | (n <= 1), vector, best)


def tiling_cycles(chip: Chip, m: Leaf, k: Leaf, n: Leaf, word: Leaf, g: Tiling) -> tuple[Any, Any]:
    """[tiling] cycles, and whether the tiling fits the buffers."""
    g = Tiling(*(jnp.asarray(column, float) for column in g))  # in the caller's precision
    l2_n = g.l2_m * g.l2_n
    few = 2.0**g.k_cut
    many = jnp.maximum(jnp.floor(k / (1024.0 * 2.0**g.k_cut)), 1.0)
    part = jnp.ceil(k / jnp.where(k <= _MAX_WHOLE_K, few, many))
    l2_k = 2.0 ** jnp.floor(jnp.log2(part) + 1e-9)
    held = g.l2_m * l2_n + l2_n * l2_k + g.l2_m * l2_k
    l1_k = jnp.ceil(l2_k / g.l1_cut)
    fits = (held <= chip.l2_bytes / word) & (g.l1 <= jnp.minimum(g.l2_m, l2_n))
    fits &= g.l1**2 + 2.0 * g.l1 * l1_k <= chip.l1_bytes / word / 2.0
    is_double = held <= chip.l2_bytes / word / 2.0
    rate = chip.memory_bytes_per_s / chip.clock_hz

    def io(x: Leaf, y: Leaf) -> Leaf:
        return relax.ceil(x * y * word / rate)

    n_m, n_n, n_k = (jnp.ceil(x / y) for x, y in ((m, g.l2_m), (n, l2_n), (k, l2_k)))
    vector = chip.vector_flops_per_cycle
    total, last, first = 0.0, 0.0, io(jnp.minimum(m, g.l2_m), jnp.minimum(k, l2_k))
    first += io(jnp.minimum(k, l2_k), jnp.minimum(n, l2_n))
    is_alone = n_m * n_n == 1
    same, new = (n_m - 1.0) / n_m, (n_n - 1.0) / (n_m * n_n)
    begin, later = 1.0 / (n_m * n_n), 1.0 - 1.0 / n_k
    for kind in itertools.product((0, 1), repeat=3):
        (mm, c_m), (nn, c_n), (kk, c_k) = (
            _part(size, tile, is_rest)
            for (size, tile), is_rest in zip(((m, g.l2_m), (n, l2_n), (k, l2_k)), kind, strict=True)
        )
        n_tile = c_m * c_n * c_k
        compute = _core_cycles(chip, mm, nn, kk, l1_k, word, g)
        mk, kn, mn = io(mm, kk), io(kk, nn), io(mm, nn)
        reduce = relax.ceil(mm * nn / (vector * chip.n_core))
        reduce += 2.0 * relax.ceil(mm * nn * word / chip.l2_bytes_per_cycle)
        both = mk + kn
        fresh = jnp.where(n_m == 1, kn, both)
        for is_later, share in ((False, 1.0 - later), (True, later)):
            busy = compute + (reduce if is_later else 0.0)
            back = jnp.where(is_alone, 0.0, mn) if is_later else 0.0
            for read, weight in ((mk, same), (fresh, new), (both, begin)):
                overlapped = relax.maximum(read + back, busy)
                step = jnp.where(is_double, overlapped, read + back + busy)
                total += jnp.where(n_tile > 0, n_tile * share * weight * step, 0.0)
        total += jnp.where(is_alone, 0.0, n_tile * mn)
        is_last = _is_last(kind, m, n, k, g.l2_m, l2_n, l2_k)
        finish = compute + jnp.where(n_k > 1, reduce, 0.0)
        last = jnp.where(is_last, finish, last)
        total += jnp.where(is_last & is_alone, mn, 0.0)
        total -= jnp.where(is_last, _counted(finish, both, is_double), 0.0)
    return first + total + last, fits


def _counted(finish: Leaf, read: Leaf, is_double: Any) -> Leaf:
    """What the sum over all tiles has of the first read or the last computation too many."""
    return jnp.where(is_double, relax.maximum(finish, read), finish + read)


def _part(size: Leaf, tile: Leaf, is_rest: int) -> tuple[Leaf, Leaf]:
    """Extent of the whole tiles along a dimension, or of what is left, and how many there are."""
    whole = jnp.floor(size / tile)
    rest = size - whole * tile
    if is_rest:
        return jnp.maximum(rest, 1.0), jnp.where(rest > 0, 1.0, 0.0)
    return jnp.minimum(tile, size) + 0.0 * whole, whole


def _is_last(kind: tuple[int, ...], m, n, k, l2_m, l2_n, l2_k) -> Any:
    found = True
    for is_rest, size, tile in zip(kind, (m, n, k), (l2_m, l2_n, l2_k), strict=True):
        has_rest = size - jnp.floor(size / tile) * tile > 0
        found = found & (has_rest if is_rest else ~has_rest)
    return found


def _core_cycles(chip: Chip, m, n, k, l1_k, word, g: Tiling) -> Leaf:
    """Cycles of a global-buffer tile over the cores: waves of local-buffer tiles."""
    x, y, z = jnp.minimum(g.l1, m), jnp.minimum(g.l1, n), jnp.minimum(l1_k, k)
    n_m, n_n, n_k = relax.ceil(m / x), relax.ceil(n / y), relax.ceil(k / z)
    n_tile = n_m * n_n * n_k
    cores = jnp.minimum(chip.n_core, n_tile)
    n_wave = relax.ceil(n_tile / chip.n_core)
    split = g.split * jnp.asarray([1.0, 1.0, 1.0])[:, None]
    array = _array_cycles(
        chip, jnp.ceil(x / split[0]), jnp.ceil(y / split[1]), jnp.ceil(z / split[2])
    )
    vector = chip.vector_flops_per_cycle
    once = relax.ceil(array + (split[2] - 1.0) * x * y / vector)
    added = once + relax.ceil(x * y / vector)
    n_once = jnp.where(n_k > 1, jnp.minimum(jnp.floor(n_m * n_n / chip.n_core), n_wave), n_wave)
    compute = n_once * once + (n_wave - n_once) * added
    last = jnp.where(n_k > 1, added, once)
    holds = cores >= n_m * n_n
    read = jnp.where(cores >= n_m, m * k, jnp.minimum(n_tile * x * z, m * k * n_n)) + k * n
    read += jnp.where(holds, 0.0, (n_k - 1.0) * m * n)
    written = m * n * jnp.where(holds, 1.0, n_k)
    per = word / chip.l2_bytes_per_cycle
    first = per * (jnp.minimum(cores, n_m) * x * z + relax.ceil(cores / n_m) * z * y)
    first = jnp.minimum(first, per * read)
    return first + relax.maximum(per * read - first, compute - last) + last + per * written


def _array_cycles(chip: Chip, m, n, k) -> Leaf:
    """Cycles of one systolic array, output stationary.

    Large sub-tiles by their work, at 99 or 98 % of the array; small ones by filling and draining.
    """
    rows, columns, mac = chip.array_rows, chip.array_columns, chip.mac_per_cycle
    longest = jnp.maximum(rows, columns)
    work = m * n * k / (rows * columns)
    fill = relax.ceil(m / rows) * relax.ceil(n / columns) * (k + rows + columns - 2.0) - 1.0
    found = relax.ceil(fill / mac)
    tall, wide = m >= rows, n >= columns
    full = work / longest
    for is_case, weight, least, share in (
        (tall & wide, full, 64.0, 0.98),
        (tall & wide, full, 128.0, 0.99),
        (tall & ~wide, k * m / rows / longest, 64.0, n / columns / 0.98),
        (~tall & wide, k * n / columns / longest, 64.0, m / rows / 0.98),
        (~tall & ~wide, k / longest, 64.0, m / rows * n / columns / 0.98),
    ):
        found = jnp.where(is_case & (weight >= least), relax.ceil(work / share / mac), found)
    return found


mapped = jax.jit(mapped_s)
