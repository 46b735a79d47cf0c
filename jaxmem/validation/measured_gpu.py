"""Body `measured-gpu`: kernels and served models measured on real GPUs, against the shipped fits.

Of every configuration that a fit may use, none is scored. Kernels of H200 by family (and library)
against their efficiency curves, beside the plain roofline; operators of an A100 against the mapped
fidelity and LLMCompass' own errors; served models against the engines, by kind, by model and
engine, and with each model left out of the fit in turn. FILE is one such table, or a folder.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.devices import catalog
from jaxmem.devices.curve import Curve
from jaxmem.validation import fits, kernels, llmcompass, served
from jaxmem.validation.body import Body, Case, Note, beside, read_lines
from jaxmem.xpu import collectives, engines, matmul, operators
from jaxmem.xpu.families import LINKED

_WHOLE = {
    "gemm": "GEMM", "attention": "decode attention", "latent": "MLA decode", "experts": "MoE",
    "dispatch": "expert dispatch", "combine": "expert dispatch",
}  # fmt: skip
_GPU, _LINK, _CHIP = "h200", "nvlink4", "dict:A100_80GB_fp16"
_FEWEST = 30
"""Fewest served configurations that a fit with a model left out is worth making from."""


def check(path: Path) -> Iterator[Case | Note]:
    """Every measurement that scores, in a file or in all tables of a folder.

    Raises:
        InputError: no such table.
    """
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.suffix in (".parquet", ".csv", ".jsonl"))
        more = beside(path, "measured_gpu.jsonl")
        files += [more] if more and more not in files else []
    for file in files:
        if file.suffix == ".jsonl":
            yield from _a100(file)
            continue
        table = kernels.read_table(file)
        if "silicon_tpot_ms" in table:
            yield from _served(table, file)
        else:
            yield from _kernels(table, file)


def _case(id: str, family: str, error: float) -> Case:
    return Case(id, family, False, abs(float(error)), float(error))


def _kernels(table: Any, file: Path) -> Iterator[Case | Note]:
    """Kernels by family, by family and library, and by the plain roofline."""
    gpu, link = (jax.tree.map(float, catalog.load(name)) for name in (_GPU, _LINK))
    for found in kernels.kernels(table, str(file)):
        device = link if found.family in LINKED else gpu
        name = f"{_GPU}-{found.library}-{found.family}"
        if name not in catalog.names("curve"):
            yield Note(f"no curve {name}", len(found.seconds))
            continue
        curve = jax.tree.map(float, catalog.load(name))
        error = fits.curve_error(curve, found, device)
        plain = fits.curve_error(jax.tree.map(float, Curve()), found, device)
        scored = np.flatnonzero(~found.is_fit)
        family = _family(found.family)
        for i in scored:
            row = f"{name} {i}"
            yield _case(row, family, error[i])
            yield _case(row, f"{family}: {found.family} of {found.library}", error[i])
            yield _case(row, f"{family}, plain roofline", plain[i])
        yield Note(f"{family}: fitted to, not scored", int(found.is_fit.sum()))


def _family(name: str) -> str:
    """The family that a kind of kernel is reported in."""
    head, _, form = name.partition("-")
    if head == "gemm":
        return f"{_WHOLE[head]} {form.split('-')[0].upper()}" + (" block" * ("block" in form))
    return _WHOLE.get(head, "collectives")


def _served(table: Any, file: Path) -> Iterator[Case | Note]:
    found, left_out = served.served(table, str(file))
    for reason, n in left_out.items():
        yield Note(f"served: {reason}", n)
    if not found:
        return
    constants = engines.shipped()
    tpot, ttft = fits.engine_errors(constants, found)
    scored = np.array([not x.is_fit for x in found])
    yield Note("served: fitted to, not scored", int((~scored).sum()))
    for x, e, first in zip(found, tpot, ttft, strict=True):
        if x.is_fit:
            continue
        yield _case(x.id, f"TPOT {x.kind}", e)
        yield _case(x.id, f"TPOT {x.kind}: {x.model} on {x.engine}", e)
        if not x.is_apart:
            yield _case(x.id, "TTFT under load", first)
    if sum(x.is_fit for x in found) < _FEWEST:
        yield Note("served: too few to leave models out", len(found))
        return
    again, _ = fits.fit_engines(found)
    for x, e in zip(found, again.group_error, strict=True):
        yield _case(x.id, f"TPOT {x.kind}, model left out", e)


def _a100(file: Path) -> Iterator[Case | Note]:
    """An A100's matrix products and all-reduces, beside LLMCompass' own model of them."""
    chip = llmcompass.chip(_CHIP, file.parent)
    link = llmcompass.LINKS["interconnect:NVLinkV3_FC_4"]
    # NCCL's curve as fitted on H200, on this machine's slower link: predicted, not fitted.
    nccl, gpu_link = catalog.load("h200-nccl-all-reduce"), catalog.load("nvlink3")
    for number, line in read_lines(file):
        try:
            row = json.loads(line)
            op, machine = row["op"], row.get("hardware", row.get("part", ""))
            known = (machine == "A100" and op == "matmul") or op == "allreduce"
            if not known:
                yield Note(f"{op} of {machine}: not scored", 1)
                continue
            measured = float(row["measured_latency_s"])
            if op == "matmul":
                size = [float(row[name]) for name in ("M", "K", "N")]
                with jax.enable_x64(True):
                    model = float(matmul.mapped(chip, *size)) + float(chip.matmul_s)
                yield _case(f"{file.name}:{number}", "A100 matmul (mapped)", model / measured - 1)
                continue
            n_byte = float(row["bytes"])
            model = operators.collective_s(
                nccl, gpu_link.bytes_per_s, message_bytes=n_byte, n_gpu=4.0, n_pass=2.0
            )
            theirs = float(collectives.packet_all_reduce_s(link, n_byte))
            where = f"{file.name}:{number}"
            yield _case(where, "A100 all-reduce", float(model) / measured - 1)
            yield _case(where, "A100 all-reduce, LLMCompass' model", theirs / measured - 1)
        except (KeyError, TypeError, ValueError) as error:
            where = f"{file}:{number}"
            raise InputError("row", line[:40], f"a measurement ({error})", where=where) from None


BODIES = (Body("measured-gpu", "kernels and served models on real GPUs", "measured", check),)
