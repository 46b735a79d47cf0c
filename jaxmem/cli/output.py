"""What commands print: one JSON object, or tables for people."""

import json
import math
from collections.abc import Mapping
from typing import Any

import click
import numpy as np

from jaxmem.core import design as records
from jaxmem.core.metrics import LIMIT_TEXT, LIMITS

_LIMIT_NAME = {code: name for name, code in LIMITS.items()}
_PREFIX = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, "")]
_SMALL = [(1e-3, "m"), (1e-6, "u"), (1e-9, "n"), (1e-12, "p")]


def print_json(value: Any) -> None:
    """One JSON object on stdout; what is unknown is null."""
    click.echo(json.dumps(plain(value), allow_nan=False))


def plain(value: Any) -> Any:
    """`value` in JSON's own types: NaN and infinities become null."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
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
            (name, quantity(value, unit), f"{float(value) / total:.1%}")
            for name, value in sorted(parts.items(), key=lambda kv: -float(kv[1]))
            if float(value)
        ]
        table(title, ["part", unit, "share"], rows)
    click.echo(f"limit: {limit} ({LIMIT_TEXT[limit]})")


def table(title: str, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
    """A table on stdout."""
    from rich.console import Console
    from rich.table import Table

    shown = Table(title=title, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        is_number = bool(rows) and i > 0 and str(rows[0][i])[:1].isdigit()
        shown.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in rows:
        shown.add_row(*(str(cell) for cell in row))
    Console(soft_wrap=False).print(shown)


def quantity(value: Any, unit: str) -> str:
    """A number with an SI prefix and its unit; a dash where it is unknown.

    Example:
        >>> quantity(0.0312, "s"), quantity(float("nan"), "J")
        ('31.2 ms', '-')
    """
    number = float(value)
    if not math.isfinite(number):
        return "-"
    if unit in ("1", "mm2", "requests", "rows", "blocks", "tokens"):
        text = f"{number:,.4g}" if abs(number) < 1e4 else f"{number:,.0f}"
        return text if unit == "1" else f"{text} {unit}"
    for factor, prefix in _PREFIX + _SMALL:
        if abs(number) >= factor:
            return f"{number / factor:.3g} {prefix}{unit}"
    return f"{number:.3g} {unit}"
