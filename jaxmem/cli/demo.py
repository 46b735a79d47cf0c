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


class Study(NamedTuple):
    """One system's space and what is asked of it."""

    name: str
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
            output.table(f"\n{_title(study)}", ["", "best of the sweep", "search", study.paper_name],
                         _rows(study, result))  # fmt: skip
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
    design = jm.hbf.Design.create(device="8xCSI", llm=model or "qwen3-235b-a22b")
    prompts = _quantiles(traffic.input_tokens, 5)
    responses = _quantiles(traffic.output_tokens, 5)
    middle = (_nearest(prompts, traffic.input_tokens), _nearest(responses, traffic.output_tokens))
    knobs = {"planes_per_megaplane": MEGAPLANES, "device.n_stack": STACKS}
    slos = np.unique(np.append(np.geomspace(0.03, 0.2, 44 // thin), [0.05, 0.1]))
    return Study(
        name="hbf",
        system=jm.hbf,
        design=design,
        workload=jm.Serve.create(input_tokens=middle[0], output_tokens=middle[1], slo_s=0.1),
        space={
            **knobs,
            "workload.slo_s": slos,
            "workload.input_tokens": prompts,
            "workload.output_tokens": responses,
        },
        search={**knobs, "workload.slo_s": slos},
        maximize="tokens_per_s_per_gpu",
        subject_to=(
            explore.at_most("latency_s", 0.1),
            explore.at_least("lifetime_s", 5 * YEAR_S),
            explore.at_most("area_mm2", 900.0),
        ),
        paper={"planes_per_megaplane": 32, "device.n_stack": 6},
        paper_name="FlashAccel's own",
    )


def _quantiles(values: np.ndarray, n: int) -> np.ndarray:
    return np.unique(np.maximum(np.round(np.quantile(values, np.linspace(0.1, 0.9, n))), 1))


def _nearest(grid: np.ndarray, values: np.ndarray) -> float:
    return float(grid[np.argmin(np.abs(grid - values.mean()))])


def _sweep(study: Study) -> tuple[Any, float]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    started = time.perf_counter()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"sweeping {study.name}", total=None)
        ds = explore.sweep(
            study.system.evaluate, study.design, study.workload, study.space,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    return ds, time.perf_counter() - started


def _search(study: Study, ds: Any, sweep_s: float) -> dict[str, Any]:
    """The exhaustive best of the sweep's slice that the search covers, and the search itself."""
    fixed = {d: study_value(study, d) for d in ds.sizes if d not in study.search}
    slice_ = ds.sel(fixed)
    goal = {"maximize": study.maximize, "subject_to": study.subject_to}
    exhaustive = explore.best(slice_, **goal)
    known = None if exhaustive is None else float(exhaustive[study.maximize])
    started = time.perf_counter()
    found = explore.optimize(
        study.system.evaluate, study.design, study.workload, study.search, compare_to=known, **goal
    )
    search_s = time.perf_counter() - started
    paper = slice_.sel(study.paper)
    paper_best = explore.best(paper, **goal)
    choice = {} if exhaustive is None else {d: float(exhaustive[d]) for d in study.search}
    return {
        "study": study.name,
        "n_point": int(ds.feasible.size),
        "n_feasible": int(ds.feasible.sum()),
        "sweep_s": sweep_s,
        "objective": study.maximize,
        "subject_to": [
            f"{b.metric} {'<=' if b.sign > 0 else '>='} {b.value:g}" for b in study.subject_to
        ],
        "exhaustive": {"n_evaluation": int(slice_.feasible.size), "best": known, "choice": choice},
        "search": {
            "best": float(getattr(found.metrics, study.maximize)),
            "choice": found.choice,
            "gap": found.gap,
            "n_evaluation": found.n_evaluation,
            "search_s": search_s,
            "feasible": found.feasible,
            "binding": found.binding,
            "sensitivity": found.sensitivity,
        },
        "paper": {
            "best": None if paper_best is None else float(paper_best[study.maximize]),
            "choice": study.paper,
        },
        "fixed": fixed,
    }


def study_value(study: Study, dim: str) -> float:
    """The value that the search keeps for a swept field that it does not move."""
    return float(getattr(study.workload, dim.removeprefix("workload.")))


def _draw(study: Study, ds: Any, result: dict[str, Any], path: Path, figures: Any) -> None:
    best = result["search"]["choice"]
    figure, axes = figures.panels(2)
    if study.name == "pim":
        batch = best["workload.batch"]
        plane = ds[study.maximize].sel({**result["fixed"], "workload.batch": batch})
        mark = [
            figures.Mark(
                study.paper["ch_per_head"], study.paper["policy.own_blocks"], study.paper_name, "*"
            ),
            figures.Mark(best["ch_per_head"], best["policy.own_blocks"], "found by search", "o"),
        ]
        figures.heat(axes[0], plane.sel(block_tokens=best["block_tokens"]), "ch_per_head",
                     "policy.own_blocks", f"batch {batch:g}, blocks of {best['block_tokens']:g}", mark)  # fmt: skip
        line = ds["latency_s"].sel({**result["fixed"], **study.paper}, drop=True)
        other = ds["latency_s"].sel(result["fixed"]).sel(
            {"policy.own_blocks": 16, "block_tokens": 16}, drop=True
        )  # fmt: skip
        at = float(line.sel({"workload.batch": batch}))
        figures.curves(axes[1], other, "workload.batch", "ch_per_head", "step time, N_O1p2 = 16",
                       [figures.Mark(batch, at, study.paper_name, "*")])  # fmt: skip
    else:
        slo = float(study.workload.slo_s)
        cube = ds[study.maximize].sel(result["fixed"])
        near = cube.sel({"workload.slo_s": slo}, method="nearest")
        at = float(near.sel(study.paper))
        mark = [
            figures.Mark(
                study.paper["planes_per_megaplane"],
                study.paper["device.n_stack"],
                study.paper_name,
                "*",
            ),
            figures.Mark(
                best["planes_per_megaplane"], best["device.n_stack"], "found by search", "o"
            ),
        ]
        figures.heat(
            axes[0], near, "planes_per_megaplane", "device.n_stack", f"SLO {slo * 1e3:g} ms", mark
        )
        line = cube.sel({"planes_per_megaplane": 32}).isel({"device.n_stack": slice(1, None, 2)})
        figures.curves(axes[1], line, "workload.slo_s", "device.n_stack", "M = 32",
                       [figures.Mark(slo, at, study.paper_name, "*")])  # fmt: skip
    figures.save(figure, path)


def _title(study: Study) -> str:
    return {"pim": "PATTON on AiM GDDR6", "hbf": "FlashAccel on a node of 8 GPUs"}[study.name]


def _rows(study: Study, result: dict[str, Any]) -> list[tuple[str, ...]]:
    exhaustive, search, paper = result["exhaustive"], result["search"], result["paper"]

    def shown(value: Any, pattern: str = "{:,.4g}") -> str:
        return "-" if value is None else pattern.format(value)

    rows = [
        (field, *(shown(x["choice"].get(field)) for x in (exhaustive, search, paper)))
        for field in study.search
    ]
    rows.append((study.maximize, *(shown(x["best"]) for x in (exhaustive, search, paper))))
    rows.append(
        ("evaluations", f"{exhaustive['n_evaluation']:,}", f"{search['n_evaluation']:,}", "")
    )
    rows.append(
        (
            "seconds",
            f"{result['sweep_s']:.1f} (all {result['n_point']:,})",
            f"{search['search_s']:.1f}",
            "",
        )
    )
    rows.append(("gap", "0", f"{search['gap']:.2%}", ""))
    return rows


def _section(study: Study, result: dict[str, Any], picture: Path, html: Any) -> list[str]:
    search = result["search"]
    asked = f"maximize {result['objective']} subject to {', '.join(result['subject_to'])}"
    counted = f"{result['n_point']:,} points in {result['sweep_s']:.1f} s, {result['n_feasible']:,} feasible"
    kept = ", ".join(f"{k} = {v:g}" for k, v in result["fixed"].items())
    elastic = ", ".join(f"{k}: {v:+.2f}" for k, v in search["sensitivity"].items())
    return [
        html.heading(_title(study)),
        html.note(f"{counted}. Search: {asked}, at {kept}."),
        html.picture(
            picture, f"{_title(study)}: the space, with the paper's design and the best found"
        ),
        html.table(["", "best of the sweep", "search", study.paper_name], _rows(study, result)),
        html.note(
            f"Binding: {', '.join(search['binding']) or 'none'}. Elasticity of the objective: {elastic}."
        ),
    ]
