"""One program for one point and for a million.

Whether a caller asks for one design or for a design space, the same jitted program runs: tiles of a
fixed number of lanes, each lane one point, in float64. So a row of a sweep equals the scalar call
bit for bit, and nothing recompiles when the number of points changes. Inside a caller's own jit,
vmap or grad a model is traced as it is, in the caller's precision.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

N_LANE = 1024
"""Points that a tile holds: small enough that a tile's values stay in the cache."""

TRACES: dict[str, int] = {}
"""How often each model was traced by a `Program`, for the tests that count compiles."""


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
        return jax.tree.map(lambda x: x[0], Program(model, args).run(0, 1))

    return cast(F, evaluate)


class Program:
    """A model bound to a base point and to what varies around it.

    Args:
        model: a pure function of `args`, written without a batch axis.
        args: the base point.
        axes: what varies, slowest first; points past the end of the space repeat its last one.
    """

    def __init__(self, model: Callable, args: tuple, axes: Sequence[Axis] = ()) -> None:
        self.model = unwrapped(model)
        leaves, self.treedef = jax.tree.flatten(args)
        self.shape = tuple((axis.leaf, axis.stride, len(axis.table[0])) for axis in axes)
        with jax.enable_x64(True):
            # Two equal rows, of which a tile reads one by its number: what does not vary must not
            # look constant, or it is hoisted out of the loop and rounded otherwise than when swept.
            self.base = [
                jnp.asarray(np.broadcast_to(x, (2, N_LANE, *np.shape(x))).copy()) for x in leaves
            ]
            self.tables = [tuple(jnp.asarray(t) for t in axis.table) for axis in axes]

    def run(self, start: int, n_tile: int) -> Any:
        """The model's results at `n_tile` tiles of points from flat number `start` (< 2**52) on.

        Returns:
            The model's result with a leading axis [n_tile * N_LANE] of NumPy arrays.
        """
        with jax.enable_x64(True):
            # A loop of one tile would be inlined and compiled to other code than a longer one.
            compiled = _program(self.model, self.treedef, self.shape, max(n_tile, 2))
            out = compiled(self.base, self.tables, jnp.float64(start))
            return jax.tree.map(lambda x: np.asarray(x)[: n_tile * N_LANE], out)


def unwrapped(model: Callable) -> Callable:
    """The model below `pointwise`."""
    return getattr(model, "__wrapped__", model)


@functools.lru_cache(maxsize=64)
def _program(model, treedef, shape, n_tile):
    def tile(base, tables, first):
        TRACES[model.__module__] = TRACES.get(model.__module__, 0) + 1
        index = first + jnp.arange(N_LANE)
        row = (first / N_LANE % 2).astype(jnp.int32)
        lanes = [jax.lax.dynamic_index_in_dim(x, row, keepdims=False) for x in base]
        for (positions, stride, n), table in zip(shape, tables, strict=True):
            # Whole numbers in float64 divide exactly and in vectors; 64-bit integers do not.
            step = jnp.floor(index / stride)
            choice = jnp.minimum(step - n * jnp.floor(step / n), n - 1).astype(jnp.int32)
            for position, values in zip(positions, table, strict=True):
                lanes[position] = values[choice]
        # A leaf of several numbers comes as so many columns: one layout, five times the speed.
        columns = [[x[:, i] for i in range(x.shape[1])] if x.ndim > 1 else x for x in lanes]
        # The barrier keeps the decoding of a point out of the model's own fusions.
        columns = jax.lax.optimization_barrier(columns)

        def lane(*xs):
            leaves = [jnp.stack(x) if isinstance(x, list) else x for x in xs]
            return model(*jax.tree.unflatten(treedef, leaves))

        return jax.vmap(lane)(*columns)

    def program(base, tables, start):
        firsts = start + N_LANE * jnp.arange(n_tile, dtype=jnp.float64)
        out = jax.lax.map(lambda first: tile(base, tables, first), firsts)
        return jax.tree.map(lambda x: x.reshape(n_tile * N_LANE, *x.shape[2:]), out)

    return jax.jit(program)


def strides(sizes: Sequence[int]) -> list[int]:
    """For each axis, slowest first, the number of points that one step of it passes.

    Example:
        >>> strides([2, 3, 4])
        [12, 4, 1]
    """
    return list(itertools.accumulate([1, *reversed(sizes)], lambda a, b: a * b))[-2::-1]
