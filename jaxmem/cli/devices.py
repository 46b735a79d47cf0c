"""`jaxmem devices [NAME]`: the catalog, and every value of one device with its source."""

import dataclasses
import math

import click

from jaxmem.cli import output
from jaxmem.devices import catalog


@click.command("devices")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(name: str | None, as_json: bool) -> None:
    """List the devices, or show NAME (a catalog name or the path of a TOML file)."""
    if name is None:
        rows = [
            {"name": n, "kind": kind, "summary": catalog.summary(n)}
            for kind in catalog.KINDS
            for n in catalog.names(kind)
        ]
        if as_json:
            output.print_json({"devices": rows})
        else:
            output.table(
                "Devices",
                ["name", "kind", "what it is"],
                [(r["name"], r["kind"], r["summary"]) for r in rows],
            )
        return
    rows = catalog.rows(name)
    if as_json:
        fields = {
            row.field: {k: v for k, v in dataclasses.asdict(row).items() if k != "field"}
            for row in rows
        }
        output.print_json({"name": name, "fields": fields})
        return
    output.table(
        name,
        ["field", "value", "unit", "confidence", "source"],
        [
            (
                r.field,
                _shown(r.value),
                r.unit,
                r.confidence,
                r.source,
            )
            for r in rows
        ],
    )


def _shown(value: float | int) -> str:
    """A catalog's number as written; a dash where it is not known."""
    if isinstance(value, int):
        return str(value)
    return "-" if math.isnan(value) else f"{value:g}"
