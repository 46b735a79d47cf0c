"""One program for one point and for a million.

Whether a caller asks for one design or for a design space, the same jitted program runs: tiles of a
fixed number of lanes, each lane one point, in float64. Models add nothing up over lanes, and all
that they add up is written out, so a row of a sweep equals the scalar call bit for bit, and nothing
recompiles when the number of points changes. Inside a caller's own jit, vmap or grad a model is
traced as it is, in the caller's precision.
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

N_LANE = 8192
"""Points of a sweep's tile: enough to hide the call, few enough to stay in the cache."""

N_FEW = 64
"""Points of the tile that runs where no more are asked for."""

_MAX_HELD = 64
"""Values of a slow axis whose columns are kept."""

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
    """Let `model(design, workload)` take concrete numbers exactly and tracers as they are.

    The model must broadcast: leaves [lane] (and [lane, kind]) in, leaves [lane] out.
    """

    @functools.wraps(model)
    def evaluate(*args):
        if any(isinstance(x, Tracer) for x in jax.tree.leaves(args)):
            return model(*args)
        return jax.tree.map(lambda x: x[0], Program(model, args).run(0, 1))

    _BROADCASTS.add(model)
    return cast(F, evaluate)


class Program:
    """A model bound to a base point and to what varies around it.

    Args:
        model: a pure function of `args`, written without a batch axis.
        args: the base point.
        axes: what varies, slowest first; points past the end of the space begin it again.
    """

    def __init__(self, model: Callable, args: tuple, axes: Sequence[Axis] = ()) -> None:
        leaves, treedef = jax.tree.flatten(args)
        self.compiled = _program(unwrapped(model), treedef)
        self.axes = axes
        self.leaves = [np.asarray(x) for x in leaves]
        self.base: dict[int, list] = {}
        self.held: list[dict[tuple[int, int], list]] = [{} for _ in axes]

    def run(self, start: int, n_point: int, into: Any = None) -> Any:
        """The model's results at `n_point` points from flat number `start` on.

        Args:
            start: number of the first point.
            n_point: how many.
            into: arrays to fill, of the shape of the result; new ones by default.

        Returns:
            The model's result with a leading axis [n_point] of NumPy arrays.
        """
        n_lane = N_FEW if n_point <= N_FEW else N_LANE
        for done in range(0, n_point, n_lane):
            end = min(done + n_lane, n_point)
            tile = self._tile(start + done, n_lane)
            into = blank(tile, n_point) if into is None else into
            for column, part in zip(jax.tree.leaves(into), jax.tree.leaves(tile), strict=True):
                column[done:end] = part[: end - done]
        return into

    def _tile(self, first: int, n_lane: int) -> Any:
        with jax.enable_x64(True):
            if n_lane not in self.base:
                self.base[n_lane] = [_constant(x, n_lane) for x in self.leaves]
            lanes = list(self.base[n_lane])
            for axis, held in zip(self.axes, self.held, strict=True):
                columns = _chosen(axis, held, first, n_lane)
                for position, column in zip(axis.leaf, columns, strict=True):
                    lanes[position] = column
            return jax.tree.map(np.asarray, self.compiled(lanes))


def blank(like: Any, n_point: int) -> Any:
    """Arrays [n_point], not yet filled, beside the columns of a result."""
    return jax.tree.map(lambda x: np.empty((n_point, *x.shape[1:]), x.dtype), like)


def _chosen(axis: Axis, held: dict, first: int, n_lane: int) -> list:
    """The columns of an axis's leaves at the points `first` on; a slow axis has one value there."""
    n, (step, skip) = len(axis.table[0]), divmod(first, axis.stride)
    n_step = -(-(skip + n_lane) // axis.stride)
    if n_step > 1:
        steps = np.arange(step, step + n_step) % n
        lanes = np.full(n_step, axis.stride)
        lanes[0] -= skip
        lanes[-1] -= lanes.sum() - n_lane
        chosen = np.repeat(steps, lanes) if axis.stride > 1 else steps
        return [_columns(table.T, lambda column: column[chosen], rank=1) for table in axis.table]
    key = step % n, n_lane
    columns = held.get(key)
    if columns is None:
        if len(held) >= _MAX_HELD:
            held.clear()
        columns = held[key] = [_constant(table[step % n], n_lane) for table in axis.table]
    return columns


_BROADCASTS: set[Callable] = set()
"""Models that take lanes as they are: `vmap` would give the same at twice the time to trace."""


def unwrapped(model: Callable) -> Callable:
    """The model below `pointwise`."""
    return getattr(model, "__wrapped__", model)


def _columns(value: Any, column: Callable[[Any], Any], rank: int = 0) -> Any:
    """What `column` makes of an array of `rank` dimensions; of more, [kind, ...], a list."""
    if value.ndim > rank:
        return [_columns(x, column, rank) for x in value]
    return column(value)


def _constant(value: Any, n_lane: int) -> Any:
    return _columns(value, lambda x: jnp.asarray(np.full(n_lane, x)))


@functools.lru_cache(maxsize=64)
def _program(model, treedef):
    """The model over lanes. Every leaf comes as an array, swept or not, so that one compiled code
    serves every space: constants would be folded, and what does not vary rounded otherwise.
    """

    def whole(*xs):
        leaves = [jnp.stack(x, axis=-1) if isinstance(x, list) else x for x in xs]
        return model(*jax.tree.unflatten(treedef, leaves))

    def tile(lanes):
        TRACES[model.__module__] = TRACES.get(model.__module__, 0) + 1
        n_lane = len(jax.tree.leaves(lanes)[0])
        found = whole(*lanes) if model in _BROADCASTS else jax.vmap(whole)(*lanes)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (n_lane, *jnp.shape(x)[1:])), found)

    return jax.jit(tile)


def strides(sizes: Sequence[int]) -> list[int]:
    """For each axis, slowest first, the number of points that one step of it passes.

    Example:
        >>> strides([2, 3, 4])
        [12, 4, 1]
    """
    return list(itertools.accumulate([1, *reversed(sizes)], lambda a, b: a * b))[-2::-1]
