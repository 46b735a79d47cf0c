"""`jaxmem time FILE`: PIM instruction streams to cycles, per-command counts and energy."""

from pathlib import Path

import click
import numpy as np

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.pim import energy, timing, trace_form
from jaxmem.pim.engine import MODES


@click.command("time")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--mode", default="device", help="device (default) or simulator.")
@click.option("--refresh/--no-refresh", default=None, help="Default: on in device mode alone.")
@click.option("--device", default="aim-gddr6-16gib", help="Catalog name or path of a TOML file.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(file: Path, mode: str, refresh: bool | None, device: str, as_json: bool) -> None:
    """Time the instruction streams in FILE, exactly.

    FILE holds cases in the neutral JSON form, one a line, or a text trace of the AiM simulator.
    Where a case carries measured cycles and counts, the error is given too.
    """
    if mode not in MODES:
        raise InputError("--mode", mode, " or ".join(MODES), known=MODES)
    pim = jm.devices.load(device, kind="pim")
    results, errors, exact = [], [], 0
    with output.counter(f"timing {file.name}") as count:
        for case in trace_form.read(file, pim):
            found = timing.run(case.stream, pim, mode, refresh)
            cycles = int(found.cycles)
            counts = {name: int(n) for name, n in found.counts.items() if int(n)}
            joule = float(energy.stream_module_j(found, pim))
            error = None
            if case.cycles is not None:
                error = abs(cycles / case.cycles - 1) if case.cycles else float(cycles > 0)
                errors.append(error)
                exact += cycles == case.cycles and case.counts in (None, counts)
            cause = {name: float(n) for name, n in found.cause.items()}
            results.append((case, cycles, counts, joule, error, cause))
            count(len(results))
    if as_json:
        output.print_json(
            {
                "cases": len(results),
                "exact": exact if errors else None,
                "max_rel_error": max(errors) if errors else None,
                "mean_rel_error": float(np.mean(errors)) if errors else None,
                "results": [
                    {"id": case.id, "cycles": cycles, "counts": counts, "energy_j": joule}
                    for case, cycles, counts, joule, *_ in results
                ],
            }
        )
        return
    _show(results, float(pim.clock_s))
    if errors:
        click.echo(
            f"{exact} of {len(errors)} measured cases exact in cycles and counts; "
            f"largest error {max(errors):.2%}"
        )


def _show(results: list, clock_s: float) -> None:
    rows = [
        (
            case.id,
            f"{cycles:,}",
            output.quantity(cycles * clock_s, "s"),
            output.quantity(joule, "J"),
            "-" if error is None else f"{error:.2%}",
        )
        for case, cycles, _, joule, error, _ in results
    ]
    output.table("Streams", ["stream", "cycles", "time", "energy", "error"], rows)
    if len(results) == 1:
        _, cycles, counts, _, _, cause = results[0]
        shares = [(name, f"{n:,.0f}", f"{n / max(cycles, 1):.1%}") for name, n in cause.items()]
        output.table("Where a channel's time goes", ["cause", "cycles", "share"], shares)
        output.table("Commands, all channels", ["command", "count"], sorted(counts.items()))
