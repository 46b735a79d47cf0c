"""`jaxmem validate [BODY [FILE]]`: the error against each body of reference data."""

from pathlib import Path

import click

from jaxmem import validation
from jaxmem.cli import output
from jaxmem.core.errors import InputError
from jaxmem.validation.body import REFERENCE


@click.command("validate")
@click.argument("body", required=False)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(body: str | None, file: Path | None, as_json: bool) -> None:
    """Hold the model against BODY, or against every body whose data is here.

    FILE is any file of the body's format. Without it: the data that ships with the package, and
    what lies below the folder that JAXMEM_REFERENCE names.
    """
    known = validation.bodies()
    if body is not None and body not in known:
        raise InputError("body", body, f"one of {', '.join(known)}", known=known)
    reports, absent = [], []
    for name in [body] if body else known:
        with output.counter(f"checking {name}") as count:
            report = validation.validate(known[name], file, count)
        if report is None:
            absent.append(name)
        else:
            reports.append(report)
    if body and absent:
        rule = f"its data: a FILE, or {REFERENCE} naming a folder with {known[body].file}"
        raise InputError("body", body, rule)
    if as_json:
        output.print_json({"bodies": reports})
        return
    for report in reports:
        _show(report, known[report["body"]].doc)
    for name in absent:
        click.echo(f"{name}: no data here ({REFERENCE} names no folder with {known[name].file})")


def _show(report: dict, doc: str) -> None:
    head = f"{report['body']}: {report['exact']} of {report['cases']} cases exact ({doc})"
    families = {**dict(sorted(report["families"].items())), "all": report}
    rows = [
        (name, found["cases"], *(f"{found[key]:.2%}" for key in _COLUMNS))
        + ((f"{found['bias']:+.1%}",) if "bias" in found else ("",))
        for name, found in families.items()
    ]
    has_bias = any("bias" in found for found in families.values())
    columns = ["family", "cases", "mean", "median", "90 %", "worst", *(["bias"] * has_bias)]
    output.table(head, columns, [row[: len(columns)] for row in rows])
    for reason, n in report["left_out"].items():
        click.echo(f"left out, {n}: {reason}")
    if has_bias:
        return
    if report["mismatches"]:
        shown = ", ".join(report["mismatches"][:8])
        rest = len(report["mismatches"]) - 8
        click.echo(f"not exact: {shown}" + (f" and {rest} more" if rest > 0 else ""))


_COLUMNS = ("mean_rel_error", "median_rel_error", "p90_rel_error", "max_rel_error")
