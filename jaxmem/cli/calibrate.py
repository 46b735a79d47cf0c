"""`jaxmem calibrate DEVICE [MEASUREMENTS]`: constants fitted to measurements, with their errors."""

import datetime
from importlib import resources
from pathlib import Path
from typing import Any

import click
import numpy as np

from jaxmem.cli import output
from jaxmem.core.design import specs
from jaxmem.core.errors import InputError
from jaxmem.devices import catalog
from jaxmem.devices.curve import Curve
from jaxmem.devices.engine import Engine
from jaxmem.devices.node import Node

PACKAGE = "aiconfigurator_core"
FOLDERS = {
    "h200": "h200_sxm", "h100-sxm": "h100_sxm", "a100-80gb-sxm": "a100_sxm", "b200": "b200_sxm",
}  # fmt: skip
"""Folder of the tables of a GPU in that package."""


@click.command("calibrate")
@click.argument("device")
@click.argument("measurements", required=False, type=click.Path(path_type=Path))
@click.option("--link", default="nvlink4", help="Link of collectives.  [default: nvlink4]")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the fitted TOML files.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    device: str, measurements: Path | None, link: str, out: Path | None, as_json: bool
) -> None:
    """Fit efficiency curves of DEVICE's kernels, or serving engines, to MEASUREMENTS.

    MEASUREMENTS is a table (CSV or Parquet) with the columns of aiconfigurator: kernels (GEMM,
    attention, MLA, experts, collectives) or served models. Without it, the tables of the PyPI
    package aiconfigurator-core are read, where it is installed. An eighth of a large table's
    configurations is fitted to (half of a small one's); errors are those of the others, and with
    each group of shapes (or each model) left out of the fit.
    """
    import jax  # heavy, and here only

    from jaxmem.validation import fits, kernels, served
    from jaxmem.xpu.families import LINKED

    part = catalog.load(device)
    gpu = part.gpu if isinstance(part, Node) else catalog.load(device, kind="gpu")
    wire = catalog.load(link, kind="link")
    gpu, wire = (jax.tree.map(float, x) for x in (gpu, wire))
    reports = []
    with output.counter("fitting") as count:
        for path in [measurements] if measurements else _packaged(gpu.name):
            if not path.is_file():
                raise InputError("file", str(path), "a table of measurements")
            table = kernels.read_table(path)
            if "silicon_tpot_ms" in table:
                found, _ = served.served(table, str(path))
                reports += _engines(*fits.fit_engines(found), found, path.name, out)
                continue
            for group in kernels.kernels(table, str(path)):
                linked = group.family in LINKED
                fitted = fits.fit_kernels(group, wire if linked else gpu)
                reports.append(_curve(group, fitted, gpu.name, path.name, out))
                count(len(reports))
    if as_json:
        output.print_json({"device": device, "fits": reports})
        return
    rows = [
        (r["name"], r["rows"], r["fitted_to"], f"{r['median']:.1%}", f"{r['p90']:.1%}",
         "-" if r["left_out"] is None else f"{r['left_out']:.1%}")
        for r in reports
    ]  # fmt: skip
    columns = ["fit", "rows", "fitted to", "median", "90 %", "group left out"]
    output.table(f"Fits to {device}", columns, rows)
    for r in reports:
        click.echo(f"{r['name']}: {_short(r['constants'])}")


def _packaged(gpu: str) -> list[Path]:
    """The newest table of each library in aiconfigurator-core."""
    try:
        root = Path(str(resources.files(PACKAGE)))
    except ModuleNotFoundError:
        rule = "a table, or the package aiconfigurator-core (extra jaxmem[aiconfigurator])"
        raise InputError("measurements", None, rule) from None
    if gpu not in FOLDERS:
        raise InputError("device", gpu, "one of " + ", ".join(FOLDERS), known=FOLDERS)
    found = []
    for kind in ("gemm", "attention", "mla", "moe", "comm"):
        for library in sorted((root / "systems" / "data" / FOLDERS[gpu] / kind).glob("*")):
            newest = max((p for p in library.glob("*") if p.is_dir()), key=_version, default=None)
            names = (
                "gemm_perf", "generation_attention_perf", "generation_mla_perf", "moe_perf",
                "nccl_perf", "custom_allreduce_perf", "wideep_deepep_normal_perf",
            )  # fmt: skip
            files = [newest / f"{n}.parquet" for n in names] if newest else []
            found += [file for file in files if file.is_file()]
    return found


def _version(path: Path) -> tuple[int, ...]:
    digits = "".join(c if c.isdigit() else " " for c in path.name).split()
    return tuple(int(d) for d in digits)


def _curve(group: Any, fitted: Any, gpu: str, source: str, out: Path | None) -> dict[str, Any]:
    name = f"{gpu}-{group.library}-{group.family}"
    report = _report(name, fitted)
    if out is not None:
        about = f"{group.family} of {group.library} on {gpu}, fitted"
        _write(out, name, "curve", about, Curve, fitted.constants, report, source, {})
    return report


def _engines(tpot: Any, ttft: Any, found: Any, source: str, out: Path | None) -> list[Any]:
    from jaxmem.xpu import engines

    reports = []
    for name in engines.MIXED:
        mine = np.array([x.engine == name for x in found])
        if not mine.any():
            continue
        part = tpot._replace(
            error=tpot.error[mine], is_fit=tpot.is_fit[mine], group_error=tpot.group_error[mine],
            constants=engines.engine(ttft.constants, name),
        )  # fmt: skip
        report = _report(name, part)
        reports.append(report)
        if out is not None:
            ways = "as the engine schedules prompts; not fitted"
            fixed = dict.fromkeys(("is_mixed", "prefill_share"), ways)
            kept = {**engines.SHARED, **engines.OWN}
            fixed |= {
                key: "of the kernels' own fits; not fitted again"
                for key, prior in kept.items()
                if prior.spread == 0
            }
            about = f"{name} on Hopper machines, fitted to served models"
            whole = {**_report(name, tpot), "median": report["median"]}
            _write(out, name, "engine", about, Engine, part.constants, whole, source, fixed)
    return reports


def _report(name: str, fitted: Any) -> dict[str, Any]:
    error = np.abs(fitted.error[~fitted.is_fit])
    group = np.abs(fitted.group_error)
    known = group[np.isfinite(group)]
    return {
        "name": name,
        "rows": len(fitted.error),
        "fitted_to": int(fitted.is_fit.sum()),
        "median": float(np.median(error)) if len(error) else np.nan,
        "p90": float(np.quantile(error, 0.9)) if len(error) else np.nan,
        "left_out": float(np.median(known)) if len(known) else None,
        "constants": dict(fitted.constants),
    }


def _short(constants: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g}" for name, value in constants.items())


def _write(folder, name, kind, about, cls, constants, report, source, fixed) -> None:
    """A catalog file: fitted values beside the untuned ones."""
    today = datetime.date.today().isoformat()
    note = (
        f"Fitted to {report['fitted_to']} of {report['rows']} configurations of {source} "
        f"(aiconfigurator); median error of the others {report['median']:.1%}."
    )
    lines = [f'name = "{name}"', f'kind = "{kind}"', f'summary = "{about}"', ""]
    for field, spec in specs(cls).items():
        if spec.kind != "leaf":
            continue
        untuned = getattr(cls(), field)
        value = constants.get(field, untuned)
        if field in constants and field not in fixed:
            what = f'source = "aiconfigurator, {source}", date = "{today}"'
            rest = f'confidence = "fitted", note = "{note}", unfitted = {float(untuned):.6g}'
        else:
            why = fixed.get(field, "the untuned value")
            what = f'source = "jaxmem: {why}", date = "{today}"'
            rest = 'confidence = "assumed"'
        unit = f'unit = "{spec.unit}"'
        lines.append(f"{field} = {{value = {float(value):.6g}, {unit}, {what}, {rest}}}")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
