"""`jaxmem bench`: points a second, gradient cost, event rates, compile and start-up time."""

import importlib.util
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click

import jaxmem
from jaxmem.cli import output
from jaxmem.core.errors import InputError


class Row(NamedTuple):
    """One measured figure.

    Attributes:
        name: what was measured.
        value: the figure.
        unit: its unit; `x` for a ratio.
        bar: what it is held against, in words.
        note: how it was measured, and whose figure the bar is.
    """

    name: str
    value: float
    unit: str
    bar: str = ""
    note: str = ""


def best_s(call: Callable[[], Any], n: int = 3) -> float:
    """Seconds of a warm call that waits for its result, the best of `n`."""
    import jax

    jax.block_until_ready(call())
    found = []
    for _ in range(n):
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return min(found)


@click.command("bench")
@click.argument("room", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(room: tuple[str, ...], as_json: bool) -> None:
    """Measure how fast jaxmem is here, in all rooms or in each ROOM named.

    Times are of warm programs, the best of several runs; compile and start-up time are apart.
    """
    known = _benchmarks()
    for name in room:
        if name not in known:
            raise InputError("room", name, f"one of {', '.join(known)}", known=known)
    measured = []
    for name in room or known:
        with output.counter(f"measuring {name}") as count:
            rows = []
            for row in _rows(known[name])():
                rows.append(row)
                count(len(rows))
        measured += [{"room": name, **row._asdict()} for row in rows]
        if not as_json:
            shown = [(r.name, output.quantity(r.value, r.unit), r.bar) for r in rows]
            output.table(name, ["measured", "value", "bar"], shown)
            for note in dict.fromkeys(f"{r.name}: {r.note}" for r in rows if r.note):
                click.echo(note)
    if as_json:
        output.print_json({"rows": measured})


def _benchmarks() -> dict[str, Path]:
    """The files of measurements by room: beside the package in a checkout, inside it in a wheel."""
    package = Path(jaxmem.__file__).parent
    for folder in (package / "_benchmarks", package.parent / "benchmarks"):
        if found := sorted(folder.glob("*.py")):
            return {path.stem: path for path in found}
    raise InputError("benchmarks", str(package), "files of measurements beside the package")


def _rows(path: Path) -> Callable[[], Iterator[Row]]:
    spec = importlib.util.spec_from_file_location(f"jaxmem_benchmark_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise InputError("benchmarks", str(path), "a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.rows
