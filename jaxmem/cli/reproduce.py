"""`jaxmem reproduce {patton,flashaccel,all}`: every published number beside the model's."""

import click

from jaxmem import claims
from jaxmem.cli import output


@click.command("reproduce")
@click.argument("paper", type=click.Choice([*claims.PAPERS, "all"]))
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(paper: str, as_json: bool) -> None:
    """Recompute the published numbers of PAPER.

    Each is shown as published, with unfitted constants, and as shipped; its status is identity
    (it follows from stated numbers), predicted, fitted, missed, or not modelled.
    """
    rows = []
    for name in claims.PAPERS if paper == "all" else [paper]:
        with output.counter(f"computing the claims of {name}") as count:
            for number, row in enumerate(claims.reproduce(name), 1):
                rows.append(row)
                count(number)
    if as_json:
        output.print_json({"claims": rows})
        return
    shown = [
        (
            row["id"],
            *(output.quantity(row[key], row["unit"]) for key in ("published", "unfitted", "model")),
            "-" if row["rel_error"] is None else f"{row['rel_error']:+.1%}",
            row["status"],
        )
        for row in rows
    ]
    columns = ["claim", "published", "unfitted", "model", "error", "status"]
    output.table(f"{len(rows)} published numbers", columns, shown)
    for row in rows:
        click.echo(f"{row['id']} (section {row['section']}): {row['text']}; {row['note']}")
