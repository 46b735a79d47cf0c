"""`jaxmem evaluate {pim,hbf}`: one design point, with a breakdown of its time and energy."""

import dataclasses
from typing import Any

import click
import numpy as np

import jaxmem as jm
from jaxmem.cli import output
from jaxmem.core import design as records
from jaxmem.core.errors import InputError, nearest

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
    if policy is not None and system == "hbf":
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
    names = {
        "device": DEVICE[system] if device is None else device,
        "llm": MODEL[system] if model is None else model,
    }
    if system == "pim":
        runtime = "patton" if policy is None else policy
        design: Any = jm.pim.Design.create(**names, policy=runtime)
    else:
        design = jm.hbf.Design.create(**names)
    settings = [_split(text) for text in assign]
    workload = _workload(system, dict(settings), design)
    for path, value in settings:
        if not path.startswith("workload."):
            design = _with_setting(design, path, value)
    return design, workload


_WORKLOAD: dict[str, Any] = {"decode": jm.Decode, "serve": jm.Serve}


def _names(kind: Any) -> list[str]:
    return [f.name for f in dataclasses.fields(kind)]


def _with_setting(design: Any, path: str, value: str) -> Any:
    try:
        full, spec = records.resolve(design, path)
    except InputError:
        raise _unknown(path, design) from None
    present = records.get(design, full)
    if np.ndim(present) > 0:
        rule = "a field that holds one number (this one holds one for each kind of layer)"
        raise InputError("--set", path, rule)
    try:
        if spec.kind == "leaf" or spec.parse is not None:
            return records.with_value(design, full, value)
    except InputError as error:
        if error.field != type(present).__name__:
            raise
    # What is left is a table of fields, which no name stands for.
    inside = next(p for p, _ in records.paths(design) if p.startswith(f"{full}."))
    raise InputError("--set", path, f"a single field, such as {inside}")


def _unknown(path: str, design: Any) -> InputError:
    """The error for a path that names nothing; the nearest field is named by its full path."""
    full: dict[str, tuple[str, ...]] = {
        f"workload.{name}": () for kind in _WORKLOAD.values() for name in _names(kind)
    }
    full |= {p: spec.alias for p, spec in records.paths(design)}
    meant = {p: p for p in full}
    for p, alias in full.items():  # users leave out the owner, or know the field by its alias
        for name in (p.rpartition(".")[2], *alias):
            meant.setdefault(name, p)
    hint = meant.get(nearest(path, meant))
    if hint is None or nearest(path, [hint]):
        return InputError("--set", path, "a field", known=[hint] if hint else [])
    return InputError("--set", path, f"a field such as {hint}")


def _workload(system: str, settings: dict[str, str], design: Any) -> Any:
    given = {
        p.removeprefix("workload."): v for p, v in settings.items() if p.startswith("workload.")
    }
    fits = [kind for kind in _WORKLOAD.values() if set(given) <= set(_names(kind))]
    if not fits:
        known = [f"workload.{name}" for kind in _WORKLOAD.values() for name in _names(kind)]
        for name in given:
            if f"workload.{name}" not in known:
                raise _unknown(f"workload.{name}", design)
        mixed = ", ".join(f"workload.{name}" for name in given)
        raise InputError("--set", mixed, "fields of one workload: a decode step or serving")
    default = _WORKLOAD["decode" if system == "pim" else "serve"]
    try:
        return (default if default in fits else fits[0]).create(**given)
    except InputError as error:
        raise InputError(f"workload.{error.field}", error.value, error.expected) from None


def _split(text: str) -> tuple[str, str]:
    path, separator, value = text.partition("=")
    if not separator or not path.strip() or not value.strip():
        raise InputError("--set", text, "PATH=VALUE, such as workload.batch=32")
    return path.strip(), value.strip()
