"""Tables of measured kernels (the columns of aiconfigurator's), as counts and seconds by family.

Which table a file is, its columns tell. Rows that repeat a configuration are one measurement, its
median; a configuration is used either to fit or to score, by its hash. Traps that are undone:
collectives count elements, tables of dispatch give microseconds, and decode attention with a window
was measured over the whole context (its times say so).
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.xpu.operators import PASSES

_ELEMENT = {"bfloat16": 2.0, "half": 2.0, "float16": 2.0, "fp8": 1.0, "int8": 1.0}
_FORM = {"bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8-block"}
_POWER = {"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2}
_NCCL = {"all_reduce": "all-reduce", "all_gather": "all-gather",
         "reduce_scatter": "reduce-scatter", "alltoall": "all-to-all"}  # fmt: skip
_MANY, _FEW = 8, 2  # one of so many configurations is fitted to, in large and in small tables
_LARGE = ("gemm", "experts", "attention")


class Kernels(NamedTuple):
    """Measurements of one family by one library.

    Attributes:
        family: of `jaxmem.xpu.families`.
        library: whose kernels.
        counts: [row] by name, as the family's operator takes them.
        seconds: [row] measured.
        is_fit: [row] whether the configuration is one to fit to; the others score.
    """

    family: str
    library: str
    counts: dict[str, np.ndarray]
    seconds: np.ndarray
    is_fit: np.ndarray


def read_table(path: Path) -> Any:
    """A table of a .csv or .parquet file, as a pandas data frame.

    Raises:
        InputError: the file is missing or no table, or Parquet needs a library that is not here.
    """
    import pandas as pd  # heavy, and here only

    try:
        return pd.read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except ImportError:
        rule = "CSV, or the extra jaxmem[calibrate], which reads Parquet"
        raise InputError("file", str(path), rule) from None
    except (OSError, ValueError) as error:  # pyarrow's errors are of these
        raise InputError("file", str(path), f"a table ({error})") from None


def kernels(table: Any, where: str) -> Iterator[Kernels]:
    """The families of a table.

    Args:
        table: as `read_table` gives it.
        where: file, for errors.

    Raises:
        InputError: not a table of kernels, or a column that is missing or no number.
    """
    columns = set(table.columns)
    for mark, read in _READERS.items():
        if mark <= columns:
            yield from read(table, where)
            return
    rule = "a table of kernels: columns such as gemm_dtype, m, n, k, latency"
    raise InputError("columns", ", ".join(sorted(columns)[:6]), rule, where=where)


def _numbers(table: Any, name: str, where: str) -> np.ndarray:
    if name not in table:
        raise InputError("column", name, "a column of the table", where=where)
    try:
        return table[name].to_numpy(float)
    except (TypeError, ValueError):
        raise InputError("column", name, "numbers", where=where) from None


def _group(family, library, counts, seconds, where) -> Kernels:
    """Repeats become their median; configurations are parted by hash."""
    names = list(counts)
    rows = np.stack([np.broadcast_to(counts[n], seconds.shape) for n in names], 1)
    if not np.all(np.isfinite(rows)) or not np.all(seconds > 0):
        raise InputError("row", family, "finite counts and positive latencies", where=where)
    unique, index = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(index.ravel(), kind="stable")
    parts = np.split(seconds[order], np.flatnonzero(np.diff(index.ravel()[order])) + 1)
    middle = np.array([np.median(part) for part in parts])
    n_share = _MANY if family.startswith(_LARGE) else _FEW
    is_fit = np.array([share_of(row.tobytes()) % n_share == 0 for row in unique])
    return Kernels(family, library, dict(zip(names, unique.T, strict=True)), middle, is_fit)


def share_of(key: bytes) -> int:
    """A number that parts configurations evenly, the same everywhere."""
    return int.from_bytes(hashlib.blake2b(key, digest_size=4).digest(), "little")


def _library(table: Any) -> str:
    return str(table["framework"].iloc[0]).lower() if "framework" in table else "kernels"


def _gemm(table, where):
    for form, part in table.groupby("gemm_dtype"):
        if form not in _FORM:
            continue
        counts = {name: _numbers(part, name, where) for name in ("m", "n", "k")}
        counts["is_fp8"] = np.array(float(form != "bfloat16"))
        seconds = _numbers(part, "latency", where) / 1e3
        yield _group(f"gemm-{_FORM[form]}", _library(table), counts, seconds, where)


def _attention(table, where):
    for form, part in table.groupby("kv_cache_dtype"):
        n_q, n_kv = (_numbers(part, n, where) for n in ("num_heads", "num_key_value_heads"))
        counts = {
            "n_request": _numbers(part, "batch_size", where),
            "context_tokens": _numbers(part, "isl", where) + _numbers(part, "step", where),
            "n_q": n_q,
            "n_kv": np.where(n_kv == 0, n_q, n_kv),
            "head_dim": _numbers(part, "head_dim", where),
            "kv_bytes": np.array(_ELEMENT.get(form, 2.0)),
        }
        seconds = _numbers(part, "latency", where) / 1e3
        family = "attention-fp8" if form == "fp8" else "attention-bf16"
        yield _group(family, _library(table), counts, seconds, where)


def _latent(table, where):
    for form, part in table.groupby("kv_cache_dtype"):
        counts = {
            "n_request": _numbers(part, "batch_size", where),
            "context_tokens": _numbers(part, "isl", where) + _numbers(part, "step", where),
            "n_q": _numbers(part, "num_heads", where),
            "kv_bytes": np.array(_ELEMENT.get(form, 2.0)),
        }
        seconds = _numbers(part, "latency", where) / 1e3
        family = "latent-fp8" if form == "fp8" else "latent-bf16"
        yield _group(family, _library(table), counts, seconds, where)


def _experts(table, where):
    for form, part in table.groupby("moe_dtype"):
        part = part[part["distribution"].isin(list(_POWER))]
        if form not in _FORM or not len(part):
            continue
        gated = ~part["kernel_source"].astype(str).str.contains("nongated").to_numpy()
        counts = {
            "n_token": _numbers(part, "num_tokens", where),
            "hidden": _numbers(part, "hidden_size", where),
            "width": _numbers(part, "inter_size", where) / _numbers(part, "moe_tp_size", where),
            "top_k": _numbers(part, "topk", where),
            "n_expert": _numbers(part, "num_experts", where),
            "n_gpu": _numbers(part, "moe_ep_size", where),
            "is_fp8": np.array(float(form != "bfloat16")),
            "power": part["distribution"].map(_POWER).to_numpy(float),
            "n_matrix": np.where(gated, 3.0, 2.0),
        }
        seconds = _numbers(part, "latency", where) / 1e3
        yield _group(f"experts-{_FORM[form]}", _library(table), counts, seconds, where)


def _nccl(table, where):
    for op, part in table.groupby("op_name"):
        if op in _NCCL:
            yield _collective(_NCCL[op], "nccl", part, part["nccl_dtype"], where)


def _all_reduce(table, where):
    # Eager launches take 20 us of a host; engines replay graphs.
    part = table[table["backend"] != "vllm_eager"] if "backend" in table else table
    yield _collective("all-reduce", _library(table), part, part["allreduce_dtype"], where)


def _collective(family, library, part, forms, where) -> Kernels:
    width = forms.map(_ELEMENT).to_numpy(float)
    counts = {
        "message_bytes": _numbers(part, "message_size", where) * width,
        "n_gpu": _numbers(part, "num_gpus", where),
        "n_pass": np.array(PASSES[family]),
    }
    return _group(family, library, counts, _numbers(part, "latency", where) / 1e3, where)


_MOST_SMS = 24  # of DeepEP's normal kernels, the most that the table holds: what engines use


def _deepep(table, where):
    is_low = "dispatch_avg_t_us" in table
    part = table if is_low else table[table["dispatch_sms"] == _MOST_SMS]
    for way, width in (("dispatch", 1.0), ("combine", 2.0)):
        column = f"{way}_avg_t_us" if is_low else f"{way}_transmit_us"
        counts = {
            "n_token": _numbers(part, "num_token", where),
            "hidden": _numbers(part, "hidden_size", where),
            "top_k": _numbers(part, "num_topk", where),
            "n_gpu": 8.0 * _numbers(part, "node_num", where),
            "element_bytes": np.array(width),
        }
        family = f"{way}-low-latency" if is_low else way
        yield _group(family, "deepep", counts, _numbers(part, column, where) / 1e6, where)


_READERS = {
    frozenset({"gemm_dtype", "latency"}): _gemm,
    frozenset({"mla_dtype", "step"}): _latent,
    frozenset({"attn_dtype", "step"}): _attention,
    frozenset({"moe_dtype", "distribution"}): _experts,
    frozenset({"nccl_dtype", "op_name"}): _nccl,
    frozenset({"allreduce_dtype"}): _all_reduce,
    frozenset({"num_topk", "num_token"}): _deepep,
}
