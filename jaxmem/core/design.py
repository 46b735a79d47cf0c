"""Frozen dataclasses that are pytrees, whose fields say what they are.

`@design` marks parameters and `@record` marks results; both are immutable, keyword-only and
registered with JAX. Every field is made by `leaf` (a traced number), `part` (a nested record) or
`static` (a Python value that fixes a shape or a branch), and carries its unit, bounds or choices,
meaning and source. Sweeps, searches, the command line and the documentation all read these specs,
so a field is described once. Nothing is validated on construction: JAX rebuilds records with
tracers in them. `build` validates, once, at the boundary.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer

from jaxmem.core.errors import InputError

type Leaf = Any
"""A traced number: a Python or NumPy number outside jit, an array or a tracer inside.

JAX also rebuilds records with placeholders in their leaves, so no narrower type would be true."""

_KEY = "jaxmem"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """What a field says about itself.

    Attributes:
        kind: `leaf`, `part` or `static`.
        doc: its meaning, with the paper's symbol where there is one.
        unit: its unit, in the notation of `jaxmem.core.units`; `1` for a pure number.
        low: smallest value accepted (inclusive unless `is_open`).
        high: largest value accepted.
        choices: code by name, for fields that select between alternatives.
        lattice: the values a design may take, where not every value between the bounds is one.
        is_integer: whether only whole numbers are valid.
        may_be_unknown: whether NaN ("not known") is accepted.
        source: where the value or the rule comes from.
        alias: other names by which users know the field.
        parse: turns what a user writes (a name, a path) into the field's value.
    """

    kind: str
    doc: str
    unit: str = "1"
    low: float = -math.inf
    high: float = math.inf
    is_open: bool = False
    choices: Mapping[str, int] = dataclasses.field(default_factory=dict)
    lattice: tuple[float, ...] = ()
    is_integer: bool = False
    may_be_unknown: bool = False
    source: str = ""
    alias: tuple[str, ...] = ()
    parse: Callable[[Any], Any] | None = None

    def rule(self) -> str:
        """The accepted values in words, for an error message."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        noun = "a whole number" if self.is_integer else "a number"
        unit = "" if self.unit == "1" else f" {self.unit}"
        low = (
            f"{'>' if self.is_open else '>='} {_written(self.low)}" if self.low > -math.inf else ""
        )
        high = f"<= {_written(self.high)}" if self.high < math.inf else ""
        bounds = " and ".join(b for b in (low, high) if b)
        return f"{noun} {bounds}{unit}" if bounds else f"{noun}{unit}"


def leaf(doc: str, *, default: Any = dataclasses.MISSING, **spec: Any) -> Any:
    """A traced number, with its `Spec`."""
    return _field(Spec(kind="leaf", doc=doc, **spec), default)


def count(doc: str, *, default: Any = dataclasses.MISSING, low: float = 1.0, **spec: Any) -> Any:
    """A traced whole number, at least `low`."""
    return _field(Spec(kind="leaf", doc=doc, low=low, is_integer=True, **spec), default)


def code(
    doc: str, choices: Mapping[str, int], *, default: Any = dataclasses.MISSING, **spec: Any
) -> Any:
    """A traced int32 that selects one of `choices`, written by users as its name."""
    return _field(Spec(kind="leaf", doc=doc, choices=choices, **spec), default)


def flag(doc: str, *, default: Any = dataclasses.MISSING, **spec: Any) -> Any:
    """A traced int32, 0 or 1, written by users as true or false."""
    return code(doc, {"false": 0, "true": 1}, default=default, **spec)


def part(doc: str, *, default: Any = dataclasses.MISSING, **spec: Any) -> Any:
    """A nested record."""
    return _field(Spec(kind="part", doc=doc, **spec), default)


def static(doc: str, *, default: Any = dataclasses.MISSING, **spec: Any) -> Any:
    """A Python int, bool, str, enum or tuple: never traced; another value means another compile."""
    return _field(Spec(kind="static", doc=doc, **spec), default)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    eq_default=False,
    field_specifiers=(leaf, count, code, flag, part, static),
)
def record[T](cls: type[T]) -> type[T]:
    """Make `cls` an immutable pytree (results and state)."""
    frozen: Any = dataclasses.dataclass(frozen=True, kw_only=True, eq=False)(cls)
    kinds = {f.name: f.metadata[_KEY].kind for f in dataclasses.fields(frozen)}
    jax.tree_util.register_dataclass(
        frozen,
        data_fields=[name for name, kind in kinds.items() if kind != "static"],
        meta_fields=[name for name, kind in kinds.items() if kind == "static"],
    )
    return cast(type[T], frozen)


@dataclass_transform(
    frozen_default=True,
    kw_only_default=True,
    eq_default=False,
    field_specifiers=(leaf, count, code, flag, part, static),
)
def design[T](cls: type[T]) -> type[T]:
    """Make `cls` an immutable pytree (parameters, made by its `create`)."""
    return cast(type[T], record(cls))


def is_record(value: Any) -> bool:
    """Whether `value` is an instance of a class made by `@design` or `@record`."""
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and bool(specs(value))


def specs(cls: Any) -> dict[str, Spec]:
    """The spec of every field of a design or record class (or instance), in order."""
    fields = dataclasses.fields(cls)
    return {f.name: f.metadata[_KEY] for f in fields if _KEY in f.metadata}


def build[T](cls: type[T], values: Mapping[str, Any], *, where: str = "") -> T:
    """Make a `cls` from what a user wrote, or raise one clear line.

    Args:
        cls: a `@design` class.
        values: value by field name (or alias): numbers, choice names, or what `parse` takes.
        where: file and line, for errors.

    Raises:
        InputError: unknown or missing field, wrong type, out of bounds.
    """
    by_name = specs(cls)
    alias = {a: name for name, spec in by_name.items() for a in spec.alias}
    given: dict[str, Any] = {}
    for key, value in values.items():
        name = alias.get(key, key)
        if name not in by_name:
            raise InputError("field", key, f"a field of {cls.__name__}", known=by_name, where=where)
        given[name] = coerce(by_name[name], value, name, where=where)
    for f in dataclasses.fields(cast(Any, cls)):
        if f.name in given:
            continue
        spec = by_name[f.name]
        if f.default is dataclasses.MISSING:
            rule = spec.rule() if spec.kind == "leaf" else spec.doc
            raise InputError(f.name, None, f"{rule} (it has no default)", where=where)
        if spec.kind == "leaf" or spec.parse is not None:
            given[f.name] = coerce(spec, f.default, f.name, where=where)
    return cls(**given)


def coerce(spec: Spec, value: Any, name: str, *, where: str = "") -> Any:
    """`value` as the field holds it: a NumPy number in bounds, or the parsed part.

    Tracers pass unchanged, so that designs can be built inside jit.

    Raises:
        InputError: wrong type, unknown choice, out of bounds.
    """
    if isinstance(value, Tracer):
        return value
    if spec.kind == "part" and spec.parse is None and not is_record(value):
        raise InputError(name, _plain(value), f"a record ({spec.doc})", where=where)
    if spec.kind != "leaf":
        return spec.parse(value) if spec.parse else value
    if spec.choices:
        return _choice(spec, value, name, where)
    array = _number(spec, value, name, where)
    numbers = array[~np.isnan(array)] if spec.may_be_unknown else array
    low_ok = numbers > spec.low if spec.is_open else numbers >= spec.low
    whole_ok = (numbers == np.floor(numbers)) if spec.is_integer else True
    if not np.all(low_ok & (numbers <= spec.high) & whole_ok):
        raise InputError(name, _plain(value), spec.rule(), where=where)
    return array[()]


def paths(value: Any, prefix: str = "") -> Iterator[tuple[str, Spec]]:
    """Every leaf of a record and of its parts, as (dotted path, spec)."""
    for name, spec in specs(value).items():
        child = getattr(value, name)
        if spec.kind == "leaf":
            yield prefix + name, spec
        elif is_record(child):
            yield prefix + name, spec
            yield from paths(child, f"{prefix}{name}.")


def resolve(value: Any, path: str) -> tuple[str, Spec]:
    """The full dotted path and spec that `path` (or an alias, anywhere below `value`) names.

    Raises:
        InputError: no such field; the message names the nearest.
    """
    known = dict(paths(value))
    if path in known:
        return path, known[path]
    for full, spec in known.items():
        owner, _, _ = full.rpartition(".")
        if any(path in (a, f"{owner}.{a}") for a in spec.alias):
            return full, spec
    raise InputError("path", path, "a field", known=known)


def get(value: Any, path: str) -> Any:
    """The field at a dotted path."""
    for name in path.split("."):
        value = getattr(value, name)
    return value


def put[T](value: T, path: str, new: Any) -> T:
    """A copy of `value` with the field at a dotted path replaced; nothing is checked."""
    head, _, rest = path.partition(".")
    child = put(getattr(value, head), rest, new) if rest else new
    return dataclasses.replace(cast(Any, value), **{head: child})


def with_value[T](value: T, path: str, new: Any) -> T:
    """A copy of `value` with what a user wrote at `path`, checked.

    Example:
        >>> import jaxmem as jm
        >>> float(with_value(jm.Decode.create(batch=1, context_tokens=16), "batch", 8).batch)
        8.0
    """
    full, spec = resolve(value, path)
    return put(value, full, coerce(spec, new, full))


def _field(spec: Spec, default: Any) -> Any:
    return dataclasses.field(default=default, metadata={_KEY: spec})


def _choice(spec: Spec, value: Any, name: str, where: str) -> Any:
    if isinstance(value, str) and value.lower() in spec.choices:
        return np.int32(spec.choices[value.lower()])
    if isinstance(value, str):
        raise InputError(name, value, spec.rule(), known=spec.choices, where=where)
    array = _number(spec, value, name, where)
    if not np.all(np.isin(array, list(spec.choices.values()))):
        raise InputError(name, _plain(value), spec.rule(), where=where)
    return array.astype(np.int32)[()]


def _number(spec: Spec, value: Any, name: str, where: str) -> np.ndarray:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise InputError(name, value, spec.rule(), where=where) from None
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InputError(name, _plain(value), spec.rule(), where=where) from None
    if value is None or (not spec.may_be_unknown and np.isnan(array).any()):
        raise InputError(name, _plain(value), spec.rule(), where=where)
    return array


def _written(number: float) -> str:
    """A bound as a person writes it: whole numbers in full, up to a billion."""
    is_plain = float(number).is_integer() and abs(number) < 1e9
    return f"{int(number)}" if is_plain else f"{number:g}"


def _plain(value: Any) -> Any:
    """A NumPy scalar as the Python number a user would have written."""
    return value.item() if isinstance(value, np.generic) else value
