"""One program for one point and for a million.

Whether a caller asks for one design or for a design space, the same jitted program runs: tiles of a
fixed number of lanes, each lane one point, in float64. So a row of a sweep equals the scalar call
bit for bit, and nothing recompiles when the number of points changes. Inside a caller's own jit,
vmap or grad a model is traced as it is, in the caller's precision.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

N_LANE = 1024
"""Points that a tile holds: small enough that a tile's values stay in the cache."""

TRACES: dict[str, int] = {}
"""How often each model was traced by `run`, for the tests that count compiles."""


class Axis(NamedTuple):
    """A swept axis: for each of its points, the values of some leaves of the model's arguments.

    Attributes:
        leaf: positions of the leaves it sets, in `jax.tree.leaves` order.
        table: for each of those leaves, an array [point, ...].
        stride: how many points the axes after it make.
    """

    leaf: tuple[int, ...]
    table: tuple[np.ndarray, ...]
    stride: int


def pointwise[F: Callable](model: F) -> F:
    """Let `model(design, workload)` take concrete numbers exactly and tracers as they are."""

    @functools.wraps(model)
    def evaluate(*args):
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
            return model(*args)
        return jax.tree.map(lambda x: x[0], run(model, args, (), 0, 1))

    return evaluate  # type: ignore[return-value]


def run(model: Callable, args: tuple, axes: Sequence[Axis], start: int, n_tile: int) -> Any:
    """Evaluate `n_tile` tiles of a space, from flat point number `start` on.

    Args:
        model: a pure function of `args`, written without a batch axis.
        args: the base point.
        axes: what varies, slowest first; points past the end of the space repeat its last one.
        start: first flat point number (< 2**52).
        n_tile: tiles of `N_LANE` points.

    Returns:
        The model's result with a leading axis [n_tile * N_LANE] of NumPy arrays.
    """
    model = unwrapped(model)
    leaves, treedef = jax.tree.flatten(args)
    with jax.enable_x64(True):
        leaves = [jnp.asarray(x) for x in leaves]
        tables = [tuple(jnp.asarray(t) for t in axis.table) for axis in axes]
        shape = tuple((axis.leaf, axis.stride, len(axis.table[0])) for axis in axes)
        # A loop of one tile would be inlined and compiled to other code than a longer one.
        out = _program(model, treedef, shape, max(n_tile, 2))(leaves, tables, jnp.float64(start))
        return jax.tree.map(lambda x: np.asarray(x)[: n_tile * N_LANE], out)


def unwrapped(model: Callable) -> Callable:
    """The model below `pointwise`."""
    return getattr(model, "__wrapped__", model)


@functools.lru_cache(maxsize=64)
def _program(model, treedef, shape, n_tile):
    def tile(leaves, tables, first):
        TRACES[model.__module__] = TRACES.get(model.__module__, 0) + 1
        index = first + jnp.arange(N_LANE)
        lanes = [jnp.broadcast_to(x, (N_LANE, *jnp.shape(x))) for x in leaves]
        for (positions, stride, n), table in zip(shape, tables, strict=True):
            # Whole numbers in float64 divide exactly and in vectors; 64-bit integers do not.
            step = jnp.floor(index / stride)
            choice = jnp.minimum(step - n * jnp.floor(step / n), n - 1).astype(jnp.int32)
            for position, values in zip(positions, table, strict=True):
                lanes[position] = values[choice]
        # The barrier keeps a swept and an unswept leaf alike, so that both compile to one code.
        lanes = jax.lax.optimization_barrier(lanes)
        return jax.vmap(lambda *xs: model(*jax.tree.unflatten(treedef, xs)))(*lanes)

    def program(leaves, tables, start):
        firsts = start + N_LANE * jnp.arange(n_tile, dtype=jnp.float64)
        out = jax.lax.map(lambda first: tile(leaves, tables, first), firsts)
        return jax.tree.map(lambda x: x.reshape(n_tile * N_LANE, *x.shape[2:]), out)

    return jax.jit(program)


def strides(sizes: Sequence[int]) -> list[int]:
    """For each axis, slowest first, the number of points that one step of it passes.

    Example:
        >>> strides([2, 3, 4])
        [12, 4, 1]
    """
    return list(itertools.accumulate([1, *reversed(sizes)], lambda a, b: a * b))[-2::-1]
