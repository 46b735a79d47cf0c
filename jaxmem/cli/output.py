"""What commands print: one JSON object, or tables for people."""

import contextlib
import json
import math
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

import click
import numpy as np

from jaxmem.core import design as records
from jaxmem.core.metrics import LIMIT_TEXT, LIMITS
from jaxmem.core.units import DAY_S, YEAR_S

_LIMIT_NAME = {code: name for name, code in LIMITS.items()}
_PREFIX = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]
_SMALL = [(1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p")]
_PREFIXED = ("s", "J", "W", "B", "B/s", "FLOP/s")


def print_json(value: Any) -> None:
    """One JSON object on stdout; what is unknown is null."""
    click.echo(json.dumps(plain(value), allow_nan=False))


def plain(value: Any) -> Any:
    """`value` in JSON's own types: NaN and infinities become null, -0.0 becomes 0.0."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value + 0.0 if math.isfinite(value) else None
    return value


def metrics_json(metrics: Any) -> dict[str, Any]:
    """The fields of a metrics record, `limit` by name."""
    fields = {name: getattr(metrics, name) for name in records.specs(metrics)}
    return fields | {
        "feasible": bool(metrics.feasible),
        "limit": _LIMIT_NAME[int(metrics.limit)],
    }


def print_metrics(metrics: Any) -> None:
    """Headline first, then where time and energy go."""
    limit = _LIMIT_NAME[int(metrics.limit)]
    if not bool(metrics.feasible):
        click.echo(f"infeasible ({limit}): {LIMIT_TEXT[limit]}")
        return
    rows = [
        (name, quantity(getattr(metrics, name), spec.unit), spec.doc)
        for name, spec in records.specs(metrics).items()
        if spec.kind == "leaf" and name not in ("feasible", "limit")
    ]
    table("Metrics", ["metric", "value", "meaning"], rows)
    for title, parts, unit in (
        ("Time of a decode step", metrics.parts, "s"),
        ("Energy of a decode step", metrics.energy_parts, "J"),
    ):
        total = sum(float(v) for v in parts.values())
        rows = [
            (name, quantity(value, unit), _share(float(value), total))
            for name, value in sorted(parts.items(), key=lambda kv: -float(kv[1]))
            if float(value)
        ]
        table(title, ["part", unit, "share"], rows)
    click.echo(f"limit: {limit} ({LIMIT_TEXT[limit]})")


def _share(value: float, total: float) -> str:
    return f"{value / total:.1%}" if math.isfinite(value / total) else "-"


def table(title: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """A table on stdout; only a last column of words gives way on a narrow terminal."""
    from rich.console import Console
    from rich.table import Table

    console = Console(soft_wrap=False, markup=False, emoji=False, highlight=False)
    shown = Table(header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        cells = [str(row[i]) for row in rows]
        is_number = i > 0 and any(c[:1].isdigit() for c in cells) and all(map(_is_number, cells))
        is_fixed = is_number or i < len(columns) - 1
        justify = "right" if is_number else "left"
        shown.add_column(column, justify=justify, overflow="fold", no_wrap=is_fixed)
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    console.print(title, style="italic", highlight=False)
    console.print(shown)


def _is_number(cell: str) -> bool:
    return not cell or cell.lstrip("-")[:1].isdigit() or cell == "-"


def quantity(value: Any, unit: str) -> str:
    """A number with its unit, with an SI prefix where that is usual; a dash where it is unknown.

    Example:
        >>> quantity(0.0312, "s"), quantity(float("nan"), "J")
        ('31.2 ms', '-')
    """
    number = math.nan if value is None else float(value)
    if not math.isfinite(number):
        return "-"
    if unit == "s" and abs(number) >= DAY_S:
        name, factor = ("years", YEAR_S) if abs(number) >= YEAR_S else ("days", DAY_S)
        number, unit = number / factor, name
    if unit not in _PREFIXED:
        text = f"{number:,.4g}" if abs(number) < 9999.5 else f"{number:,.0f}"
        return text if unit == "1" else f"{text} {unit}"
    number = float(f"{number:.3g}")  # rounded first: 0.9999 s is 1 s, not 1e+03 ms
    for factor, prefix in _PREFIX + _SMALL:
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"


@contextlib.contextmanager
def progress(text: str) -> Generator[Callable[[int, int], None]]:
    """A bar on stderr with rate and time left; yields what takes (done, total)."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    shown = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    started = time.perf_counter()
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(text, total=None, rate="")

        def advance(done: int, total: int) -> None:
            rate = f"{done / (time.perf_counter() - started):,.0f} points/s"
            bar.update(task, completed=done, total=total, rate=rate)

        yield advance


@contextlib.contextmanager
def counter(text: str) -> Generator[Callable[[int], None]]:
    """A running count on stderr, where the total is not known; yields what takes the count."""
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield lambda n: status.update(f"{text}: {n:,}")
