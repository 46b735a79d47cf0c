"""Public formats of request traces: how a line or a conversation becomes requests.

Mooncake (kvcache-ai/Mooncake, FAST'25), Alibaba Bailian (qwen-bailian usage traces), Azure 2023 and
2024 (AzurePublicDataset), BurstGPT, ShareGPT. Each format is a function from one raw row to its
requests; a bad value is named by its column. Files are read row by row, compressed or not.
"""

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from jaxmem.core.errors import InputError

MAX_TOKENS = 10_000_000
"""Longest length that is believed."""
TOKENS_PER_WORD = 4 / 3
"""OpenAI's rule of thumb for English: 100 tokens are about 75 words."""
_WHOLE = re.compile(r"[0-9]{1,20}(\.0*)?", re.ASCII)
_READ_CHARS = 1 << 20


class Row(NamedTuple):
    """One request as a trace tells it."""

    arrival_s: float
    input_tokens: int
    output_tokens: int
    ids: list[int]  # one for every `id_tokens` of the prompt; equal where content is equal
    session: Any  # what requests of one conversation share, or None


class Format(NamedTuple):
    """A format: how raw rows are found in a file, and what one row says."""

    name: str
    id_tokens: int  # tokens that an id stands for; 0: the trace tells no content
    raw_rows: Callable[[Path], Iterator[tuple[str, Any]]]  # (file and line, row or InputError)
    requests: Callable[[Any, str], list[Row]]


def detect(path: Path, *, block_tokens: int = 16, tokens: Callable[[str], list[int]] | None = None):
    """The format of a file, by its first characters.

    Args:
        path: the file, gzip or plain.
        block_tokens: tokens to an id, for formats that carry text.
        tokens: a tokenizer, for formats that carry text; else words are counted.

    Raises:
        InputError: no such file, or nothing that a known format begins with.
    """
    name = str(path)
    try:
        with _open(path, errors="replace") as file:  # the rows tell which line is broken
            head = file.read(_READ_CHARS).lstrip("\ufeff \t\r\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("trace", name, f"a readable file ({reason})") from None
    if head.startswith("["):
        chat = _Chat(block_tokens, tokens)
        return Format("sharegpt", block_tokens, _json_items, chat.requests)
    if head.startswith("{"):
        first = _first_object(head, name)
        for keys, id_tokens, parse, title in _JSONL:
            if all(key in first for key in keys):
                return Format(title, id_tokens, json_lines, parse)
        known = [key for keys, *_ in _JSONL for key in keys]
        raise InputError(
            "keys", ", ".join(first), "those of a known trace, such as " + ", ".join(known[:4]),
            known=known, where=f"{name} line 1",
        )  # fmt: skip
    header = next(csv.reader([head.splitlines()[0]])) if head else []
    header = [cell.strip() for cell in header]
    for title, columns in _CSV.items():
        if columns["input"] in header and columns["output"] in header:
            return Format(title, 0, _csv_rows, _csv_parser(columns))
    known = [c for columns in _CSV.values() for c in columns.values()]
    raise InputError(
        "header", ", ".join(header), "a CSV header or JSON lines of a known trace", known=known,
        where=f"{name} line 1",
    )  # fmt: skip


def _open(path: Path, errors: str = "strict") -> Any:
    opens: Any = gzip.open if path.suffix == ".gz" else open
    return opens(path, "rt", encoding="utf-8-sig", errors=errors, newline="")


# ---- values


def whole(value: Any, column: str, where: str, *, high: int = MAX_TOKENS, unit: str = "tokens"):
    """A whole number from 0 to `high`, as JSON or CSV writes it.

    Raises:
        InputError: anything else.
    """
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value.strip().partition(".")[0])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= high or value != int(value):
        raise InputError(column, value, f"a whole number of {unit} from 0 to {high}", where=where)
    return int(value)


def seconds(value: Any, column: str, where: str, scale: float = 1.0) -> float:
    """A time in seconds: a number (times `scale`) or a date.

    Raises:
        InputError: anything else.
    """
    try:
        if isinstance(value, bool) or value is None:
            raise ValueError
        number = float(value) * scale
    except (TypeError, ValueError):
        number = _date_s(value)
    if not math.isfinite(number):
        raise InputError(column, value, "a time", where=where)
    return number


def _date_s(value: Any) -> float:
    try:
        # Azure writes seven digits of a second, one more than Python reads.
        text = re.sub(r"(\.[0-9]{6})[0-9]+", r"\1", str(value).strip())
        date = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _ids(row: dict[str, Any], column: str, where: str, n_token: int, id_tokens: int) -> list[int]:
    ids = row.get(column)
    rule = f"a list of whole numbers, one for every {id_tokens} tokens of the prompt"
    if not isinstance(ids, list) or len(ids) < n_token // id_tokens:
        shown = ids if not isinstance(ids, list) else f"{len(ids)} for {n_token} tokens"
        raise InputError(column, shown, rule, where=where)
    for one in ids:
        if not isinstance(one, int) or isinstance(one, bool) or not -(2**63) <= one < 2**63:
            raise InputError(column, one, rule, where=where)
    return ids


# ---- JSON lines


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(file and line, object or InputError) of every line that is not blank."""
    with _open(path) as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                where = f"{path} line {number}"
                try:
                    row = json.loads(line)
                except (ValueError, RecursionError):
                    row = None
                if not isinstance(row, dict):
                    row = InputError("line", line[:40], "a JSON object", where=where)
                yield where, row


def _first_object(head: str, name: str) -> dict[str, Any]:
    try:
        return json.JSONDecoder().raw_decode(head)[0]
    except (ValueError, RecursionError):
        raise InputError("line", head[:40], "a JSON object", where=f"{name} line 1") from None


def _lengths(row: dict[str, Any], where: str) -> tuple[int, int]:
    return (
        whole(row.get("input_length"), "input_length", where),
        whole(row.get("output_length"), "output_length", where),
    )


def _mooncake(row: dict[str, Any], where: str) -> list[Row]:
    prompt, response = _lengths(row, where)
    ids = _ids(row, "hash_ids", where, prompt, 512)
    arrival = seconds(row.get("timestamp"), "timestamp", where, 1e-3)
    return [Row(arrival, prompt, response, ids, None)]


def _bailian(row: dict[str, Any], where: str) -> list[Row]:
    prompt, response = _lengths(row, where)
    ids = _ids(row, "hash_ids", where, prompt, 16)
    parent = row.get("parent_chat_id")
    first = parent in (None, "", -1, "-1")
    session = (row.get("chat_id"), None if first else parent)
    return [Row(seconds(row.get("timestamp"), "timestamp", where), prompt, response, ids, session)]


def _blocks16(row: dict[str, Any], where: str) -> list[Row]:
    prompt, response = _lengths(row, where)
    ids = _ids(row, "hash_ids16", where, prompt, 16)
    arrival = seconds(row.get("arrival_ns", 0), "arrival_ns", where, 1e-9)
    return [Row(arrival, prompt, response, ids, None)]


_JSONL: list[tuple[tuple[str, ...], int, Callable[[Any, str], list[Row]], str]] = [
    (("chat_id", "hash_ids"), 16, _bailian, "bailian"),
    (("input_length", "hash_ids16"), 16, _blocks16, "blocks16"),
    (("input_length", "hash_ids"), 512, _mooncake, "mooncake"),
]


# ---- CSV

_CSV = {
    "azure": {"input": "ContextTokens", "output": "GeneratedTokens", "time": "TIMESTAMP"},
    "burstgpt": {
        "input": "Request tokens", "output": "Response tokens", "time": "Timestamp",
        "session": "Session ID",
    },
    "own": {"input": "input_tokens", "output": "output_tokens", "time": "arrival_s"},
    "mooncake-csv": {"input": "input_length", "output": "output_length", "time": "timestamp"},
}  # fmt: skip


def _csv_rows(path: Path) -> Iterator[tuple[str, Any]]:
    with _open(path) as file:
        reader = csv.reader(file)
        header = [cell.strip() for cell in next(reader, [])]
        while True:
            try:
                cells = next(reader, None)
            except csv.Error as error:
                where = f"{path} line {reader.line_num}"
                yield where, InputError("line", str(error), "a row of CSV", where=where)
                continue
            if cells is None:
                return
            if "".join(cells).strip():
                yield f"{path} line {reader.line_num}", dict(zip(header, cells, strict=False))


def _csv_parser(columns: dict[str, str]) -> Callable[[Any, str], list[Row]]:
    scale = 1e-3 if columns["time"] == "timestamp" else 1.0  # Mooncake counts milliseconds

    def parse(row: dict[str, str], where: str) -> list[Row]:
        prompt, response = (
            whole(row.get(columns[c], ""), columns[c], where) for c in ("input", "output")
        )
        time = columns["time"]
        arrival = seconds(row[time], time, where, scale) if time in row else 0.0
        return [Row(arrival, prompt, response, [], row.get(columns.get("session", "")) or None)]

    return parse


# ---- conversations as text


def _json_items(path: Path) -> Iterator[tuple[str, Any]]:
    """The objects of one JSON array, without reading all of it."""
    decoder, line, text, number = json.JSONDecoder(), 1, "", 0
    with _open(path) as file:
        text = file.read(_READ_CHARS).lstrip()[1:]
        while True:
            stripped = text.lstrip(" \t\r\n,")
            line += text[: len(text) - len(stripped)].count("\n")
            text, where = stripped, f"{path} line {line} item {number}"
            if text.startswith("]"):
                return
            try:
                item, end = decoder.raw_decode(text)
            except (ValueError, RecursionError):
                more = file.read(max(_READ_CHARS, len(text)))  # doubles, so stays linear
                if more:
                    text += more
                    continue
                yield where, InputError("item", text[:40], "a JSON array that ends", where=where)
                return
            line += text[:end].count("\n")
            text, number = text[end:], number + 1
            yield (
                where,
                item
                if isinstance(item, dict)
                else InputError("item", item, "a conversation", where=where),
            )


class _Chat:
    """ShareGPT: {id, conversations: [{from, value}]}; every answer is a request."""

    def __init__(self, block_tokens: int, tokens: Callable[[str], list[int]] | None):
        self._block_tokens, self._tokens = block_tokens, tokens or _words
        self._table: dict[tuple[int, tuple[int, ...]], int] = {}

    def requests(self, item: dict[str, Any], where: str) -> list[Row]:
        turns = item.get("conversations", item.get("conversation"))
        rule = "a list of {from, value}"
        if not isinstance(turns, list):
            raise InputError("conversations", turns, rule, where=where)
        said: list[int] = []
        found: list[Row] = []
        session = item.get("id", where)
        for turn in turns:
            text = turn.get("value") if isinstance(turn, dict) else None
            if not isinstance(text, str) or not isinstance(turn.get("from"), str):
                raise InputError("conversations", turn, rule, where=where)
            spoken = self._tokens(text)
            if turn["from"] in ("gpt", "assistant", "chatgpt", "bing", "bard") and said:
                found.append(Row(0.0, len(said), len(spoken), self._chained(said), session))
            said = said + spoken
        return found

    def _chained(self, said: list[int]) -> list[int]:
        parent, ids = -1, []
        for start in range(0, len(said) - self._block_tokens + 1, self._block_tokens):
            link = (parent, tuple(said[start : start + self._block_tokens]))
            parent = self._table.setdefault(link, len(self._table))
            ids.append(parent)
        return ids


def _words(text: str) -> list[int]:
    """Stand-ins for tokens: `TOKENS_PER_WORD` to a word, equal where the words are equal."""
    words = text.split()
    n_token = math.ceil(len(words) * TOKENS_PER_WORD - 1e-9)
    codes = [zlib.crc32(word.encode("utf-8", "surrogatepass")) for word in words]
    return [4 * codes[int(t / TOKENS_PER_WORD)] + t % 4 for t in range(n_token)]
