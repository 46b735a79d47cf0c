"""`jaxmem policies [NAME]`: PIM runtimes as points of the policy space, with sources."""

import click

from jaxmem.cli import output
from jaxmem.core import design as records
from jaxmem.pim import policy as policies


@click.command("policies")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(name: str | None, as_json: bool) -> None:
    """List the runtimes, or show the fields of NAME and where they come from."""
    if name is None:
        rows = [(n, policies.summary(n)) for n in policies.names()]
        if as_json:
            output.print_json({"policies": [{"name": n, "summary": s} for n, s in rows]})
        else:
            output.table("Policies", ["name", "what it is"], rows)
        return
    point, sources = policies.Policy.create(name), policies.sources(name)
    rows = []
    for field, spec in records.specs(point).items():
        if spec.kind != "leaf":
            continue
        value = getattr(point, field)
        names = {code: text for text, code in spec.choices.items()}
        shown = names.get(int(value), "") if names else float(value)
        rows.append((field, shown, sources.get(field, {}).get("source", "default")))
    if as_json:
        fields = {f: {"value": v, "source": s} for f, v, s in rows}
        output.print_json({"name": name, "fields": fields})
    else:
        shown_rows = [(f, f"{v:g}" if isinstance(v, float) else v, s) for f, v, s in rows]
        output.table(name, ["field", "value", "source"], shown_rows)
