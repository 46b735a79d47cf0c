"""Design spaces as data: which fields vary, over which values.

A space maps field paths to values: numbers, ranges (`between`), choice names, or names of whole
models, devices and policies. Everything becomes arrays over the leaves of (design, workload), so a
program reads a point of the space by its number and nothing is built per point.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmem.core import design as records
from jaxmem.core.errors import InputError
from jaxmem.core.program import Axis, strides
from jaxmem.llm import LayerTable, pad

WORKLOAD = "workload"


@dataclasses.dataclass(frozen=True)
class Between:
    """Every value from `low` to `high`; on a logarithmic scale if `log`."""

    low: float
    high: float
    log: bool = False


def between(low: float, high: float, *, log: bool = False) -> Between:
    """A range for a search or for samples.

    Raises:
        InputError: the bounds are not in order, or not positive on a logarithmic scale.

    Example:
        >>> between(0.02, 0.2, log=True)
        Between(low=0.02, high=0.2, log=True)
    """
    if not low < high or (log and low <= 0):
        raise InputError("between", (low, high), "low < high, and low > 0 where log")
    return Between(float(low), float(high), log)


def linspace(low: float, high: float, n: int) -> np.ndarray:
    """`n` evenly spaced values from `low` to `high`, both included."""
    return np.linspace(low, high, n)


def logspace(low: float, high: float, n: int) -> np.ndarray:
    """`n` values from `low` to `high`, both included, evenly spaced in their logarithm."""
    return np.geomspace(low, high, n)


class Field(NamedTuple):
    """One path of a space, resolved against the base point."""

    path: str  # as the user wrote it
    spec: records.Spec
    values: tuple[Any, ...]  # checked values; empty for a range
    labels: tuple[Any, ...]  # what the user wrote, for coordinates
    range: Between | None

    @property
    def is_number(self) -> bool:
        """Whether the field is a number, not a choice or a whole record."""
        return self.spec.kind == "leaf" and not self.spec.choices


class Space(NamedTuple):
    """A space bound to a base point."""

    base: tuple[Any, Any]  # (design, workload), padded so that every choice fits
    field: tuple[Field, ...]
    leaf: tuple[tuple[int, ...], ...]  # leaf positions that each field sets


def bind(design: Any, workload: Any, space: Mapping[str, Any]) -> Space:
    """Check a space against a base point.

    Raises:
        InputError: unknown path (with the nearest), an empty axis, a value out of bounds, twice
            the same field.
    """
    if not space:
        raise InputError("space", {}, "at least one field to vary")
    fields = tuple(_field(design, workload, path, values) for path, values in space.items())
    base, fields = _pad((design, workload), fields)
    leaf = tuple(_positions(base, _full(base, f.path)) for f in fields)
    seen: dict[int, str] = {}
    for f, positions in zip(fields, leaf, strict=True):
        for position in positions:
            if position in seen:
                raise InputError("space", f.path, f"each field once (also set by {seen[position]})")
            seen[position] = f.path
    return Space(base=base, field=fields, leaf=leaf)


def grid(space: Space) -> tuple[tuple[Axis, ...], tuple[int, ...]]:
    """One axis a field, and the sizes; the last field varies fastest.

    Raises:
        InputError: a field is a range, which has no grid.
    """
    for f in space.field:
        if f.range is not None:
            raise InputError(f.path, f.range, "a list of values (or n_sample for a range)")
    sizes = tuple(len(f.values) for f in space.field)
    axes = tuple(
        Axis(leaf=leaf, table=_table(f.values), stride=stride)
        for f, leaf, stride in zip(space.field, space.leaf, strides(sizes), strict=True)
    )
    return axes, sizes


def sample(space: Space, n: int, seed: int) -> tuple[np.ndarray, ...]:
    """For each field, `n` draws: a Latin hypercube over ranges, values and choices alike.

    Returns:
        Per field: values [n] for a range, indices [n] into its values otherwise.
    """
    rng = np.random.default_rng(seed)
    return tuple(_draw(f, (rng.permutation(n) + rng.random(n)) / n) for f in space.field)


def points(space: Space, columns: Sequence[np.ndarray]) -> Axis:
    """The points given by one column per field, as a single axis.

    Args:
        space: a bound space.
        columns: per field, values [n] if it is a range, else indices [n] into its values.
    """
    leaf, table = [], []
    for f, positions, column in zip(space.field, space.leaf, columns, strict=True):
        leaf += positions
        if f.range is not None:
            table.append(np.asarray(column, np.float64))
        else:
            table += [values[np.asarray(column, np.int64)] for values in _table(f.values)]
    return Axis(leaf=tuple(leaf), table=tuple(table), stride=1)


def at(space: Space, choice: Sequence[Any]) -> tuple[Any, Any]:
    """(design, workload) with each field set: to a value for a range, else to its values[index]."""
    base = {"design": space.base[0], WORKLOAD: space.base[1]}
    for f, pick in zip(space.field, choice, strict=True):
        value = np.float64(pick) if f.range is not None else f.values[int(pick)]
        owner, path = _full(space.base, f.path)
        key = WORKLOAD if owner == 1 else "design"
        base[key] = records.put(base[key], path, value)
    return base["design"], base[WORKLOAD]


def _draw(f: Field, unit: np.ndarray) -> np.ndarray:
    if f.range is None:
        return np.minimum((unit * len(f.values)).astype(np.int64), len(f.values) - 1)
    low, high = f.range.low, f.range.high
    return low * (high / low) ** unit if f.range.log else low + (high - low) * unit


def _full(base: tuple[Any, Any], path: str) -> tuple[int, str]:
    """Which of (design, workload) a path lies in, and its full path there."""
    head, _, rest = path.partition(".")
    known = [*dict(records.paths(base[0])), *(f"{WORKLOAD}.{p}" for p, _ in records.paths(base[1]))]
    try:
        if head == WORKLOAD and rest:
            return 1, records.resolve(base[1], rest)[0]
        return 0, records.resolve(base[0], path)[0]
    except InputError:
        raise InputError("path", path, "a field of the design or workload", known=known) from None


def _field(design: Any, workload: Any, path: str, values: Any) -> Field:
    owner, full = _full((design, workload), path)
    spec = records.resolve((design, workload)[owner], full)[1]
    if isinstance(values, Between):
        for bound in (values.low, values.high):
            records.coerce(dataclasses.replace(spec, is_integer=False), bound, path)
        return Field(path, spec, (), (), values)
    if isinstance(values, str) or not isinstance(values, Sequence | np.ndarray):
        raise InputError(path, values, "a list of values, or between(low, high)")
    listed = list(values)
    if not listed:
        raise InputError(path, listed, "at least one value")
    checked = tuple(records.coerce(spec, v, path) for v in listed)
    labels = tuple(v.item() if isinstance(v, np.generic) else v for v in listed)
    return Field(path, spec, checked, labels, None)


def _pad(base, fields):
    """Give every layer table, in the base and on the axes, as many rows as the longest."""
    tables = jax.tree.leaves((base, [f.values for f in fields]), is_leaf=_is_table)
    n_kind = max((t.n_layer.shape[-1] for t in tables if _is_table(t)), default=0)

    def padded(x):
        return pad(x, n_kind) if _is_table(x) else x

    base = jax.tree.map(padded, base, is_leaf=_is_table)
    fields = tuple(f._replace(values=tuple(padded(v) for v in f.values)) for f in fields)
    return base, fields


def _is_table(x: Any) -> bool:
    return isinstance(x, LayerTable)


def _table(values: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Per leaf of the values, an array [value, ...]."""
    rows = [jax.tree.leaves(v) for v in values]
    return tuple(np.stack([np.asarray(row[i]) for row in rows]) for i in range(len(rows[0])))


def _positions(base: tuple[Any, Any], place: tuple[int, str]) -> tuple[int, ...]:
    owner, path = place
    want = path.split(".")
    found = []
    for position, (keys, _) in enumerate(jax.tree_util.tree_flatten_with_path(base)[0]):
        names = [getattr(k, "name", getattr(k, "idx", None)) for k in keys]
        if names[0] == owner and names[1 : 1 + len(want)] == want:
            found.append(position)
    return tuple(found)
