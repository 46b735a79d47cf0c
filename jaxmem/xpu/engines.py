"""How engines are fitted to served models: which constants they share, and which are their own.

The hardware's shares and the times of routing, quantising and requests are common to all engines;
an engine's operators, MLA and experts are its own, and so is its way with prompts. Priors of rates,
links and pieces are the kernels' own fits (docs/gpu.md); those of the times of MLA, experts,
requests and activations, the spreads and `MIXED` were chosen while looking at served models, scored
ones too.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxmem.core.design import Leaf, specs
from jaxmem.devices import catalog
from jaxmem.devices.engine import Engine
from jaxmem.xpu.calibrate import Prior
from jaxmem.xpu.online import Online, online

SHARED = {
    "read_efficiency": Prior(0.93, 0.05, 1.0),
    "matmul_efficiency": Prior(0.7, 0.15, 1.0),
    "expert_share": Prior(0.6, 0.3, 1.0),
    "attention_efficiency": Prior(0.6, 0.0),
    "link_efficiency": Prior(0.79, 0.0),
    "reduce_s": Prior(4e-6, 0.5),
    "cross_s": Prior(15e-6, 0.5),
    "cross_efficiency": Prior(0.3, 1.0, 1.0),
    "quantize_s": Prior(6e-6, 0.4),
    "step_s": Prior(500e-6, 0.7),
    "request_s": Prior(18e-6, 0.7),
    "piece_s": Prior(24e-9, 0.0),
    "independence": Prior(0.8, 0.2, 1.0),
    "imbalance": Prior(1.05, 0.05),
    "passes": Prior(20.0, 0.7),
}
"""Constants of all engines."""
OWN = {
    "operator_s": Prior(3e-6, 0.4),
    "latent_s": Prior(80e-6, 0.4),
    "expert_s": Prior(25e-6, 0.4),
}
"""Constants of each engine."""
FIRST = {
    "first_s": Prior(50e-3, 1.0),
    "own_passes": Prior(2.0, 0.7),
    "queue_share": Prior(0.1, 1.0, 1.0),
}
"""Constants of each engine that the time to the first token is fitted to, after the others."""
MIXED = {"trtllm": (1.0, 1.0), "vllm": (1.0, 1.0), "sglang": (0.0, 0.5)}
"""`is_mixed` and `prefill_share` by engine, not fitted: TensorRT-LLM and vLLM compute prompts
within steps; SGLang computes them first, and a burst of requests waits for all of them."""


def priors(own: dict[str, Prior], shared: dict[str, Prior] | None = None) -> dict[str, Prior]:
    """Priors by name; an engine's own constants are called `name.engine`."""
    each = {f"{name}.{engine}": prior for name, prior in own.items() for engine in MIXED}
    return {**(shared or {}), **each}


def engine(constants: dict[str, Any], name: str) -> dict[str, Any]:
    """The fields of one engine among constants of all."""
    own = {key.removesuffix(f".{name}"): value for key, value in constants.items() if "." in key}
    own = {key: value for key, value in own.items() if "." not in key}
    shared = {key: value for key, value in constants.items() if "." not in key}
    is_mixed, share = MIXED[name]
    return {**shared, **own, "is_mixed": is_mixed, "prefill_share": share}


def shipped() -> dict[str, float]:
    """The constants of the catalog's engines, by name as `priors` names them."""
    found = {}
    for name in MIXED:
        values = catalog.load(name, kind="engine")
        for field, spec in specs(values).items():
            if spec.kind == "leaf":
                found[f"{field}.{name}"] = float(getattr(values, field))
    return found


def predict(constants: dict[str, Any], rows: Any) -> Online:
    """[row] what requests see, each row with its engine's constants.

    Args:
        constants: values by name, as `priors` names them.
        rows: `table`, `node`, `parallel`, `engine` (index in `MIXED`), `n_request`,
            `input_tokens`, `output_tokens` and `is_apart`, leaves [row].
    """
    sets = [engine(constants, name) for name in MIXED]
    names = set().union(*sets)
    n = rows.n_request.shape[0]

    def leaf(name: str) -> Leaf:
        column = jnp.stack([jnp.asarray(s[name], float) for s in sets])[rows.engine]
        return jnp.broadcast_to(column, (n,))

    plain = jax.tree.map(lambda value: jnp.full(n, value, float), Engine())
    engines = dataclasses.replace(plain, **{name: leaf(name) for name in names})
    return jax.vmap(
        lambda table, node, parallel, e, n_request, i, o, apart: online(
            table, node, parallel, e, n_request=n_request, input_tokens=i, output_tokens=o,
            is_apart=apart,
        )
    )(
        rows.table, rows.node, rows.parallel, engines, rows.n_request, rows.input_tokens,
        rows.output_tokens, rows.is_apart,
    )  # fmt: skip


def tpot_s(constants: dict[str, Any], rows: Any) -> Leaf:
    """[row] seconds of an output token."""
    return predict(constants, rows).tpot_s


def ttft_s(constants: dict[str, Any], rows: Any) -> Leaf:
    """[row] seconds to the first token."""
    return predict(constants, rows).ttft_s
