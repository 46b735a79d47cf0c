"""DRAM commands of a PIM channel and the least distances between them, as a table of data.

The rules of research/aim.md section 3.4: after command A, command B waits so many cycles, in the
whole channel, in the bank group or in the bank. Each distance is an expression in the device's
timing parameters, so that a table is built from traced numbers. The rows of `REFab` and of the
extensions (`WRO16`, `WRK16`, `MACO16`: research/aim.md knows none of them) are those of the
command each resembles.
"""

import re
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxmem.core.design import Leaf, specs
from jaxmem.devices.dram import PimTiming

# Commands to one bank come first: only they have rules in the bank group and in the bank. Those
# of a matrix-vector product come next: most streams have no others, and a program for a slice of
# the codes is faster.
BANK_COMMAND = ("ACT", "PRE", "RD", "WR", "MAC", "RDCP", "WRCP")
PRODUCT_COMMAND = (
    "ACT16", "PREA", "TMOD", "REFab", "WRGB", "WRMAC16", "RDMAC16", "MAC16",
)  # fmt: skip
COMMAND = (
    *BANK_COMMAND, *PRODUCT_COMMAND, "RDAF16", "AF16", "EWMUL16", "WRA16", "WRO16", "WRK16",
    "MACO16",
)  # fmt: skip
CODE = {name: code for code, name in enumerate(COMMAND)}
EXTENSION = ("WRO16", "WRK16", "MACO16")
ABSENT = -(10**9)  # "no rule": earlier than any tick, and far from overflow when added to one

_READ = "RD RDMAC16 RDAF16 MAC MAC16 MACO16 RDCP"
_WRITE = "WR WRA16 WRO16 WRK16 WRGB WRMAC16 WRCP"
_WRITE_ALL = "WRA16 WRO16 WRK16"
_WRITE_ROW = "n_cwl + n_bl + n_wr"
_TURN = "n_cl + n_bl + 3 + n_wpre"
_TURN_REGISTER = "n_cl_register + n_bl + 3 + n_wpre"

RULES: tuple[tuple[str, str, str, str], ...] = (
    # level, previous commands, next commands, cycles
    ("channel", _READ, _READ + " EWMUL16", "n_ccd"),
    ("channel", _WRITE, _WRITE, "n_bl"),
    ("channel", "WR WRA16 WRO16 WRK16 WRCP WRMAC16", "EWMUL16", "n_ccd"),
    ("channel", "EWMUL16", f"{_READ} EWMUL16 WR {_WRITE_ALL} WRCP WRMAC16", "n_ccd"),
    ("channel", "RD", f"WR {_WRITE_ALL}", f"{_TURN} - n_cwl"),
    ("channel", "RD", "WRGB WRMAC16", f"{_TURN} - n_cwl_buffer"),
    ("channel", "RDMAC16 RDAF16", f"WR {_WRITE_ALL}", f"{_TURN_REGISTER} - n_cwl"),
    ("channel", "RDMAC16 RDAF16", "WRGB WRMAC16", f"{_TURN_REGISTER} - n_cwl_register"),
    ("channel", "WR", "RD", "n_cwl + n_bl + n_wtr_s"),
    ("channel", "WR", "RDMAC16 RDAF16", "n_cwl + n_bl + n_wtr_l"),
    ("channel", _WRITE_ALL, "RD RDMAC16 RDAF16", "n_cwl + n_bl + n_wtr_l"),
    ("channel", "WRGB", "RD RDMAC16 RDAF16", "n_cwl_buffer + n_bl + n_wtr_s"),
    ("channel", "WRMAC16", "RD RDMAC16 RDAF16", "n_cwl_register + n_bl + n_wtr_l"),
    ("channel", "RD RDCP MAC MAC16 MACO16 AF16", "PREA", "n_rtp"),
    ("channel", "MAC16 MACO16 AF16", "PRE", "n_rtp"),
    ("channel", "WR WRCP WRO16 WRK16", "PREA", _WRITE_ROW),
    ("channel", "WRO16 WRK16", "PRE", _WRITE_ROW),
    ("channel", "EWMUL16", "PRE PREA", "n_cwl + n_wr"),
    ("channel", "ACT", "ACT", "n_rrd_s"),
    ("channel", "ACT ACT16", "ACT16 REFab", "n_rc"),
    ("channel", "ACT16", "ACT", "n_rc"),
    ("channel", "ACT ACT16", "PREA", "n_ras"),
    ("channel", "ACT16", "PRE", "n_ras"),
    ("channel", "PRE PREA", "ACT16 PREA REFab", "n_rp"),
    ("channel", "PREA", "ACT PRE", "n_rp"),
    ("channel", "ACT ACT16", "MAC16 MACO16", "n_rcd_mac"),
    ("channel", "ACT ACT16", "AF16", "n_rcd_af"),
    ("channel", "ACT ACT16", "EWMUL16", "n_rcd_ewmul"),
    ("channel", "ACT ACT16", _WRITE_ALL, "n_rcd_wr"),
    ("channel", "ACT16", "MAC", "n_rcd_mac"),
    ("channel", "ACT16", "RDCP", "n_rcd_rdcp"),
    ("channel", "ACT16", "RD", "n_rcd_rd"),
    ("channel", "ACT16", "WRCP", "n_rcd_wrcp"),
    ("channel", "ACT16", "WR", "n_rcd_wr"),
    ("channel", "WRA16", "ACT ACT16 REFab", f"{_WRITE_ROW} + n_rp"),
    ("channel", "REFab", "ACT ACT16 REFab", "n_rfc"),
    ("channel", "TMOD", " ".join(c for c in COMMAND if c != "TMOD"), "n_mode_change"),
    ("group", "ACT", "ACT", "n_rrd_l"),
    ("group", "WR", "RD", "n_cwl + n_bl + n_wtr_l"),
    ("bank", "ACT", "ACT", "n_rc"),
    ("bank", "ACT", "PRE", "n_ras"),
    ("bank", "ACT", "MAC", "n_rcd_mac"),
    ("bank", "ACT", "RDCP", "n_rcd_rdcp"),
    ("bank", "ACT", "RD", "n_rcd_rd"),
    ("bank", "ACT", "WRCP", "n_rcd_wrcp"),
    ("bank", "ACT", "WR", "n_rcd_wr"),
    ("bank", "PRE", "ACT PRE", "n_rp"),
    ("bank", "RD RDCP MAC", "PRE", "n_rtp"),
    ("bank", "WR WRCP", "PRE", _WRITE_ROW),
)

# Cycles from a command to its completion; every other command takes one.
LATENCY = {
    "WR": "n_cwl + n_bl",
    "WRO16": "n_cwl + n_bl",
    "WRK16": "n_cwl + n_bl",
    "WRA16": "n_cwl + n_bl + n_rp",
    "WRGB": "n_cwl_buffer + n_bl",
    "WRMAC16": "n_cwl_register + n_bl",
    "RDMAC16": "n_cl_register + n_bl",
    "RDAF16": "n_cl_register + n_bl",
    "RD": "n_cl + n_bl",
}


class Table(NamedTuple):
    """Distances in cycles by [previous, next] command; `ABSENT` where there is no rule."""

    channel: Any  # [command, command]
    group: Any  # [bank command, bank command]
    bank: Any  # [bank command, bank command]
    latency: Any  # [command]
    spacing: Any  # [command] from one command to its next, at least the one a tick may issue
    n_refi: Any  # () cycles between refreshes
    n_faw: Any  # () window of four activations


PARAMETER = tuple(specs(PimTiming))


def table(timing: PimTiming) -> Table:
    """The distances of a device.

    Args:
        timing: cycles, concrete or traced, all of one dtype.

    Gradient: exact, linear in every parameter.
    Source: research/aim.md section 3.4.
    """
    value = [_value(text, timing) for text in _EXPRESSION]
    dtype = jnp.result_type(*value)
    absent = jnp.full((), ABSENT, dtype)
    one = jnp.ones((), dtype)
    values = jnp.stack([absent, one, *(jnp.asarray(v, dtype) for v in value)])
    channel = values[_INDEX["channel"]]
    n = len(BANK_COMMAND)
    return Table(
        channel=channel,
        group=values[_INDEX["group"][:n, :n]],
        bank=values[_INDEX["bank"][:n, :n]],
        latency=values[_LATENCY_INDEX],
        spacing=jnp.maximum(jnp.diagonal(channel), one),
        n_refi=jnp.asarray(timing.n_refi, dtype),
        n_faw=jnp.asarray(timing.n_faw, dtype),
    )


def refresh_cycles(timing: PimTiming) -> Leaf:
    """Cycles within which a channel refreshes and serves one more command; nREFI must be longer.

    Two changes of mode, a row's cycle and write recovery, the refresh, and a row opened again.
    """
    t = timing
    opens = jnp.maximum(jnp.maximum(t.n_rcd_mac, t.n_rcd_af), jnp.maximum(t.n_rcd_rdcp, t.n_rcd_wr))
    recovers = t.n_cwl + t.n_bl + t.n_wr
    return 2 * t.n_mode_change + t.n_rc + recovers + t.n_rp + t.n_rfc + opens


def part(t: Table, first: int, last: int) -> Table:
    """The distances among the commands `first` to `last` alone, whose codes stay what they are."""
    return t._replace(channel=t.channel[first:last, first:last])


def needed(commands: set[str]) -> set[str]:
    """The timing parameters on which the distances among `commands` depend."""
    found: set[str] = set()
    for _, before, after, text in RULES:
        if commands & set(before.split()) and commands & set(after.split()):
            found |= set(_terms(text)[0])
    for command, text in LATENCY.items():
        if command in commands:
            found |= set(_terms(text)[0])
    return found


def _terms(text: str) -> tuple[dict[str, int], int]:
    """({parameter: coefficient}, constant) of a sum such as `n_cl + n_bl + 3 - n_cwl`."""
    coefficient: dict[str, int] = {}
    constant = 0
    for sign, word in re.findall(r"([+-]?)\s*(\w+)", text):
        factor = -1 if sign == "-" else 1
        if word.isdigit():
            constant += factor * int(word)
        else:
            coefficient[word] = coefficient.get(word, 0) + factor
    return coefficient, constant


def _value(text: str, timing: PimTiming) -> Leaf:
    coefficient, constant = _terms(text)
    total = constant
    for name, factor in coefficient.items():
        total = total + factor * getattr(timing, name)
    return total


def _index() -> tuple[list[str], dict[str, np.ndarray], np.ndarray]:
    """The distinct expressions, and for each pair of commands the place of its own (0: none)."""
    expression: list[str] = []
    index = {level: np.zeros((len(COMMAND), len(COMMAND)), np.int32) for level in _LEVELS}

    def place(text: str) -> int:
        if text not in expression:
            expression.append(text)
        return expression.index(text) + 2  # after "absent" and "one"

    for level, before, after, text in RULES:
        for b in before.split():
            for a in after.split():
                if index[level][CODE[b], CODE[a]]:
                    raise ValueError(f"two rules from {b} to {a} in the {level}")
                index[level][CODE[b], CODE[a]] = place(text)
    latency = np.array([place(LATENCY[c]) if c in LATENCY else 1 for c in COMMAND], np.int32)
    return expression, index, latency


_LEVELS = ("channel", "group", "bank")
_EXPRESSION, _INDEX, _LATENCY_INDEX = _index()
