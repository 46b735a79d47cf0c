"""`jaxmem sweep SPEC.toml --out RUN.zarr`: a design space, streamed to disk."""

import time

import click

from jaxmem import explore
from jaxmem.cli import output
from jaxmem.explore import spec as specs


@click.command("sweep")
@click.argument("spec", type=click.Path())
@click.option("--out", required=True, type=click.Path(), help="Folder to write (Zarr).")
@click.option("--resume", is_flag=True, help="Continue a sweep that stopped.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(spec: str, out: str, resume: bool, as_json: bool) -> None:
    """Evaluate every point of the space in SPEC (a TOML file, see docs/spec.md).

    Ctrl-C keeps the chunks that are done; --resume continues from there.
    """
    study = specs.read(spec)
    started = time.perf_counter()
    with output.progress(f"sweeping {spec}") as advance:
        ds = explore.sweep(
            study.fn,
            study.design,
            study.workload,
            study.space,
            out=out,
            resume=resume,
            progress=advance,
            **study.sweep,
        )
    seconds = time.perf_counter() - started
    n_point = int(ds.feasible.size)
    removed = explore.removed(ds)
    if as_json:
        summary = {"out": out, "n_point": n_point, "n_feasible": int(ds.feasible.sum())}
        output.print_json({**summary, "removed": removed, "seconds": seconds})
        return
    rows = [(limit, f"{n:,}", f"{n / n_point:.1%}") for limit, n in removed.items()]
    output.table(f"{n_point:,} points in {seconds:.1f} s", ["removed by", "points", "share"], rows)
    click.echo(f"written: {out}")
