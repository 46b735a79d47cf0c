"""The GPU model: products and decode steps a second, at both fidelities, and against LLMCompass."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxmem import devices
from jaxmem.cli.bench import Row, best_s
from jaxmem.llm import Parallel, load, table
from jaxmem.xpu import matmul
from jaxmem.xpu.step import hbm, step, total_s

N_PRODUCT, N_STEP, N_MAPPED = 64, 1 << 19, 2048
PEER_S = 10.5
"""CPU seconds of LLMCompass for 8 x 4096 x 14336 on an A100 (research/llmcompass.md section 1)."""


def rows() -> Iterator[Row]:
    """What `jaxmem bench xpu` measures."""
    chip = devices.load("a100-80gb-chip")
    m, n = np.linspace(8, 512, N_PRODUCT).round(), np.resize([4096.0, 14336.0], N_PRODUCT)
    mapped = jax.jit(
        lambda m, n: jax.lax.map(lambda x: matmul.mapped_s(chip, x[0], 4096.0, x[1]), (m, n))
    )
    second = best_s(lambda: mapped(m, n))
    yield Row("mapped products, the whole grid of tilings", N_PRODUCT / second, "products/s")
    yield Row("  against LLMCompass' search", PEER_S * N_PRODUCT / second, "x")
    plain = jax.jit(jax.vmap(lambda m, n: matmul.roofline_s(chip, m, 4096.0, n)))
    many = [np.resize(x, 1_000_000) for x in (m, n)]
    yield Row("roofline products", 1e6 / best_s(lambda: plain(*many)), "products/s")
    yield from _steps()


def _steps() -> Iterator[Row]:
    """A decode step of Qwen3-235B under TP8; batch, context and rates vary from lane to lane."""
    model, node, chip = (
        table(load("qwen3-235b-a22b")),
        devices.load("8xH200"),
        devices.load("h200-chip"),
    )
    degrees = Parallel.create(tp=8, dp=1, ep=8)

    def taken(n: Any, context: Any, fidelity: str) -> Any:
        return step(
            model, node, degrees, n, context, n_request=n, memory=hbm(node), expert_read=1,
            fidelity=fidelity, chip=chip,
        )  # fmt: skip

    found = {}
    for fidelity, count, bar in (("roofline", N_STEP, "1e6"), ("mapped", N_MAPPED, "1e3")):
        random = np.random.default_rng(0)
        n = random.uniform(1, 256, count).astype(np.float32)
        context = random.uniform(100, 16_000, count).astype(np.float32)
        run = jax.jit(jax.vmap(lambda n, c, f=fidelity: taken(n, c, f)))
        found[fidelity] = best_s(lambda r=run, n=n, c=context: jax.device_get(r(n, c)))
        name = f"decode steps of Qwen3-235B under TP8, {fidelity}"
        note = "every part of the step reaches the host"
        yield Row(name, count / found[fidelity], "steps/s", f"at least {bar}", note)
    random = np.random.default_rng(0)
    n = random.uniform(1, 256, N_STEP).astype(np.float32)
    context = random.uniform(100, 16_000, N_STEP).astype(np.float32)
    slope = jax.jit(
        jax.vmap(jax.grad(lambda n, c: total_s(taken(n, c, "roofline")), argnums=(0, 1)))
    )
    ratio = best_s(lambda: jax.device_get(slope(n, context))) / found["roofline"]
    yield Row("gradient of a step's time", ratio, "x", "at most 4 steps")
    one, count = n[:N_MAPPED], context[:N_MAPPED]
    gaps = [
        np.asarray(jax.jit(jax.vmap(lambda n, c, f=f: total_s(taken(n, c, f))))(one, count))
        for f in ("mapped", "roofline")
    ]
    yield Row("mapped over roofline, median", float(np.median(gaps[0] / gaps[1])), "x")
    # A layer has seven products of its own: LLMCompass searches each.
    yield Row(
        "  against LLMCompass' search of a layer", 7 * PEER_S * N_MAPPED / found["mapped"], "x"
    )
