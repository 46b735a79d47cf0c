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
from jax.core import Tracer

N_LANE = 2048
"""Points that a tile holds: enough to hide the call, few enough to stay in the cache."""

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
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
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
        leaves, treedef = jax.tree.flatten(args)
        self.compiled = _program(unwrapped(model), treedef)
        self.decode = _decoder(tuple((axis.stride, len(axis.table[0])) for axis in axes))
        self.varied = [position for axis in axes for position in axis.leaf]
        with jax.enable_x64(True):
            self.base = [_lanes(np.asarray(x)) for x in leaves]
            self.tables = [tuple(jnp.asarray(t) for t in axis.table) for axis in axes]

    def run(self, start: int, n_tile: int) -> Any:
        """The model's results at `n_tile` tiles of points from flat number `start` (< 2**52) on.

        Returns:
            The model's result with a leading axis [n_tile * N_LANE] of NumPy arrays.
        """
        tiles = [self._tile(start + i * N_LANE) for i in range(n_tile)]
        return jax.tree.map(lambda *x: np.concatenate(x) if len(x) > 1 else x[0], *tiles)

    def _tile(self, first: int) -> Any:
        with jax.enable_x64(True):
            lanes = list(self.base)
            found = self.decode(self.tables, jnp.float64(first)) if self.varied else []
            for position, columns in zip(self.varied, found, strict=True):
                lanes[position] = columns
            return jax.tree.map(np.asarray, self.compiled(lanes))


def unwrapped(model: Callable) -> Callable:
    """The model below `pointwise`."""
    return getattr(model, "__wrapped__", model)


def _lanes(value: Any) -> Any:
    """One number in every lane; of several numbers, a column each: one layout for all."""
    if value.ndim:
        return [_lanes(x) for x in value]
    return jnp.asarray(np.full(N_LANE, value))


@functools.lru_cache(maxsize=64)
def _program(model, treedef):
    """The model over lanes. Every leaf comes as an array, swept or not, so that one compiled code
    serves every space: constants would be folded, and what does not vary rounded otherwise.
    """

    def lane(*xs):
        leaves = [jnp.stack(x) if isinstance(x, list) else x for x in xs]
        return model(*jax.tree.unflatten(treedef, leaves))

    def tile(lanes):
        TRACES[model.__module__] = TRACES.get(model.__module__, 0) + 1
        return jax.vmap(lane)(*lanes)

    return jax.jit(tile)


@functools.lru_cache(maxsize=64)
def _decoder(shape):
    """From a tile's first point number to the columns of every leaf that varies."""

    def decode(tables, first):
        index = first + jnp.arange(N_LANE)
        columns = []
        for (stride, n), table in zip(shape, tables, strict=True):
            # Whole numbers in float64 divide exactly and in vectors; 64-bit integers do not.
            step = jnp.floor(index / stride)
            choice = jnp.minimum(step - n * jnp.floor(step / n), n - 1).astype(jnp.int32)
            for values in table:
                of_one = [values] if values.ndim == 1 else list(values.T)
                found = [column[choice] for column in of_one]
                columns.append(found[0] if values.ndim == 1 else found)
        return columns

    return jax.jit(decode)


def strides(sizes: Sequence[int]) -> list[int]:
    """For each axis, slowest first, the number of points that one step of it passes.

    Example:
        >>> strides([2, 3, 4])
        [12, 4, 1]
    """
    return list(itertools.accumulate([1, *reversed(sizes)], lambda a, b: a * b))[-2::-1]
