"""`jaxmem demo`: both systems explored for a model and a traffic, searched, checked, drawn.

Two studies share one course: sweep a space of at least 100,000 points, search the same space by
gradient under a constraint, evaluate the winner on its own, compare it with the exhaustive best,
and draw both beside the paper's own design.
"""

import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

import jaxmem as jm
from jaxmem import explore
from jaxmem.cli import output
from jaxmem.core.units import YEAR_S
from jaxmem.serving import traces

CHANNELS = [1, 2, 4, 8, 16, 32]
GRANULES = [1, 2, 4, 8, 16, 32, 64]
BLOCKS = [16, 32, 64, 128]
MEGAPLANES = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96]
STACKS = [1, 2, 3, 4, 5, 6, 7, 8]
SLO_S = 0.05
"""FlashAccel's strict objective: about 20 tokens a second a user."""


class Study(NamedTuple):
    """One system's space and what is asked of it."""

    name: str
    title: str
    system: Any
    design: Any
    workload: Any
    space: dict[str, Any]  # the sweep's grid
    search: dict[str, Any]  # the same values, for the search
    maximize: str
    subject_to: tuple[explore.Bound, ...]
    paper: dict[str, float]  # the paper's own design
    paper_name: str


@click.command("demo")
@click.option("--model", help="Zoo name or path of a config.json, for both systems.")
@click.option("--lengths", type=click.Path(), help="CSV of request lengths.")
@click.option("--out", default="out/demo", type=click.Path(file_okay=False), help="Where to write.")
@click.option("--quick", is_flag=True, help="A tenth of the points.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(model: str | None, lengths: str | None, out: str, quick: bool, as_json: bool) -> None:
    """Explore PATTON and FlashAccel for a model and a traffic."""
    from jaxmem.report import figures, html

    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    traffic, origin = _traffic(lengths)
    thin = 3 if quick else 1
    studies = [_pim_study(model, traffic, thin), _hbf_study(model, traffic, thin)]
    results, page = [], [html.note(f"Traffic: {origin}. Written by jaxmem {jm.__version__}.")]
    for study in studies:
        ds, seconds = _sweep(study)
        result = _search(study, ds, seconds)
        results.append(result)
        ds.to_zarr(folder / f"{study.name}.zarr", mode="w", zarr_format=3, consolidated=False)
        picture = folder / f"{study.name}.png"
        _draw(study, ds, result, picture, figures)
        page += _section(study, result, picture, html)
        if not as_json:
            output.table(f"\n{study.title}", _columns(study), _rows(study, result))
    html.write(folder / "index.html", "jaxmem demo", page)
    (folder / "demo.json").write_text(json.dumps(output.plain({"studies": results}), indent=1))
    if as_json:
        output.print_json({"studies": results, "out": str(folder)})
    else:
        click.echo(f"\nwritten: {folder}/index.html, and {folder}/{{pim,hbf}}.{{png,zarr}}")


def _traffic(path: str | None) -> tuple[traces.Lengths, str]:
    if path is not None:
        return traces.read_lengths(path), str(path)
    reference = Path(os.environ.get("JAXMEM_REFERENCE", "../shared")) / "traces/azure2023_conv.csv"
    if reference.is_file():
        return traces.read_lengths(reference), "Azure LLM inference trace 2023, conversation"
    return traces.published_lengths(), "lengths drawn from the statistics of Azure's 2023 trace"


def _pim_study(model: str | None, traffic: traces.Lengths, thin: int) -> Study:
    design = jm.pim.Design.create(device="aim-gddr6-16gib", llm=model or "llama3-8b")
    # A request is attended at every length between its prompt and its end.
    attended = traffic.input_tokens + traffic.output_tokens / 2
    contexts = np.unique(np.ceil(np.quantile(attended, np.linspace(0.02, 0.98, 32 // thin))))
    middle = float(np.ceil(attended.mean()))
    contexts = np.unique(np.append(np.maximum(contexts, 1), middle))
    batches = np.unique(np.round(np.geomspace(1, 96, 28 // thin)))
    knobs = {"ch_per_head": CHANNELS, "policy.own_blocks": GRANULES, "block_tokens": BLOCKS}
    return Study(
        name="pim",
        title="PATTON on AiM GDDR6",
        system=jm.pim,
        design=design,
        workload=jm.Decode.create(batch=1, context_tokens=middle),
        space={**knobs, "workload.batch": batches, "workload.context_tokens": contexts},
        search={**knobs, "workload.batch": batches},
        maximize="tokens_per_s",
        subject_to=(explore.at_most("latency_s", 0.03),),
        paper={"ch_per_head": 4, "policy.own_blocks": 16, "block_tokens": 16},
        paper_name="PATTON's own",
    )


def _hbf_study(model: str | None, traffic: traces.Lengths, thin: int) -> Study:
    design = jm.hbf.Design.create(device="8xCLI", llm=model or "qwen3-235b-a22b")
    mean = [float(np.ceil(lengths.mean())) for lengths in traffic]
    prompts, responses = (_quantiles(x, m) for x, m in zip(traffic, mean, strict=True))
    knobs = {"planes_per_megaplane": MEGAPLANES, "device.n_stack": STACKS}
    slos = np.unique(np.append(np.geomspace(0.03, 0.2, 44 // thin), [SLO_S, 0.1]))
    return Study(
        name="hbf",
        title="FlashAccel on 8 GPUs with flash in place of HBM (CLI)",
        system=jm.hbf,
        design=design,
        workload=jm.Serve.create(input_tokens=mean[0], output_tokens=mean[1], slo_s=SLO_S),
        space={
            **knobs,
            "workload.slo_s": slos,
            "workload.input_tokens": prompts,
            "workload.output_tokens": responses,
        },
        search={**knobs, "workload.slo_s": slos},
        maximize="tokens_per_s_per_gpu",
        subject_to=(
            explore.at_most("latency_s", SLO_S),
            explore.at_least("lifetime_s", 5 * YEAR_S),
            explore.at_most("area_mm2", 750.0),
        ),
        paper={"planes_per_megaplane": 32, "device.n_stack": 5},
        paper_name="FlashAccel's own",
    )


def _quantiles(values: np.ndarray, mean: float) -> np.ndarray:
    """Four quantiles of the lengths, and their mean."""
    found = np.round(np.quantile(values, [0.1, 0.3, 0.7, 0.95]))
    return np.unique(np.append(np.maximum(found, 1.0), mean))


def _sweep(study: Study) -> tuple[Any, float]:
    started = time.perf_counter()
    with output.progress(f"sweeping {study.name}") as advance:
        ds = explore.sweep(
            study.system.evaluate, study.design, study.workload, study.space, progress=advance
        )
    return ds, time.perf_counter() - started


def _search(study: Study, ds: Any, sweep_s: float) -> dict[str, Any]:
    """The exhaustive best of the sweep's slice that the search covers, and the search itself."""
    fixed = {d: _held_value(study, d) for d in ds.sizes if d not in study.search}
    slice_ = ds.sel(fixed)
    goal, bounds = study.maximize, study.subject_to
    exhaustive = explore.best(slice_, maximize=goal, subject_to=bounds)
    known = None if exhaustive is None else float(exhaustive[goal])
    started = time.perf_counter()
    found = explore.optimize(
        study.system.evaluate,
        study.design,
        study.workload,
        study.search,
        maximize=goal,
        subject_to=bounds,
        compare_to=known,
    )
    search_s = time.perf_counter() - started
    paper = explore.best(slice_.sel(study.paper), maximize=goal, subject_to=bounds)
    choice = {} if exhaustive is None else {d: float(exhaustive[d]) for d in study.search}
    asked = [f"{b.metric} {'<=' if b.sign > 0 else '>='} {b.value:g}" for b in bounds]
    return {
        "study": study.name,
        "n_point": int(ds.feasible.size),
        "n_feasible": int(ds.feasible.sum()),
        "sweep_s": sweep_s,
        "objective": goal,
        "subject_to": asked,
        "exhaustive": {"n_evaluation": int(slice_.feasible.size), "best": known, "choice": choice},
        "search": {
            "best": float(getattr(found.metrics, goal)),
            "choice": found.choice,
            "gap": found.gap,
            "n_evaluation": found.n_evaluation,
            "search_s": search_s,
            "feasible": found.feasible,
            "binding": found.binding,
            "sensitivity": found.sensitivity,
        },
        "paper": {
            "best": None if paper is None else float(paper[goal]),
            "choice": study.paper,
        },
        "fixed": fixed,
    }


def _held_value(study: Study, dim: str) -> float:
    """The value that the search keeps for a swept field that it does not move."""
    return float(getattr(study.workload, dim.removeprefix("workload.")))


def _draw(study: Study, ds: Any, result: dict[str, Any], path: Path, figures: Any) -> None:
    figure, axes = figures.panels(2)
    (_draw_pim if study.name == "pim" else _draw_hbf)(study, ds, result, axes, figures)
    figures.save(figure, path)


def _draw_pim(study: Study, ds: Any, result: dict[str, Any], axes: Any, figures: Any) -> None:
    best, own = result["search"]["choice"], study.paper
    batch, block = best["workload.batch"], best["block_tokens"]
    x, y = "ch_per_head", "policy.own_blocks"
    plane = ds[study.maximize].sel(result["fixed"])
    plane = plane.sel({"workload.batch": batch, "block_tokens": block})
    title = f"batch {batch:g}, blocks of {block:g} tokens"
    figures.heat(axes[0], plane, x, y, title, _marks(study, best, x, y, figures))
    times = ds["latency_s"].sel(result["fixed"])
    times = times.sel({y: own[y], "block_tokens": own["block_tokens"]}, drop=True)
    at = float(times.sel({x: own[x], "workload.batch": batch}))
    mark = figures.Mark(batch, at, study.paper_name, "*")
    figures.curves(axes[1], times, "workload.batch", x, "a step with N_O1p2 = 16", [mark])


def _draw_hbf(study: Study, ds: Any, result: dict[str, Any], axes: Any, figures: Any) -> None:
    best, own = result["search"]["choice"], study.paper
    x, y = "planes_per_megaplane", "device.n_stack"
    cube = ds[study.maximize].sel(result["fixed"])
    plane = cube.sel({"workload.slo_s": SLO_S})
    title = f"objective {SLO_S * 1e3:g} ms"
    figures.heat(axes[0], plane, x, y, title, _marks(study, best, x, y, figures))
    lines = cube.sel({x: own[x], y: [2, 3, 5, 8]})
    mark = figures.Mark(SLO_S, float(plane.sel(own)), study.paper_name, "*")
    figures.curves(axes[1], lines, "workload.slo_s", y, f"M = {own[x]:g}", [mark])


def _marks(study: Study, best: dict[str, Any], x: str, y: str, figures: Any) -> list[Any]:
    return [
        figures.Mark(study.paper[x], study.paper[y], study.paper_name, "*"),
        figures.Mark(best[x], best[y], "found by search", "o"),
    ]


def _columns(study: Study) -> list[str]:
    return ["", "best of the sweep", "search", study.paper_name]


def _rows(study: Study, result: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    exhaustive, search, paper = result["exhaustive"], result["search"], result["paper"]

    def row(name: str, *values: Any) -> tuple[str, str, str, str]:
        first, second, third = ("-" if v is None else f"{v:,.4g}" for v in values)
        return name, first, second, third

    rows = [
        row(field, *(found["choice"].get(field) for found in (exhaustive, search, paper)))
        for field in study.search
    ]
    rows.append(row(study.maximize, exhaustive["best"], search["best"], paper["best"]))
    counted = (f"{exhaustive['n_evaluation']:,}", f"{search['n_evaluation']:,}")
    rows.append(("evaluations", *counted, ""))
    swept = f"{result['sweep_s']:.1f} (all {result['n_point']:,})"
    rows.append(("seconds", swept, f"{search['search_s']:.1f}", ""))
    rows.append(("gap", "0", f"{search['gap']:.2%}", ""))
    return rows


def _section(study: Study, result: dict[str, Any], picture: Path, html: Any) -> list[str]:
    search = result["search"]
    asked = f"maximize {result['objective']} subject to {', '.join(result['subject_to'])}"
    counted = f"{result['n_point']:,} points, {result['n_feasible']:,} of them feasible"
    kept = ", ".join(f"{k} = {v:g}" for k, v in result["fixed"].items())
    elastic = ", ".join(f"{k}: {v:+.2f}" for k, v in search["sensitivity"].items())
    binding = ", ".join(search["binding"]) or "none"
    return [
        html.heading(study.title),
        html.note(f"{counted}, swept in {result['sweep_s']:.1f} s. Search: {asked}, at {kept}."),
        html.picture(picture, f"{study.title}: the paper's design and the best found"),
        html.table(_columns(study), _rows(study, result)),
        html.note(f"Binding: {binding}. Elasticity of the objective: {elastic}."),
    ]
