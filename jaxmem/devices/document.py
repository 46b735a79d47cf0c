"""One device file: its bytes, its TOML, its rows, and the line that each error is about.

A row is an inline table `{value, unit, source, date, confidence, note, unfitted}`. Whatever the
bytes of a file, only `InputError` leaves this module.
"""

import dataclasses
import datetime
import re
import tomllib
from pathlib import Path
from typing import Any

from jaxmem.core.design import Spec, coerce
from jaxmem.core.errors import InputError
from jaxmem.core.units import to_si

CONFIDENCE = ("datasheet", "paper", "measured", "derived", "assumed", "fitted")
"""How far a value can be trusted; `fitted` also carries its unfitted value."""

_KEYS = ("value", "unit", "source", "date", "confidence", "note", "unfitted")
_LARGEST_BYTES = 2**18
_LONGEST_LINE = 4096  # the parser takes quadratic time on dotted keys
_LONGEST_TEXT = 2000
_LONGEST_KEY = 200
_DEEPEST = 20
_WIDEST_BITS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One value of a device as its file gives it.

    Attributes:
        field: dotted path of the field, as `timing.n_rp`.
        value: the number as written, in `unit`.
        unit: unit as written.
        source: document and section.
        date: year or day of the source.
        confidence: one of `CONFIDENCE`.
        note: what the value leaves out, or how it was derived.
        unfitted: for a fitted value, the value before the fit, in `unit`.
        si: the value in the SI unit of its field, as the record holds it.
    """

    field: str
    value: int | float
    unit: str
    source: str
    date: str = ""
    confidence: str = "assumed"
    note: str = ""
    unfitted: int | float | None = None
    si: Any = None


@dataclasses.dataclass(frozen=True)
class Document:
    """A file that is valid TOML.

    Attributes:
        file: its name as the user gave it.
        folder: where names ending in `.toml` that it mentions are looked up.
        text: its text.
        table: its TOML.
        is_shipped: whether it is one of jaxmem's own.
    """

    file: str
    folder: Path
    text: str
    table: dict[str, Any]
    is_shipped: bool = False

    def where(self, path: str = "") -> str:
        """`file:line` of a dotted path, or `file` where the line is not found."""
        at, line = 0, 0
        for key in filter(None, path.split(".")):
            word = rf"(?<![\w.-]){re.escape(key)}(?![\w-])"
            found = re.compile(rf"^[^#=\n]*{word}|[{{,]\s*{word}", re.MULTILINE).search(
                self.text, at
            )
            if found:
                at = found.end()
                line = self.text.count("\n", 0, at) + 1
        return f"{self.file}:{line}" if line else self.file


def read(path: Path, *, file: str, is_shipped: bool = False) -> Document:
    """The TOML document at `path`.

    Args:
        path: the file.
        file: its name in errors.
        is_shipped: whether it is one of jaxmem's own.

    Raises:
        InputError: no such file, too large, not UTF-8, not TOML.
    """
    expected = "a readable TOML file"
    try:
        if not path.is_file():
            raise InputError("file", file, f"{expected}; there is none of this name")
        if path.stat().st_size > _LARGEST_BYTES:
            raise InputError("file", file, f"{expected} of at most {_LARGEST_BYTES} bytes")
        raw = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("file", file, f"{expected} ({error})") from None
    try:
        text = raw.decode("utf-8").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        bad = raw[error.start : error.end]
        raise InputError("encoding", bad, "UTF-8 text", where=f"{file}:{line}") from None
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _LONGEST_LINE:
            expected = f"lines of at most {_LONGEST_LINE} characters"
            raise InputError("TOML", line[:40], expected, where=f"{file}:{number}")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InputError("TOML", "tables nested too deep", "valid TOML", where=file) from None
    except (ValueError, OverflowError) as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        lines = text.split("\n")
        shown = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        expected = f"valid TOML ({error})"
        raise InputError("TOML", shown, expected, where=f"{file}:{line}") from None
    _check_size(table, file)
    return Document(file, path.parent, text, table, is_shipped)


def _check_size(table: dict[str, Any], file: str) -> None:
    """Refuse what could not even be shown: deep nests, long keys, integers beyond any float."""
    todo: list[tuple[Any, int]] = [(table, 0)]
    while todo:
        value, depth = todo.pop()
        if depth > _DEEPEST:
            raise InputError("TOML", "deeper ones", f"at most {_DEEPEST} nested tables", where=file)
        if isinstance(value, dict):
            for key in value:
                if len(key) > _LONGEST_KEY:
                    expected = f"keys of at most {_LONGEST_KEY} characters"
                    raise InputError("TOML", key[:20] + "...", expected, where=file)
            todo += [(child, depth + 1) for child in value.values()]
        elif isinstance(value, list):
            todo += [(child, depth + 1) for child in value]
        elif isinstance(value, int) and value.bit_length() > _WIDEST_BITS:
            expected = f"integers of at most {_WIDEST_BITS} bits"
            raise InputError("TOML", f"one of {value.bit_length()} bits", expected, where=file)


def text_at(document: Document, table: dict[str, Any], key: str, path: str, what: str) -> str:
    """The string at `key` of `table`.

    Raises:
        InputError: missing, empty, too long or not a string.
    """
    value = table.get(key)
    is_good = isinstance(value, str) and value.strip() and len(value) <= _LONGEST_TEXT
    if not is_good:
        raise InputError(path, value, what, where=document.where(path))
    return value


def row(document: Document, spec: Spec, given: Any, path: str) -> Row:
    """The row at `path`, checked and converted.

    Args:
        document: the file it stands in.
        spec: its field's spec.
        given: what stands there.
        path: dotted path of the field.

    Raises:
        InputError: not an inline table, unknown key, bad number, unit, source or confidence.
    """
    where = document.where(path)
    if not isinstance(given, dict):
        example = f'an inline table {{value = ..., unit = "{spec.unit}", source = "..."}}'
        raise InputError(path, given, example, where=where)
    for key in given:
        if key not in _KEYS:
            raise InputError(path, key, "one of " + ", ".join(_KEYS), known=_KEYS, where=where)
    required = ("source", "date", "confidence") if document.is_shipped else ("source",)
    words = {k: _words(given, k, path, where, is_required=k in required) for k in _KEYS[2:6]}
    words["confidence"] = words["confidence"] or "assumed"
    if words["confidence"] not in CONFIDENCE:
        expected = "one of " + ", ".join(CONFIDENCE)
        bad = words["confidence"]
        raise InputError(f"{path}.confidence", bad, expected, known=CONFIDENCE, where=where)
    unit = given.get("unit", "1" if spec.unit == "1" else None)
    if not isinstance(unit, str):
        raise InputError(f"{path}.unit", unit, f"a unit of {spec.unit}", where=where)
    is_fitted = words["confidence"] == "fitted"
    if is_fitted and not words["note"]:
        raise InputError(f"{path}.note", None, "what the value was fitted to", where=where)
    if is_fitted or "unfitted" in given:
        _si(spec, given.get("unfitted"), unit, f"{path}.unfitted", where)
    si = _si(spec, given.get("value"), unit, path, where)
    unfitted = given.get("unfitted")
    return Row(field=path, value=given["value"], unit=unit, unfitted=unfitted, si=si, **words)


def _words(given: dict[str, Any], key: str, path: str, where: str, *, is_required: bool) -> str:
    value = given.get(key, "")
    if key == "date" and isinstance(value, datetime.date):
        value = value.isoformat()
    if (
        isinstance(value, str)
        and len(value) <= _LONGEST_TEXT
        and (value.strip() or not is_required)
    ):
        return value
    expected = "a year or a day, as text" if key == "date" else "a text"
    raise InputError(f"{path}.{key}", given.get(key), expected, where=where)


def _si(spec: Spec, value: Any, unit: str, path: str, where: str) -> Any:
    """`value` in the field's SI unit, in bounds; NaN and inf only where the field takes them."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{path}.value", value, spec.rule(), where=where)
    try:
        si = to_si(float(value), unit, spec.unit, field=path, where=where)
        if si != value:  # 20 us is 2e-05, not 1.9999999999999998e-05
            si = float(f"{si:.15g}")
        return coerce(spec, si, path, where=where)
    except OverflowError:
        raise InputError(path, "a number above 1e308", spec.rule(), where=where) from None
    except InputError as error:
        if error.field.endswith(".unit"):
            raise
        raise InputError(path, f"{value} {unit}", spec.rule(), where=where) from None
