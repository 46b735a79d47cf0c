"""Served models measured end to end (the columns of aiconfigurator's table), cleaned row by row.

What the columns get wrong or leave out is undone where the id or the checkpoint tells, and left out
with its reason where nothing does: decode without a batch, suspects of multi-token prediction,
sizes that do not fit one another, models that are not understood, requests that do not fit in
memory, and times shorter than the hardware's peak rates allow. Repeats count once. A configuration
is used either to fit or to score, by its hash.
"""

import dataclasses
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.devices import catalog
from jaxmem.devices.engine import Engine
from jaxmem.llm import Parallel, kv_bytes, load, names, shard, table, weight_bytes
from jaxmem.llm.table import pad
from jaxmem.validation.kernels import share_of
from jaxmem.xpu.engines import MIXED
from jaxmem.xpu.online import online

ENGINES = tuple(MIXED)
_NODES = {"h100_sxm": "8xH100", "h200_sxm": "8xH200"}
_SAME_SHAPE = {
    "deepseek-r1": "deepseek-v3", "deepseek-r1-0528": "deepseek-v3", "deepseek-v3.1": "deepseek-v3",
    "deepseek-v3-0324": "deepseek-v3", "minimax-m2": "minimax-m2.5", "minimax-m2.1": "minimax-m2.5",
    "minimax-m2.7": "minimax-m2.5", "glm-4.6": "glm-4.5", "glm-4.7": "glm-4.5",
    "qwen3.6-27b": "qwen3.5-27b", "qwen3.6-35b-a3b": "qwen3.5-35b-a3b",
}  # fmt: skip
"""Models whose shapes are those of one in the zoo."""
_SUFFIX = re.compile(r"(-(instruct|fp8|bf16|hf|v0\.1|0905|2507|thinking))+$")
_PLAIN = ("bfloat16", "float16", "bf16", "fp16")
_MEMORY_SHARE = 0.9  # of HBM that engines take
_N_KIND = 4  # kinds of layer that a table may have, so that all models run one program
_DRAFTING = ("trtllm", "1.1.0rc2.post2", "deepseek-r1")
"""Engine, version and model whose rows of equal columns lie 1.2 to 2.5 apart: drafts are on."""
PEAK = Engine.create(
    read_efficiency=1.0, matmul_efficiency=1.0, attention_efficiency=1.0, link_efficiency=1.0,
    cross_efficiency=1.0, reduce_s=0.0, cross_s=0.0, operator_s=0.0, step_s=0.0, independence=0.5,
)  # fmt: skip
"""Nothing but the hardware's rates, and few experts touched."""


@dataclasses.dataclass(frozen=True)
class Served:
    """One measured configuration.

    Attributes:
        id: its first row.
        model: zoo name.
        engine: of `ENGINES`.
        node: catalog name.
        weight_dtype: of matrices, None for the checkpoint's.
        kv_dtype: of the KV cache, None for the checkpoint's.
        tp, dp, ep: degrees; dp of attention.
        n_request: in flight on the node.
        input_tokens, output_tokens: of a request.
        is_apart: whether prompts are computed by other GPUs.
        tpot_s, ttft_s: measured means.
    """

    id: str
    model: str
    engine: str
    node: str
    weight_dtype: str | None
    kv_dtype: str | None
    tp: float
    dp: float
    ep: float
    n_request: float
    input_tokens: float
    output_tokens: float
    is_apart: bool
    tpot_s: float
    ttft_s: float

    @property
    def is_fit(self) -> bool:
        """Whether the configuration is one to fit to; the others score."""
        values = [getattr(self, f.name) for f in dataclasses.fields(self)]
        return share_of(repr(values[1:-2]).encode()) % 2 == 0

    @property
    def kind(self) -> str:
        """dense, moe or disaggregated."""
        if self.is_apart:
            return "disaggregated"
        return "moe" if has_expert(self.model) else "dense"


class Rows(NamedTuple):
    """Configurations as arrays: leaves [row]."""

    table: Any
    node: Any
    parallel: Parallel
    engine: np.ndarray  # index in ENGINES
    n_request: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    is_apart: np.ndarray


@functools.cache
def has_expert(model: str) -> bool:
    """Whether a zoo model has experts."""
    return any(group.n_expert for group in load(model).groups)


def served(rows: Any, where: str) -> tuple[list[Served], Counter]:
    """The clean, distinct measurements of a table, and how many rows were left out and why.

    Args:
        rows: a pandas data frame with the table's columns.
        where: file, for errors.

    Raises:
        InputError: a column is missing or holds no numbers.
    """
    left_out: Counter = Counter()
    found: dict[tuple, Served] = {}
    for row in rows.to_dict("records"):
        try:
            given = _served(row)
        except KeyError as error:
            raise InputError("column", str(error), "that column", where=where) from None
        except (TypeError, ValueError) as error:
            raise InputError("row", row.get("id"), f"its numbers ({error})", where=where) from None
        if isinstance(given, str):
            left_out[given] += 1
            continue
        key = (given.input_tokens, given.output_tokens, round(given.tpot_s, 6),
               round(given.ttft_s, 4))  # fmt: skip
        if key in found:
            left_out["repeats a measurement"] += 1
        else:
            found[key] = given
    kept = list(found.values())
    if not kept:
        return kept, left_out
    fits, possible = _fits(kept), _possible(kept)
    left_out["requests do not fit in memory"] += int(np.sum(~fits))
    left_out["faster than the hardware's peak"] += int(np.sum(fits & ~possible))
    return [x for x, ok in zip(kept, fits & possible, strict=True) if ok], left_out


def _served(row: dict[str, Any]) -> Served | str:
    """A row's configuration, or why it is left out."""
    name = row["model_path"].split("/")[-1].lower()
    is_apart = row["mode"] == "disagg"
    prefix = "decode_" if is_apart else ""
    batch = float(row[f"{prefix}batch_size"])
    if math.isnan(batch):
        return "decode batch not stated"
    if (row["backend"], row["backend_version"], name) == _DRAFTING:
        return "multi-token prediction suspected"
    model = zoo_name(row["model_path"])
    if model is None:
        return f"model not understood: {row['model_path']}"
    if row["backend"] not in ENGINES or row["system"] not in _NODES:
        return "engine or machine not known"
    sizes = _degrees(row, prefix, has_expert(model))
    if sizes is None:
        return "sizes do not fit one another"
    tp, dp, ep = sizes
    stated = re.search(r"_c(\d+)_", row["id"])
    n_request = float(stated.group(1)) if stated and not is_apart else batch * dp
    form = row["gemm_quant_mode"]
    is_fp8 = isinstance(form, str) and form.startswith("fp8")
    if isinstance(form, str) and not is_fp8 and form not in _PLAIN:
        return f"weights of a form not modelled: {form}"
    keeps_fp8 = row["backend"] == "trtllm" and name.startswith(("llama", "deepseek"))
    return Served(
        id=row["id"], model=model, engine=row["backend"], node=_NODES[row["system"]],
        weight_dtype="fp8" if is_fp8 and "gpt-oss" not in name else None,
        # TensorRT-LLM keeps the KV cache of these FP8 checkpoints in FP8, as their makers' say.
        kv_dtype="fp8" if is_fp8 and keeps_fp8 else None,
        tp=tp, dp=dp, ep=ep, n_request=n_request, input_tokens=float(row["isl"]),
        output_tokens=float(row["osl"]), is_apart=is_apart,
        tpot_s=float(row["silicon_tpot_ms"]) / 1e3, ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
    )  # fmt: skip


def zoo_name(path: str) -> str | None:
    """The zoo's name of a Hugging Face id: of the same shapes, whatever its numbers' format."""
    known = names()
    whole = path.split("/")[-1].lower()
    for name in (whole, _SUFFIX.sub("", whole.replace("-instruct-v0.1", "-v0.1"))):
        name = _SAME_SHAPE.get(name, name).removeprefix("meta-")
        for candidate in (name, name.replace("llama-", "llama")):
            if candidate in known:
                return candidate
    return None


def _degrees(row, prefix, is_sparse) -> tuple[float, float, float] | None:
    """(tp, dp, ep); None where the sizes contradict one another."""
    tp, dp = float(row[f"{prefix}tp_size"]), float(row[f"{prefix}attention_dp_size"])
    dp = 1.0 if math.isnan(dp) else dp
    if not is_sparse:
        return (tp, dp, 1.0) if tp >= 1 else None
    within, ep = float(row[f"{prefix}moe_tp_size"]), float(row[f"{prefix}moe_ep_size"])
    if not min(tp, within, ep) >= 1:
        return None
    # Some rows have the expert-parallel size multiplied in again: into tp or dp, and into moe_tp
    # or ep. What is left of it has to be one machine whose sizes agree.
    for on_tp, on_dp, on_within, on_ep in (
        (1, 1, 1, 1), (8, 1, 8, 1), (1, 8, 8, 1), (4, 1, 4, 1), (1, 4, 1, 4), (1, 4, 4, 1),
    ):  # fmt: skip
        found = (tp / on_tp, dp / on_dp, within / on_within, ep / on_ep)
        n_gpu = found[0] * found[1]
        is_one = n_gpu <= 8 or (prefix and n_gpu <= 16)
        if is_one and n_gpu == found[2] * found[3] and all(x >= 1 and x % 1 == 0 for x in found):
            return found[0], found[1], found[3]
    return None


@functools.cache
def _table(model: str, weight_dtype: str | None, kv_dtype: str | None) -> Any:
    return pad(table(load(model, weight_dtype=weight_dtype, kv_dtype=kv_dtype)), _N_KIND)


def arrays(found: Iterable[Served]) -> Rows:
    """Configurations as arrays for one program."""
    found = list(found)
    tables = [_table(x.model, x.weight_dtype, x.kv_dtype) for x in found]
    one = np.ones(len(found))

    def column(name: str) -> np.ndarray:
        return np.array([float(getattr(x, name)) for x in found])

    return Rows(
        table=jax.tree.map(lambda *leaves: np.stack(leaves), *tables),
        node=catalog.stack([catalog.load(x.node) for x in found]),
        parallel=Parallel(
            tp=column("tp"), dp=column("dp"), ep=column("ep"), pp=one, spreads_weights=one
        ),
        engine=np.array([ENGINES.index(x.engine) for x in found]),
        n_request=column("n_request"),
        input_tokens=column("input_tokens"),
        output_tokens=column("output_tokens"),
        is_apart=column("is_apart"),
    )


def _fits(found: list[Served]) -> np.ndarray:
    """[row] whether all requests fit at their full length."""
    rows = arrays(found)

    def one(model, node, parallel, n_request, length):
        rank = shard(model, parallel)
        held = weight_bytes(rank) + n_request / parallel.dp * kv_bytes(rank, length)
        return held <= _MEMORY_SHARE * node.gpu.hbm_bytes

    length = rows.input_tokens + rows.output_tokens
    fits = jax.jit(jax.vmap(one))(rows.table, rows.node, rows.parallel, rows.n_request, length)
    return np.asarray(fits)


def _possible(found: list[Served]) -> np.ndarray:
    """[row] whether a request's whole time allows for the work that falls into it, at peak."""
    rows = arrays(found)
    peak = jax.tree.map(lambda leaf: np.full(len(found), float(leaf)), PEAK)

    @jax.jit
    def work(rows, engine):
        return jax.vmap(
            lambda r, e: online(
                r.table, r.node, r.parallel, e, n_request=r.n_request, is_apart=r.is_apart,
                input_tokens=r.input_tokens, output_tokens=r.output_tokens,
            )
        )(rows, engine).tpot_s  # fmt: skip

    need = np.asarray(work(rows, peak)) * rows.output_tokens
    spent = np.array([x.output_tokens * x.tpot_s + (not x.is_apart) * x.ttft_s for x in found])
    return need <= spent
