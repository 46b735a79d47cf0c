"""Request traces: lengths, arrival times and the content that requests share.

`read_trace` reads every public format (`trace_formats`); `read_lengths` any CSV that names its two
length columns. A bad row is named by file, line and column; files are read row by row.
"""

import csv
import difflib
import math
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxmem.core.errors import InputError
from jaxmem.serving.trace_formats import MAX_TOKENS, detect

COLUMNS = {
    "ContextTokens": "GeneratedTokens",  # Azure LLM inference traces 2023 and 2024
    "input_tokens": "output_tokens",  # jaxmem's own names
    "input_length": "output_length",  # Mooncake, as CSV
    "Request tokens": "Response tokens",  # BurstGPT
}
_WHOLE = re.compile(r"[0-9]{1,20}(\.0*)?", re.ASCII)
"""A whole number as programs write it: tables with gaps hold 374 as 374.0."""

_PUBLISHED = {"input": (1155.0, 1020.0), "output": (211.0, 129.0)}
"""Mean and median of Azure's 2023 conversation trace (AzurePublicDataset, CC-BY 4.0)."""


class Lengths(NamedTuple):
    """Prompt and response lengths of requests."""

    input_tokens: Float[np.ndarray, " request"]
    output_tokens: Float[np.ndarray, " request"]


class Trace(NamedTuple):
    """Requests in the order of the file."""

    arrival_s: Float[np.ndarray, " request"]  # since the first request
    input_tokens: Int[np.ndarray, " request"]
    output_tokens: Int[np.ndarray, " request"]
    session: Int[np.ndarray, " request"]  # number of its conversation
    ids: Int[np.ndarray, " id"]  # of all prompts; equal where content is equal
    start: Int[np.ndarray, " request+1"]  # where each request's ids begin
    id_tokens: int  # tokens that an id stands for; 0: the trace tells no content
    format: str
    n_skipped: int  # bad rows left out

    def head(self, n_request: int) -> "Trace":
        """The first requests."""
        start = self.start[: n_request + 1]
        return self._replace(
            arrival_s=self.arrival_s[:n_request],
            input_tokens=self.input_tokens[:n_request],
            output_tokens=self.output_tokens[:n_request],
            session=self.session[:n_request],
            ids=self.ids[: start[-1]],
            start=start,
        )


def read_trace(
    path: str | Path,
    *,
    skip_bad: bool = False,
    block_tokens: int = 16,
    tokens: Callable[[str], list[int]] | None = None,
) -> Trace:
    """Requests of a trace file, gzip or plain; the format is told from the file.

    Args:
        path: Mooncake or Bailian JSONL, Azure or BurstGPT CSV, ShareGPT JSON, or a CSV with columns
            input_tokens, output_tokens and, if known, arrival_s.
        skip_bad: leave bad rows out and count them, instead of raising at the first.
        block_tokens: tokens to an id, for formats that carry text.
        tokens: a tokenizer, for formats that carry text; without one, 4 tokens to 3 words.

    Raises:
        InputError: no such file or format, no request, or a bad row, by its line and column.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("trace", str(path), "a file that exists")
    form = detect(path, block_tokens=block_tokens, tokens=tokens)
    arrival, lengths, ids = array("d"), array("q"), array("q")
    start, session, n_skipped = array("q", [0]), array("q"), 0
    sessions: dict[object, int] = {}
    try:
        for where, raw in form.raw_rows(path):
            try:
                if isinstance(raw, InputError):
                    raise raw
                rows = form.requests(raw, where)
            except InputError:
                if not skip_bad:
                    raise
                n_skipped += 1
                continue
            for row in rows:
                arrival.append(row.arrival_s)
                lengths.extend((row.input_tokens, row.output_tokens))
                ids.extend(row.ids)
                start.append(len(ids))
                session.append(_session(sessions, row.session, len(session)))
    except UnicodeDecodeError:
        where = f"{path} line {_undecodable_line(path)}"
        raise InputError("trace", str(path), "a text file in UTF-8", where=where) from None
    except (OSError, EOFError) as error:
        raise InputError("trace", str(path), f"a whole file ({error})", where=str(path)) from None
    if not len(arrival):
        rule = "at least one request" + (f" ({n_skipped} bad rows skipped)" if n_skipped else "")
        raise InputError("trace", str(path), rule, where=str(path))
    times = np.asarray(arrival)
    table = _int64(lengths).reshape(-1, 2)
    return Trace(
        times - times.min(), table[:, 0], table[:, 1], _int64(session), _int64(ids),
        _int64(start), form.id_tokens, form.name, n_skipped,
    )  # fmt: skip


def _int64(column: array) -> Int[np.ndarray, " n"]:
    return np.asarray(column).view(np.int64)  # else it would be C's long long, another type


def _session(sessions: dict[object, int], name: object, request: int) -> int:
    """The number of a conversation; a pair is (this chat, the chat that it continues or None)."""
    if name is None:
        return request
    if not isinstance(name, tuple):
        return sessions.setdefault(name, request)
    chat, parent = name
    number = request if parent is None else sessions.get(parent, request)
    sessions[chat] = number
    return number


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
