"""`jaxmem evaluate {pim,hbf}`: one design point, with a breakdown of its time and energy."""

import dataclasses
from typing import Any

import click

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core import design as records
from jaxmem.core.errors import InputError

MODEL = {"pim": "llama3-8b", "hbf": "qwen3-235b-a22b"}
DEVICE = {"pim": "aim-gddr6-16gib", "hbf": "8xCSI"}


@click.command("evaluate")
@click.argument("system", type=click.Choice(["pim", "hbf"]))
@click.option("--model", help="Zoo name or path of a Hugging Face config.json.")
@click.option("--device", help="Catalog name or path of a TOML file.")
@click.option("--policy", help="PIM runtime (pim only).")
@click.option("--set", "assign", multiple=True, metavar="PATH=VALUE", help="Set one field.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(system, model, device, policy, assign, as_json) -> None:
    """Evaluate one design point of SYSTEM.

    Workload fields choose the workload: batch and context_tokens a decode step, input_tokens,
    output_tokens, slo_s and max_batch steady serving at the largest batch.
    """
    if policy and system == "hbf":
        raise InputError("--policy", policy, "no policy: hbf has none")
    design, workload = point(system, model, device, policy, assign)
    metrics = (jm.pim if system == "pim" else jm.hbf).evaluate(design, workload)
    if as_json:
        output.print_json(output.metrics_json(metrics))
    else:
        output.print_metrics(metrics)


def point(system: str, model=None, device=None, policy=None, assign=()) -> tuple[Any, Any]:
    """(design, workload) from flags.

    Raises:
        InputError: an unknown name or path, or a bad value.
    """
    names = {"device": device or DEVICE[system], "llm": model or MODEL[system]}
    if system == "pim":
        design: Any = jm.pim.Design.create(**names, policy=policy or "patton")
    else:
        design = jm.hbf.Design.create(**names)
    settings = [_split(text) for text in assign]
    workload = _workload(system, dict(settings))
    for path, value in settings:
        if path.startswith("workload."):
            continue
        try:
            design = records.with_value(design, path, value)
        except InputError as error:
            if error.field != "path":
                raise
            known = [p for p, _ in records.paths(design)]
            known += [f"workload.{name}" for kind in _WORKLOAD.values() for name in _names(kind)]
            raise InputError("--set", path, "a field", known=known) from None
    return design, workload


_WORKLOAD: dict[str, Any] = {"decode": jm.Decode, "serve": jm.Serve}


def _names(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _workload(system: str, settings: dict[str, str]) -> Any:
    given = {
        p.removeprefix("workload."): v for p, v in settings.items() if p.startswith("workload.")
    }
    fits = [kind for kind in _WORKLOAD.values() if set(given) <= set(_names(kind))]
    if not fits:
        known = [f"workload.{name}" for kind in _WORKLOAD.values() for name in _names(kind)]
        for name in given:
            if f"workload.{name}" not in known:
                raise InputError("--set", f"workload.{name}", "a field", known=known)
        mixed = ", ".join(f"workload.{name}" for name in given)
        raise InputError("--set", mixed, "fields of one workload: a decode step or serving")
    default = _WORKLOAD["decode" if system == "pim" else "serve"]
    return (default if default in fits else fits[0]).create(**given)


def _split(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator or not path.strip() or not value.strip():
        raise InputError("--set", text, "PATH=VALUE, such as workload.batch=32")
    return path.strip(), value.strip()
