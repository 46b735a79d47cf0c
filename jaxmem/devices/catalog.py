"""Devices by name or by file: every number with its unit, source, date and confidence.

Shipped devices lie in `catalog/`, one TOML file each; a user's file has the same form. A file may
start from another (`base = "h200"`), and take parts by name or as a sub-table. Only the files that
are asked for are read.
"""

import dataclasses
import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmem.core.design import Spec, is_record, specs
from jaxmem.core.errors import InputError
from jaxmem.devices.chip import Chip
from jaxmem.devices.curve import Curve
from jaxmem.devices.document import Document, Row, read, row, text_at
from jaxmem.devices.dram import PimDevice
from jaxmem.devices.engine import Engine
from jaxmem.devices.gpu import Gpu
from jaxmem.devices.link import Link
from jaxmem.devices.nand import FlashStack
from jaxmem.devices.node import Node

KINDS: dict[str, Any] = {
    "gpu": Gpu,
    "link": Link,
    "flash": FlashStack,
    "pim": PimDevice,
    "node": Node,
    "chip": Chip,
    "engine": Engine,
    "curve": Curve,
}
"""Record class by kind of device."""

_FOLDER = Path(__file__).parent / "catalog"
_HEADER = ("name", "kind", "summary", "base")
_DEEPEST = 16


@dataclasses.dataclass(frozen=True)
class _Tree:
    """A device before it is built: rows by field, parts by field, statics by field."""

    cls: Any
    name: str
    rows: dict[str, Row]
    parts: dict[str, "_Tree"]
    statics: dict[str, str]
    summary: str = ""


def load(what: Any, *, kind: str | None = None) -> Any:
    """The device that `what` names.

    Args:
        what: a catalog name (in any case), the path of a TOML file, or a device, returned as it is.
        kind: accept only this kind: gpu, link, flash, pim, node, chip, engine or curve.

    Returns:
        A `Gpu`, `Link`, `FlashStack`, `PimDevice`, `Node`, `Chip`, `Engine` or
        `Curve`.

    Raises:
        InputError: no such device, or a file that is not right; one line that says where.

    Example:
        >>> float(load("H200").hbm_bytes_per_s)
        4800000000000.0
    """
    cls = _class(kind) if kind is not None else None
    if is_record(what):
        if not isinstance(what, cls or tuple(KINDS.values())):
            raise InputError("device", type(what).__name__, _wanted(kind))
        return what
    tree = _tree(what)
    if cls is not None and tree.cls is not cls:
        raise InputError("device", what, _wanted(kind), known=names(kind))
    return _build(tree)


def names(kind: str | None = None) -> list[str]:
    """Names of the shipped devices, sorted, of one kind or of all.

    Raises:
        InputError: unknown kind.

    Example:
        >>> names("pim")
        ['aim-gddr6-16gib', 'aim-gddr6-1gib', 'aim-gddr6-8gib', 'hbm-pim', 'lpddr5-pim']
    """
    cls = _class(kind) if kind is not None else None
    trees = (_shipped(stem) for stem in _stems())
    return sorted(tree.name for tree in trees if cls is None or tree.cls is cls)


def rows(what: str) -> list[Row]:
    """Every value of a device and of its parts, with its source.

    Args:
        what: a catalog name or a path.

    Raises:
        InputError: as `load`.

    Example:
        >>> row = rows("h200")[2]
        >>> row.field, row.value, row.unit, row.confidence
        ('hbm_bytes', 141, 'GB', 'datasheet')
    """
    return list(_rows(_tree(what), ""))


def summary(what: str) -> str:
    """The one-line description of a device.

    Raises:
        InputError: as `load`.
    """
    return _tree(what).summary


def kind_of(device: Any) -> str:
    """Kind of a device record: gpu, link, flash, pim, node, chip, engine or curve."""
    return next(kind for kind, cls in KINDS.items() if isinstance(device, cls))


def stack[T](devices: Sequence[T]) -> T:
    """Devices of one kind as one record with a leading axis, to vmap over.

    Names and descriptions differ between devices and would differ between pytrees: they become "".

    Args:
        devices: records of one kind, at least one.

    Example:
        >>> pair = stack([load("8xH200"), load("8xCSI")])
        >>> pair.n_stack.tolist()
        [0.0, 6.0]
    """
    plain = [_unnamed(device) for device in devices]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *plain)


def _unnamed(value: Any) -> Any:
    changes: dict[str, Any] = {}
    for field, spec in specs(value).items():
        if spec.kind == "part":
            changes[field] = _unnamed(getattr(value, field))
        elif field in ("name", "integration"):
            changes[field] = ""
    return dataclasses.replace(value, **changes)


def _class(kind: Any) -> Any:
    if isinstance(kind, str) and kind in KINDS:
        return KINDS[kind]
    raise InputError("kind", kind, "one of " + ", ".join(KINDS), known=KINDS)


def _wanted(kind: str | None) -> str:
    noun = f"a device of kind {kind}" if kind else "a device"
    return f"{noun}: a catalog name or the path of a TOML file"


@functools.cache
def _stems() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


@functools.cache
def _shipped(stem: str) -> _Tree:
    path = _FOLDER / f"{stem}.toml"
    return _device(read(path, file=path.name, is_shipped=True), (stem,))


def _tree(what: Any) -> _Tree:
    """The device at a catalog name or a path, checked to be complete."""
    if not isinstance(what, str | os.PathLike):
        raise InputError("device", what, _wanted(None))
    name = os.fspath(what)
    if not isinstance(name, str):
        raise InputError("device", name, _wanted(None))
    if name.lower() in _stems():
        return _shipped(name.lower())
    if not _is_path(name):
        raise InputError("device", name, _wanted(None), known=names())
    return _device(read(Path(name), file=name), (_identity(Path(name)),))


def _is_path(name: str) -> bool:
    return name.endswith(".toml") or "/" in name or os.sep in name


def _identity(path: Path) -> str:
    try:
        return str(path.resolve())
    except (OSError, ValueError, RuntimeError):
        return str(path)


def _named(document: Document, name: Any, path: str, chain: tuple[str, ...]) -> _Tree:
    """The device that `document` names at `path`; `chain` is the files on the way to it."""
    where = document.where(path)
    if not isinstance(name, str):
        raise InputError(path, name, _wanted(None), where=where)
    is_file = _is_path(name) and name.lower() not in _stems()
    if not is_file and name.lower() not in _stems():
        raise InputError(path, name, _wanted(None), known=names(), where=where)
    target = document.folder / name if is_file else Path(name)
    key = _identity(target) if is_file else name.lower()
    if key in chain:
        raise InputError(path, name, "a device that does not lead back to itself", where=where)
    if len(chain) > _DEEPEST:
        raise InputError(path, name, f"at most {_DEEPEST} files one from another", where=where)
    if is_file:
        return _device(read(target, file=name), (*chain, key))
    return _shipped(key)


def _device(document: Document, chain: tuple[str, ...]) -> _Tree:
    """The device of a whole file."""
    table = document.table
    name = text_at(document, table, "name", "name", "the device's name, a text")
    base = _named(document, table["base"], "base", chain) if "base" in table else None
    if "kind" in table or base is None:
        kind = table.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            expected = "one of " + ", ".join(KINDS)
            raise InputError("kind", kind, expected, known=KINDS, where=document.where("kind"))
        cls = KINDS[kind]
        if base is not None and base.cls is not cls:
            raise InputError("base", table["base"], _wanted(kind), where=document.where("base"))
    else:
        cls = base.cls
    about = base.summary if base else ""
    if "summary" in table or document.is_shipped:
        about = text_at(document, table, "summary", "summary", "one line of text")
    fields = {key: value for key, value in table.items() if key not in _HEADER}
    tree = _table(document, cls, fields, base, "", chain)
    tree = dataclasses.replace(tree, name=name, summary=about)
    _require(document, tree, "")
    return tree


def _table(
    document: Document,
    cls: Any,
    table: dict[str, Any],
    base: _Tree | None,
    prefix: str,
    chain: tuple[str, ...],
) -> _Tree:
    """`table` laid over `base`; nothing is required yet."""
    by_name = specs(cls)
    alias = {a: name for name, spec in by_name.items() for a in spec.alias}
    known = [field for field in by_name if field != "name"]
    tree = _Tree(
        cls,
        base.name if base else "",
        dict(base.rows) if base else {},
        dict(base.parts) if base else {},
        dict(base.statics) if base else {},
        base.summary if base else "",
    )
    for key, value in table.items():
        field, path = alias.get(key, key), prefix + key
        if field not in known:
            expected = f"a field of {cls.__name__}"
            section = prefix.rstrip(".") or "field"
            raise InputError(section, key, expected, known=known, where=document.where(path))
        if by_name[field].kind == "leaf":
            tree.rows[field] = row(document, by_name[field], value, path)
        elif by_name[field].kind == "static":
            tree.statics[field] = text_at(document, table, key, path, by_name[field].doc)
        else:
            child = tree.parts.get(field)
            tree.parts[field] = _part(document, cls, field, value, child, path, chain)
    return tree


def _part(
    document: Document,
    owner: Any,
    field: str,
    value: Any,
    base: _Tree | None,
    path: str,
    chain: tuple[str, ...],
) -> _Tree:
    """A part given by name, or as a sub-table over the part of the base."""
    cls = next(f.type for f in dataclasses.fields(owner) if f.name == field)
    if not isinstance(cls, type):  # pragma: no cover  (parts are annotated with their class)
        raise TypeError(f"{owner.__name__}.{field} is not annotated with a class")
    if isinstance(value, dict):
        fields = dict(value)
        if "base" in fields:
            base = _of_class(document, cls, field, fields.pop("base"), f"{path}.base", chain)
        tree = _table(document, cls, fields, base, f"{path}.", chain)
        changed = f"{tree.name} (modified)" if tree.name and fields else tree.name
        return dataclasses.replace(tree, name=changed)
    return _of_class(document, cls, field, value, path, chain)


def _of_class(
    document: Document, cls: Any, field: str, name: Any, path: str, chain: tuple[str, ...]
) -> _Tree:
    """The device `name` if it is a `cls`, or else its part `field` if that is one."""
    tree = _named(document, name, path, chain)
    if tree.cls is cls:
        return tree
    if field in tree.parts and tree.parts[field].cls is cls:
        return tree.parts[field]
    kind = next((k for k, c in KINDS.items() if c is cls), None)
    expected = _wanted(kind) if kind else f"a device with a {field} table, or such a table"
    known = names(kind) if kind else ()
    raise InputError(path, name, expected, known=known, where=document.where(path))


def _require(document: Document, tree: _Tree, prefix: str) -> None:
    """Every field without a default must be there."""
    for f in dataclasses.fields(tree.cls):
        spec: Spec = specs(tree.cls)[f.name]
        path = prefix + f.name
        if f.name in tree.parts:
            _require(document, tree.parts[f.name], f"{path}.")
        elif f.default is dataclasses.MISSING and f.name not in tree.rows:
            rule = spec.rule() if spec.kind == "leaf" else spec.doc
            where = document.where(prefix.rstrip("."))
            raise InputError(path, None, f"{rule} (it has no default)", where=where)


def _rows(tree: _Tree, prefix: str) -> Iterator[Row]:
    for field in specs(tree.cls):
        if field in tree.rows:
            yield dataclasses.replace(tree.rows[field], field=prefix + field)
        elif field in tree.parts:
            yield from _rows(tree.parts[field], f"{prefix}{field}.")


def _build(tree: _Tree) -> Any:
    values: dict[str, Any] = {field: r.si for field, r in tree.rows.items()}
    values |= {field: _build(child) for field, child in tree.parts.items()}
    values |= tree.statics
    if "name" in specs(tree.cls):
        values["name"] = tree.name
    return tree.cls.create(**values)
