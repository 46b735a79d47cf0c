"""A study in a TOML file: the system, its base point, the space, and what is asked of it.

See docs/spec.md. Every error names the file and the key.
"""

import dataclasses
import math
import tomllib
from pathlib import Path
from typing import Any

from jaxmem import hbf, pim
from jaxmem.core.design import with_value
from jaxmem.core.errors import InputError
from jaxmem.explore.optimize import Bound, at_least, at_most
from jaxmem.explore.space import between, linspace, logspace
from jaxmem.serving import Decode, Serve

SYSTEMS = {"pim": pim, "hbf": hbf}
WORKLOADS = {"decode": Decode, "serve": Serve}
KEYS = ("system", "design", "workload", "space", "n_sample", "seed", "chunk_points", "search")
SEARCH_KEYS = ("minimize", "maximize", "at_most", "at_least", "n_start", "n_step", "seed")
RANGES = {"between": between, "linspace": linspace, "logspace": logspace}


@dataclasses.dataclass(frozen=True)
class Spec:
    """A study, ready for `sweep(**study.sweep)` or `optimize(**study.search)`."""

    fn: Any
    design: Any
    workload: Any
    space: dict[str, Any]
    sweep: dict[str, Any]  # options of `sweep`
    search: dict[str, Any]  # options of `optimize`; empty where the file asks for no search


def read(path: str | Path) -> Spec:
    """The study of a TOML file.

    Raises:
        InputError: the file is missing, no TOML, or has a key or value that does not fit.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError("spec", str(error), "valid TOML", where=name) from None
    except (UnicodeDecodeError, RecursionError):
        raise InputError("spec", name, "a UTF-8 TOML file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("spec", name, f"a readable file ({reason})") from None
    try:
        return _spec(table)
    except InputError as error:
        raise InputError(
            error.field, error.value, error.expected, known=error.known, where=name
        ) from None


def _spec(table: dict[str, Any]) -> Spec:
    _known(table, KEYS, "")
    system = table.get("system")
    if system not in SYSTEMS:
        raise InputError("system", system, "pim or hbf", known=SYSTEMS)
    room = SYSTEMS[system]
    design = _design(room, _table(table, "design"))
    workload = _workload(system, _table(table, "workload"))
    space = dict(_space(_table(table, "space")))
    options = {k: _whole(table, k) for k in ("n_sample", "seed", "chunk_points") if k in table}
    return Spec(
        fn=room.evaluate,
        design=design,
        workload=workload,
        space=space,
        sweep=options,
        search=_search(_table(table, "search")),
    )


def _design(room: Any, given: dict[str, Any]) -> Any:
    fields = {f.name for f in dataclasses.fields(room.Design)}
    whole = {k: v for k, v in given.items() if k in fields and not isinstance(v, dict)}
    design = room.Design.create(**whole)
    for path, value in _flat({k: v for k, v in given.items() if k not in whole}):
        design = with_value(design, path, value)
    return design


def _workload(system: str, given: dict[str, Any]) -> Any:
    kind = given.pop("kind", "decode" if system == "pim" else "serve")
    if kind not in WORKLOADS:
        raise InputError("workload.kind", kind, "decode or serve", known=WORKLOADS)
    return WORKLOADS[kind].create(**given)


def _space(given: dict[str, Any], prefix: str = ""):
    """(path, values) of every axis; nested tables are dotted paths."""
    for key, value in given.items():
        path = prefix + key
        if isinstance(value, dict) and value and not set(value) & {*RANGES, "log"}:
            yield from _space(value, f"{path}.")
        else:
            yield path, _values(path, value)


def _values(path: str, value: Any) -> Any:
    """A list, or `{between = [low, high]}` and the like."""
    if not isinstance(value, dict):
        return value
    log = value.get("log", False)
    kinds = [k for k in value if k != "log"]
    if len(kinds) != 1 or kinds[0] not in RANGES or not isinstance(log, bool):
        expected = "a list, or one of between, linspace, logspace"
        raise InputError(f"space.{path}", value, expected)
    kind, numbers = kinds[0], value[kinds[0]]
    n = 2 if kind == "between" else 3
    if not isinstance(numbers, list) or len(numbers) != n or not all(map(_is_number, numbers)):
        raise InputError(f"space.{path}.{kind}", numbers, f"a list of {n} finite numbers")
    if kind == "between":
        return between(*numbers, log=log)
    low, high, count = numbers
    if int(count) != count or not 1 <= count <= 1e7 or (kind == "logspace" and min(low, high) <= 0):
        raise InputError(f"space.{path}.{kind}", numbers, "positive bounds and a whole count")
    return (linspace if kind == "linspace" else logspace)(low, high, int(count))


def _search(given: dict[str, Any]) -> dict[str, Any]:
    _known(given, SEARCH_KEYS, "search.")
    options: dict[str, Any] = {}
    for key in ("minimize", "maximize"):
        if key in given:
            if not isinstance(given[key], str):
                raise InputError(f"search.{key}", given[key], "the name of a metric")
            options[key] = given[key]
    bounds: list[Bound] = []
    for key, make in (("at_most", at_most), ("at_least", at_least)):
        for metric, value in _flat(_table(given, key, "search.")):
            if not _is_number(value) or value <= 0:
                raise InputError(f"search.{key}.{metric}", value, "a number > 0")
            bounds.append(make(metric, value))
    if bounds:
        options["subject_to"] = tuple(bounds)
    for key in ("n_start", "n_step", "seed"):
        if key in given:
            options[key] = _whole(given, key)
    return options


def _flat(given: dict[str, Any], prefix: str = ""):
    """Nested tables as dotted paths."""
    for key, value in given.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _table(table: dict[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise InputError(prefix + key, value, "a table")
    return dict(value)


def _known(table: dict[str, Any], keys: tuple[str, ...], prefix: str) -> None:
    for key in table:
        if key not in keys:
            raise InputError(prefix + key, table[key], "a key of " + ", ".join(keys), known=keys)


def _whole(table: dict[str, Any], key: str) -> int:
    value = table[key]
    if type(value) is not int or not 0 <= value <= 10**12:
        raise InputError(key, value, "a whole number >= 0")
    return value


def _is_number(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) < math.inf
