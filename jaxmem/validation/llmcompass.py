"""Body `llmcompass`: operators and layers timed by LLMCompass, on the devices that it describes.

Its searched matrix products, softmax, normalisation, GELU, all-reduce and GPT-3 layers, against the
mapped fidelity of `jaxmem.xpu`. Fixed times are added to layers only, as there. Devices are read
from hardware_params.json beside the file, below JAXMEM_REFERENCE, or as shipped. Source:
research/llmcompass.md section 3.
"""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.devices.chip import Chip
from jaxmem.validation.body import Body, Case, beside, read_lines
from jaxmem.xpu import block, collectives, matmul, vector
from jaxmem.xpu.collectives import Packets

_FIELDS = {
    "core_count": "n_core", "clock_hz": "clock_hz", "l2_bytes": "l2_bytes",
    "l2_bw_bytes_per_cycle": "l2_bytes_per_cycle", "sram_bytes": "l1_bytes", "sa_count": "n_array",
    "sa_h": "array_rows", "sa_w": "array_columns", "mac_per_cycle": "mac_per_cycle",
    "vec_flops_per_cycle_core": "vector_flops_per_cycle", "vec_count": "n_vector",
    "vec_width": "vector_width", "vec_flops_per_cycle_lane": "lane_flops_per_cycle",
    "flops_per_exp": "flops_per_exp", "mem_bw": "memory_bytes_per_s",
}  # fmt: skip
_FIXED = {
    "matmul": "matmul_s",
    "softmax": "softmax_s",
    "layernorm": "norm_s",
    "gelu": "activation_s",
}
_LAYERS = {"A100_4_fp16": "dict:A100_80GB_fp16"}
"""Chips of systems that a layer runs on; others are LLMCompass' configurations of that name."""
LINKS = {
    # 12 links of 25 GB/s a direction, 8.92 us, flits and headers of 16 bytes, payloads of 256.
    "interconnect:NVLinkV3_FC_4": Packets(4.0, 300e9, 8.92e-6, 16.0, 256.0, np.inf, 0.0),
    # Inferred from the reference itself, whose times it gives to eight digits.
    "interconnect:TPUv3Link_8": Packets(4.0, 81.25e9, 150e-6, 16.0, 256.0, 162.5e9, 1.0),
}
_SHORT = 256  # rows up to which memory decides


def check(path: Path) -> Iterator[Case]:
    """Every row of a file.

    Raises:
        InputError: not such a file; devices that are not described.
    """
    chips = _chips(path.parent)
    for number, line in read_lines(path):
        where = f"{path}:{number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError("row", line[:40], f"JSON ({error})", where=where) from None
        try:
            with jax.enable_x64(True):
                second, family = _second(row, chips, where)
            measured = float(row["sim_latency_s"])
        except KeyError as error:
            raise InputError("row", str(error), "that field", where=where) from None
        except (TypeError, ValueError) as error:
            raise InputError(
                "row", line[:40], f"a row of LLMCompass ({error})", where=where
            ) from None
        error = abs(second / measured - 1)
        yield Case(f"{row['hardware']} {row['op']} {_shape(row)}", family, error < 1e-9, error)


def _shape(row: dict[str, Any]) -> str:
    if "shape" in row:
        return "x".join(str(x) for x in row["shape"])
    return f"{row['stage']} {row['batch']}x{row['seq']}"


def chip(name: str, folder: Path) -> Chip:
    """A device that hardware_params.json describes, beside a file or below JAXMEM_REFERENCE.

    Raises:
        InputError: no such device, or no description of any.
    """
    return _of(_chips(folder), name, str(folder))


def _chips(folder: Path) -> dict[str, Chip]:
    """The devices that are described in full."""
    file = beside(folder, "hardware_params.json")
    if file is None:
        rule = "hardware_params.json beside the file, or JAXMEM_REFERENCE"
        raise InputError("devices", str(folder), rule)
    try:
        rows = json.loads(file.read_text(encoding="utf-8"))
        whole = {name: row for name, row in rows.items() if None not in row.values()}
        return {name: _chip(row) for name, row in whole.items()}
    except (ValueError, KeyError, AttributeError) as error:
        raise InputError("devices", str(file), f"devices of LLMCompass ({error})") from None


def _chip(row: dict[str, Any]) -> Chip:
    values = {ours: row[theirs] for theirs, ours in _FIELDS.items()}
    fixed = {ours: row["overhead"][theirs] for theirs, ours in _FIXED.items()}
    return Chip.create(**values, **fixed)


def _second(row: dict[str, Any], chips: dict[str, Chip], where: str) -> tuple[float, str]:
    """Seconds of the model, and the family."""
    op, hardware = row["op"], row["hardware"]
    if op == "allreduce":
        link = _of(LINKS, hardware, where)._replace(n_device=float(row["device_count"]))
        return float(collectives.packet_all_reduce_s(link, float(row["shape"][0]))), op
    if op == "transformer_block":
        chip = _of(chips, _LAYERS.get(hardware, f"json:configs/{hardware}"), where)
        is_decode = row["stage"] == "decode"
        n_token = 1.0 if is_decode else float(row["seq"])
        context = float(row["seq"]) + is_decode
        parts = _layer(chip, float(row["batch"]), n_token, context)
        return float(sum(parts.values())), f"{op} {row['stage']}"
    chip = _of(chips, hardware, where)
    size = [float(x) for x in row["shape"]]
    if op in ("matmul", "batched_matmul"):
        n_batch, *sizes = size if op == "batched_matmul" else [1.0, *size]
        rows = "M <= 256" if sizes[0] <= _SHORT else "M > 256"
        return float(matmul.mapped(chip, *sizes, n_batch=n_batch)), f"{op} {rows}"
    by_row = {"softmax": vector.softmax_s, "layernorm": vector.norm_s, "gelu": vector.gelu_s}
    if op not in by_row:
        raise InputError(
            "op", op, "an operator of LLMCompass", where=where, known=(*by_row, "matmul")
        )
    return float(_jitted(by_row[op])(chip, *size, float(row.get("sim_word_bytes", 2)))), op


def _of(known: dict[str, Any], name: str, where: str) -> Any:
    if name not in known:
        raise InputError("hardware", name, "a device described here", where=where, known=known)
    return known[name]


@functools.cache
def _jitted(operator: Any) -> Any:
    return jax.jit(operator)


@jax.jit
def _layer(chip: Chip, batch: Any, n_token: Any, context: Any) -> dict[str, Any]:
    """A GPT-3 layer on four devices."""
    return block.gpt_layer_s(
        chip, LINKS["interconnect:NVLinkV3_FC_4"], width=12288.0, n_head=96.0, n_device=4.0,
        batch=batch, n_token=n_token, context_tokens=context,
    )  # fmt: skip


BODIES = (
    Body(
        "llmcompass", "operators and layers timed by LLMCompass", "golden/llmcompass.jsonl", check
    ),
)
