"""`jaxmem optimize SPEC.toml`: a search under constraints."""

import click

from jaxmem import explore
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.explore import spec as specs


@click.command("optimize")
@click.argument("spec", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(spec: str, as_json: bool) -> None:
    """Search the space in SPEC (a TOML file, see docs/spec.md) by gradient."""
    study = specs.read(spec)
    if not study.search:
        raise InputError("search", None, "a table with minimize or maximize", where=spec)
    found = explore.optimize(study.fn, study.design, study.workload, study.space, **study.search)
    if as_json:
        output.print_json(
            {
                "feasible": found.feasible,
                "choice": found.choice,
                "binding": found.binding,
                "sensitivity": found.sensitivity,
                "n_evaluation": found.n_evaluation,
                "n_gradient": found.n_gradient,
                "metrics": output.metrics_json(found.metrics),
            }
        )
        return
    if not found.feasible:
        click.echo("no point of the space meets every constraint; the nearest miss:")
    rows = [
        (path, f"{v:g}" if isinstance(v, float) else v, f"{found.sensitivity.get(path, 0):+.3f}")
        for path, v in found.choice.items()
    ]
    output.table("Best design", ["field", "value", "elasticity"], rows)
    output.print_metrics(found.metrics)
    click.echo(f"binding: {', '.join(found.binding) or 'none'}")
    click.echo(f"evaluations: {found.n_evaluation:,}, {found.n_gradient:,} with their gradient")
