"""`jaxmem models [NAME]`: the zoo, and one model's numbers with their source."""

import click

from jaxmem import llm
from jaxmem.cli import output


@click.command("models")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(name: str | None, as_json: bool) -> None:
    """List the models, or show NAME (a zoo name or the path of a config.json)."""
    if name is None:
        rows = [_facts(llm.load(n)) for n in llm.names()]
        if as_json:
            output.print_json({"models": rows})
            return
        shown = [
            (
                r["name"],
                f"{r['n_param']:,}",
                f"{r['n_param_active']:,}",
                f"{r['kv_bytes_token']:,.0f}",
            )
            for r in rows
        ]
        output.table("Models", ["name", "parameters", "active", "KV B/token"], shown)
        return
    facts = _facts(llm.load(name))
    if as_json:
        output.print_json(facts)
    else:
        rows = [(k, f"{v:,.0f}" if isinstance(v, int | float) else v) for k, v in facts.items()]
        output.table(facts["name"], ["field", "value"], rows)


def _facts(model: llm.LLM) -> dict:
    table = llm.table(model)
    return {
        "name": model.name,
        "n_param": model.n_param,
        "n_param_active": model.n_param_active,
        "kv_bytes_token": model.kv_bytes_token(),
        "weight_bytes": float(llm.weight_bytes(table)),
        "n_layer": int(sum(group.n_layer for group in model.groups)),
        "hidden": model.hidden,
        "vocab": model.vocab,
        "source": model.source,
    }
