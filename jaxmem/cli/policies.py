"""`jaxmem policies [NAME]`: PIM runtimes as points of the policy space, with sources."""

import click

from jaxmem.cli import output
from jaxmem.core import design as records
from jaxmem.pim import policy as policies

HEADINGS = {
    "year": "year",
    "dynamic_allocation": "dynamic",
    "paged_attention": "paged",
    "explicit_mapping": "explicit",
    "single_token_write": "token write",
    "processing_unit": "PU",
}
"""Columns of the PATTON paper's Table 1: dynamic memory allocation, PagedAttention support,
explicit channel-bank-row-column mapping, single-token write efficiency, processing unit."""


@click.command("policies")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(name: str | None, as_json: bool) -> None:
    """What the runtimes offer (Table 1 of PATTON), or the fields of NAME and their sources."""
    if name is None:
        rows = {n: policies.support(n) for n in policies.names()}
        if as_json:
            about = [{"name": n, "summary": policies.summary(n), **row} for n, row in rows.items()]
            output.print_json({"policies": about})
            return
        shown = [(n, *(row[column] for column in HEADINGS)) for n, row in rows.items()]
        output.table("Policies", ["name", *HEADINGS.values()], shown)
        for n in rows:
            click.echo(f"  {n}: {policies.summary(n)}")
        return
    point, sources = policies.Policy.create(name), policies.sources(name)
    rows = []
    for field, spec in records.specs(point).items():
        if spec.kind != "leaf":
            continue
        value = getattr(point, field)
        names = {code: text for text, code in spec.choices.items()}
        shown = names.get(int(value), "") if names else float(value)
        row = sources.get(field, {})
        note = "assumed: " if row.get("is_assumed") else ""
        rows.append((field, shown, note + row.get("source", "default")))
    if as_json:
        fields = {f: {"value": v, "source": s} for f, v, s in rows}
        output.print_json({"name": name, "fields": fields})
    else:
        shown_rows = [(f, f"{v:g}" if isinstance(v, float) else v, s) for f, v, s in rows]
        output.table(name, ["field", "value", "source"], shown_rows)
