"""Files of PIM instructions: the neutral JSON form, and the public simulator's text trace.

Either is read into the same stream and written from it, so that what jaxmem makes runs in the AiM
simulator and what runs there runs here. Neutral: one case a line, `{"id", "instrs": [{"op",
"mask", "bank", "row", "opsize", "ch", ...}]}`, with measured `cycles` and `counts` where there are
any. Text: one instruction a line, operands in the order of `isa.OPS`.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.pim import isa
from jaxmem.pim.isa import OP, OPS, Op, Stream


class Case(NamedTuple):
    """A stream from a file.

    Attributes:
        id: its name there.
        stream: checked against the device.
        family: the group of cases it belongs to, or "".
        cycles: measured, or None.
        counts: commands measured over all channels, by name, or None.
        refresh: cycles between and of refreshes, where it was measured with them, or None.
    """

    id: str
    stream: Stream
    family: str = ""
    cycles: int | None = None
    counts: Mapping[str, int] | None = None
    refresh: tuple[int, int] | None = None


# Operand by key of the neutral form, and the one key whose name differs.
_KEYS = {"opsize": "n", **{k: k for k in ("mask", "ch", "bank", "row", "gpr", "gpr2", "cfr")}}
_KEYS |= {"data": "data", "tag": "tag"}
_NAME = {operand: key for key, operand in _KEYS.items()}
_REQUIRED = ("mask", "ch", "bank", "row")  # what cannot be left out where it is taken
_LARGEST = 2**31 - 1
_GPR = 2**16  # more registers than any device has; their number is of no consequence to time


def read(path: str | Path, device: Any) -> Iterator[Case]:
    """The cases of a file, each checked; a text trace is one case.

    Args:
        path: JSON lines or a text trace, told apart by the first character; gzipped or not.
        device: the `PimDevice` whose channels, banks and rows the instructions address.

    Raises:
        InputError: the first bad instruction, with file, line and field.
    """
    path = Path(path)
    lines = _lines(path)
    head = next(lines, None)
    if head is None:
        raise InputError("file", str(path), "at least one instruction")
    everything = _chain(head, lines)
    if head[1].lstrip()[0] in "{[":
        yield from (
            parse_case(text, device, f"{path}:{n}", default=f"line {n}") for n, text in everything
        )
    else:
        yield Case(path.name.split(".")[0], parse_text(everything, device, str(path)))


def parse_case(text: str, device: Any, where: str = "", *, default: str = "") -> Case:
    """A case from one line of the neutral form.

    Raises:
        InputError: not such a line, or a bad instruction.
    """
    try:
        case = json.loads(text)
    except (ValueError, RecursionError):
        rule = "one whole JSON object (is the line truncated?)"
        raise InputError("line", text.strip()[-40:], rule, where=where) from None
    if not isinstance(case, dict) or not isinstance(case.get("instrs"), list):
        raise InputError("instrs", text.strip()[:40], "a list of instructions", where=where)
    instructions = []
    for i, given in enumerate(case["instrs"]):
        field = f"instrs[{i}]"
        if not isinstance(given, dict) or not isinstance(given.get("op"), str):
            raise InputError(f"{field}.op", given, "an instruction's name", where=where)
        for key in given:
            if key not in _KEYS and key != "op":
                raise InputError(field, key, "an operand", known=_KEYS, where=where)
        operands = {_KEYS[k]: v for k, v in given.items() if k != "op"}
        _check(given["op"], operands, device, f"{field}.", where)
        instructions.append((given["op"], operands))
    _check_end(instructions, f"instrs[{len(instructions) - 1}].op", where)
    return Case(
        id=str(case.get("id", default)),
        stream=isa.stream(instructions),
        family=str(case.get("family", "")),
        cycles=_measured(case.get("cycles"), "cycles", where),
        counts=_counts(case.get("counts"), where),
        refresh=_refresh(case.get("refresh"), where),
    )


def parse_text(lines: Iterable[tuple[int, str]], device: Any, where: str = "") -> Stream:
    """A stream from the numbered lines of a text trace; blank lines and # comments are skipped.

    Raises:
        InputError: the first bad line.
    """
    instructions = []
    at = where
    for number, text in lines:
        words = text.split("#")[0].split()
        if not words:
            continue
        at = f"{where}:{number}"
        name, rest = _text_name(words, at)
        expected = OPS[OP[name]].text if name in OP else ()
        if name in OP and len(rest) != len(expected):
            rule = f"{name} with {len(expected)} operands ({' '.join(expected)})"
            raise InputError("line", text.strip(), rule, where=at)
        operands = {k: _integer(word, k, at) for k, word in zip(expected, rest, strict=False)}
        _check(name, operands, device, "", at)
        instructions.append((name, operands))
    _check_end(instructions, "op", at)
    return isa.stream(instructions)


def json_case(stream: Stream, **fields: Any) -> str:
    """A line of the neutral form; `fields` (id, family, cycles ...) come first."""
    instructions = []
    for op, operands in _instructions(stream):
        keep = {_NAME[k]: v for k, v in operands.items() if v >= 0 or k in _REQUIRED}
        instructions.append({"op": op.name, **keep})
    return json.dumps({**fields, "instrs": instructions})


def text_trace(stream: Stream) -> str:
    """The simulator's text trace of a stream; unset registers are written as 0."""
    lines = []
    for op, operands in _instructions(stream):
        words = [f"{v:#x}" if k == "mask" else str(max(v, 0)) for k, v in operands.items()]
        lines.append(" ".join([*_text_words(op), *words]))
    return "\n".join(lines) + "\n"


def _instructions(s: Stream) -> Iterator[tuple[Op, dict[str, int]]]:
    """Each instruction with the operands it takes, in the text trace's order."""
    columns = (s.op, s.channel_mask, s.bank, s.row, s.n_burst, s.register, s.value)
    for code, mask, bank, row, n, register, value in zip(*map(np.asarray, columns), strict=True):
        op = OPS[int(code)]
        of = {
            "mask": int(mask), "ch": 32 - int(mask).bit_length(), "bank": int(bank),
            "row": int(row), "n": int(n), "gpr": int(register), "cfr": int(register),
            "gpr2": int(value), "data": int(value),
        }  # fmt: skip
        yield op, {k: of[k] for k in op.text}


def _check(name: str, given: Mapping[str, Any], device: Any, field: str, where: str) -> None:
    if name not in OP:
        raise InputError(f"{field}op", name, "an instruction", known=OP, where=where)
    op = OPS[OP[name]]
    n_channel = int(device.n_channel)
    n_row_burst = int(device.row_bytes) // int(device.burst_bytes)
    limits = {
        "ch": (0, n_channel - 1, "channel"),
        "bank": (0, int(device.n_bank) - 1, "bank"),
        "row": (0, int(device.n_row) - 1, "row"),
        "n": (1, n_row_burst if op.command else _LARGEST, "number of bursts, within a row"),
        "gpr": (0, _GPR, "register"),
        "gpr2": (0, _GPR, "register"),
        "cfr": (0, _GPR, "register"),
        "data": (-_LARGEST, _LARGEST, "number"),
    }
    for operand in op.text:
        key = field + _NAME[operand]
        if operand not in given:
            if operand in _REQUIRED:
                raise InputError(key, None, f"a {operand} ({name} takes one)", where=where)
            continue
        value = given[operand]
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(key, value, "a whole number", where=where)
        if operand == "mask":
            _check_mask(name, value, n_channel, key, where)
        else:
            low, high, noun = limits[operand]
            if not low <= value <= high:
                raise InputError(key, value, f"a {noun}, {low} to {high}", where=where)


def _check_mask(name: str, mask: int, n_channel: int, key: str, where: str) -> None:
    if not 0 < mask < 2**32:
        raise InputError(key, mask, "a mask of 32 bits with at least one channel", where=where)
    for channel in range(n_channel, 32):
        if mask >> (31 - channel) & 1:
            rule = f"channels 0 to {n_channel - 1} (bit 31 - c selects channel c)"
            raise InputError(key, f"{mask:#x} with channel {channel}", rule, where=where)
    if name == "WR_ABK" and mask.bit_count() != 1:
        raise InputError(key, f"{mask:#x}", "exactly one channel (WR_ABK)", where=where)


def _check_end(instructions: list[tuple[str, Any]], field: str, where: str) -> None:
    names = [name for name, _ in instructions]
    if not names or names[-1] != "EOC":
        last = names[-1] if names else "nothing"
        raise InputError(field, last, "EOC as the last instruction", where=where)
    if "EOC" in names[:-1]:
        raise InputError(field, "an earlier EOC", "EOC as the last instruction only", where=where)


def _text_name(words: list[str], where: str) -> tuple[str, list[str]]:
    """The neutral name of a text instruction, and its operands."""
    if words[0] == "AiM":
        if len(words) < 2:
            raise InputError("op", "AiM", "an instruction after AiM", where=where)
        return words[1], words[2:]
    if words[0] in ("R", "W") and len(words) > 1:
        return f"{words[0]}_{words[1]}", words[2:]
    raise InputError("op", words[0], "AiM, R or W", where=where)


def _text_words(op: Op) -> Sequence[str]:
    is_plain = op.name in ("W_MEM", "R_MEM", "W_GPR", "R_GPR", "W_CFR", "R_CFR")
    return op.name.split("_") if is_plain else ["AiM", op.name]


def _integer(word: str, operand: str, where: str) -> int:
    try:
        return int(word, 0)
    except ValueError:
        raise InputError(operand, word, "a whole number", where=where) from None


def _measured(value: Any, field: str, where: str) -> int | None:
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise InputError(field, value, "a number of measured cycles", where=where)
    return value


def _counts(value: Any, where: str) -> dict[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise InputError("counts", value, "counts by command", where=where)
    return {str(k): _measured(v, f"counts.{k}", where) or 0 for k, v in value.items()}


def _refresh(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    given = _counts(value, where) or {}
    if not {"nREFI", "nRFC"} <= set(given):
        raise InputError("refresh", value, "nREFI and nRFC in cycles", where=where)
    return given["nREFI"], given["nRFC"]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The non-empty lines of a file, with their numbers."""
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    yield number, line
    except (OSError, EOFError) as error:
        raise InputError("file", str(path), f"a readable file ({error})") from None
    except UnicodeDecodeError:
        raise InputError("file", str(path), "text in UTF-8") from None


def _chain(head: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield head
    yield from rest
