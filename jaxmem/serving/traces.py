"""Request lengths of a trace: Azure's CSV and any CSV that names its two length columns.

The other public formats, hashes and arrival times join it here. A bad row is named by file, line
and column; files are read row by row.
"""

import csv
import difflib
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from jaxmem.core.errors import InputError

COLUMNS = {
    "ContextTokens": "GeneratedTokens",  # Azure LLM inference traces 2023 and 2024
    "input_tokens": "output_tokens",  # jaxmem's own names
    "input_length": "output_length",  # Mooncake, as CSV
    "Request tokens": "Response tokens",  # BurstGPT
}
MAX_TOKENS = 10_000_000
"""Longest length that is believed."""

_WHOLE = re.compile(r"[0-9]{1,20}(\.0*)?", re.ASCII)
"""A whole number as programs write it: tables with gaps hold 374 as 374.0."""

_PUBLISHED = {"input": (1155.0, 1020.0), "output": (211.0, 129.0)}
"""Mean and median of Azure's 2023 conversation trace (AzurePublicDataset, CC-BY 4.0)."""


class Lengths(NamedTuple):
    """Prompt and response lengths of requests."""

    input_tokens: Float[np.ndarray, " request"]
    output_tokens: Float[np.ndarray, " request"]


def read_lengths(path: str | Path) -> Lengths:
    """Lengths of every request of a CSV file.

    Raises:
        InputError: no such file, no length columns, an empty file, or a bad row, by its line.
    """
    rows = list(_rows(Path(path)))
    if not rows:
        raise InputError("lengths", str(path), "at least one request", where=str(path))
    table = np.asarray(rows, np.float64)
    return Lengths(table[:, 0], table[:, 1])


def published_lengths(n_request: int = 1024) -> Lengths:
    """A length table of our own with the published mean and median of Azure's 2023 trace.

    Log-normal quantiles, paired by a fixed shuffle; the trace itself is not shipped.

    Example:
        >>> lengths = published_lengths()
        >>> round(float(lengths.input_tokens.mean()), -1)
        1150.0
    """
    from statistics import NormalDist

    rng = np.random.default_rng(2023)
    columns = []
    for mean, median in _PUBLISHED.values():
        sigma = math.sqrt(2 * math.log(mean / median))
        place = (np.arange(n_request) + 0.5) / n_request
        z = np.asarray([NormalDist().inv_cdf(p) for p in place])
        columns.append(rng.permutation(np.maximum(np.round(median * np.exp(sigma * z)), 1.0)))
    return Lengths(*columns)


def _rows(path: Path) -> Iterator[tuple[int, int]]:
    name = str(path)
    reader = None
    try:
        if not path.is_file():
            raise InputError("lengths", name, "a CSV file that exists")
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = [cell.strip() for cell in next(reader, [])]
            if not any(header):
                raise InputError("lengths", name, "a CSV file with a header line", where=name)
            prompt, response = _columns(header, name)
            for row in reader:
                if "".join(row).strip() or len(row) > 1:  # not a blank line
                    yield (
                        _length(row, header, prompt, name, reader.line_num),
                        _length(row, header, response, name, reader.line_num),
                    )
    except UnicodeDecodeError:
        where = f"{name} line {_undecodable_line(path)}"
        raise InputError("lengths", name, "a CSV file in UTF-8", where=where) from None
    except csv.Error as error:
        where = f"{name} line {reader.line_num if reader else 1}"
        raise InputError("lengths", name, f"a CSV file ({error})", where=where) from None
    except OSError as error:
        reason = f"a readable CSV file ({error.strerror or error})"
        raise InputError("lengths", name, reason, where=name) from None


def _undecodable_line(path: Path) -> int:
    """The first line that is not UTF-8; found afterwards, as text is decoded in large pieces."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def _columns(header: list[str], name: str) -> tuple[int, int]:
    for prompt, response in COLUMNS.items():
        if prompt in header and response in header:
            return header.index(prompt), header.index(response)
    known = [c for pair in COLUMNS.items() for c in pair]
    expected = "columns such as " + " and ".join(next(iter(COLUMNS.items())))
    for pair in COLUMNS.items():  # one of the two is there: the other is what was meant
        there, missing = sorted(pair, key=lambda c: c not in header)
        if there in header:
            known, expected = [missing], f"a column {missing} beside {there}"
            break
    others = [h for h in header if h not in COLUMNS and h not in COLUMNS.values()]
    likeness = {h: max(_likeness(h, c) for c in known) for h in others}
    close = max(likeness, key=lambda h: likeness[h], default="")
    shown = close if likeness.get(close, 0) >= 0.5 else ", ".join(header)
    raise InputError("header", shown, expected, known=known, where=f"{name} line 1")


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a.lower(), b.lower()).ratio()


def _length(row: list[str], header: list[str], column: int, name: str, line: int) -> int:
    cell = row[column].strip() if column < len(row) else ""
    value = int(cell.partition(".")[0]) if _WHOLE.fullmatch(cell) else -1
    if not 0 <= value <= MAX_TOKENS:
        rule = f"a whole number of tokens from 0 to {MAX_TOKENS}"
        raise InputError(header[column], cell, rule, where=f"{name} line {line}")
    return value
