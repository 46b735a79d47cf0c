"""The closed forms: points a second of whole sweeps, cost of a gradient, start-up.

Every axis varies, every metric reaches the host as an xarray.Dataset, and the points are decoded
from their numbers inside the clock.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

import jaxmem as jm
from jaxmem.cli.bench import Row
from jaxmem.core.program import N_LANE, unwrapped

N_GRADIENT = 64


def rows() -> Iterator[Row]:
    """What `jaxmem bench spine` measures."""
    yield from _sweep_rows("PIM evaluate", *pim_space(), bar=5e6)
    yield from _sweep_rows("HBF evaluate with its batch search", *hbf_space(), bar=2e5)
    yield from _gradient_rows("PIM", jm.pim.evaluate, *_pim(), PIM_LEAVES)
    yield from _gradient_rows("HBF", jm.hbf.evaluate, *_hbf(), HBF_LEAVES)
    yield from _start_rows()


def _pim() -> tuple[Any, Any]:
    design = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
    return design, jm.Decode.create(batch=32, context_tokens=2048)


def _hbf() -> tuple[Any, Any]:
    design = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")
    return design, jm.Serve.create(input_tokens=8110, output_tokens=2530, slo_s=0.1)


def pim_space() -> tuple[Any, ...]:
    """A million points of the PIM model: granules, runtimes, models, traffic."""
    space = {
        "llm": ["llama3-8b", "qwen3-4b", "llama3.1-70b", "mistral-7b"],
        "policy.v_write": ["direct", "commit_zone"],
        "policy.merges_adjacent": [0, 1],
        "ch_per_head": [1, 2, 4, 8],
        "n_o1p2": [1, 2, 4, 8, 16],
        "expected_run_blocks": [1, 4, 16, 64],
        "workload.batch": [float(b) for b in range(1, 65)],
        "workload.context_tokens": [float(512 * c) for c in range(1, 14)],
    }
    return jm.pim.evaluate, *_pim(), space


def hbf_space() -> tuple[Any, ...]:
    """A million points of the flash model, each with its search for the largest batch."""
    space = {
        "llm": ["llama3.1-405b", "qwen3-235b-a22b", "qwen3-coder-480b-a35b", "deepseek-v3"],
        "planes_per_megaplane": [1, 2, 4, 8, 16, 32, 48, 96],
        "sram_bytes": [2.0**23, 2.0**24, 2.0**25, 2.0**26],
        "is_replicated": [0, 1],
        "workload.slo_s": jm.linspace(0.03, 0.2, 64),
        "workload.input_tokens": [float(256 * n) for n in range(1, 62)],
    }
    return jm.hbf.evaluate, *_hbf(), space


def _sweep_rows(name: str, fn: Any, design: Any, workload: Any, space: Any, bar: float):
    started = time.perf_counter()
    n_point = int(jm.sweep(fn, design, workload, space).feasible.size)
    first_s = time.perf_counter() - started
    best_s = _best(lambda: jm.sweep(fn, design, workload, space), 3)
    rate = n_point / best_s
    yield Row(name, rate, "points/s", f">= {bar:g}", f"{n_point:,} points into a Dataset")
    yield Row(f"{name}, first sweep", first_s - best_s, "s", "", "tracing and compiling")


PIM_LEAVES = (
    "ch_per_head",
    "block_tokens",
    "expected_run_blocks",
    "policy.own_blocks",
    "device.n_channel",
    "device.n_bank",
    "workload.batch",
    "workload.context_tokens",
)
HBF_LEAVES = (
    "planes_per_megaplane",
    "sram_bytes",
    "device.n_stack",
    "device.flash.read_s",
    "device.flash.page_payload_bytes",
    "workload.slo_s",
    "workload.input_tokens",
    "workload.output_tokens",
)


def _gradient_rows(name: str, fn: Any, design: Any, workload: Any, leaves: tuple[str, ...]):
    """The gradient of one metric in eight leaves, against all metrics of as many points."""
    from jaxmem.core import design as records

    model = unwrapped(fn)
    base = (design, workload)
    owners = [_owner(path) for path in leaves]
    start = [float(records.get(base[owner], path)) for owner, path in owners]

    def at(values):
        point = list(base)
        for (owner, path), value in zip(owners, values, strict=True):
            point[owner] = records.put(point[owner], path, value)
        return tuple(point)

    def forward(*values):
        return model(*at(values))

    def objective(*values):
        return forward(*values).energy_j

    with jax.enable_x64(True):
        spread = 1 + 1e-3 * jnp.linspace(0, 1, N_LANE)
        lanes = [value * spread for value in start]
        all_metrics = jax.jit(jax.vmap(forward))
        gradient = jax.jit(jax.vmap(jax.value_and_grad(objective, tuple(range(len(leaves))))))
        times = _paired(
            lambda: jax.block_until_ready(all_metrics(*lanes)),
            lambda: jax.block_until_ready(gradient(*lanes)),
        )
    note = f"energy_j in {len(leaves)} leaves, {N_LANE} points, beside all metrics of them"
    yield Row(f"{name} gradient", times[1] / times[0], "x", "<= 4", note)


def _owner(path: str) -> tuple[int, str]:
    head, _, rest = path.partition(".")
    return (1, rest) if head == "workload" else (0, path)


def _start_rows() -> Iterator[Row]:
    run = [sys.executable, "-c"]
    yield Row("import jaxmem", _process_s([*run, "import jaxmem"]), "s", "< 1.2", "best of 3")
    everything = "import jaxmem as jm; [getattr(jm, name) for name in jm.__all__]"
    note = "every public name used, best of 3"
    yield Row("import jaxmem, all of it", _process_s([*run, everything]), "s", "< 1.2", note)
    for system in ("pim", "hbf"):
        command = [sys.executable, "-m", "jaxmem", "evaluate", system, "--json"]
        with tempfile.TemporaryDirectory() as cache:
            cold_s = _process_s(command, 1, XDG_CACHE_HOME=cache)
            warm_s = _process_s(command, 3, XDG_CACHE_HOME=cache)
        yield Row(f"jaxmem evaluate {system}, first time", cold_s, "s", "< 4", "empty cache")
        yield Row(f"jaxmem evaluate {system}", warm_s, "s", "< 2.5", "best of 3, cached")


def _process_s(command: list[str], n: int = 3, **environment: str) -> float:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("JAX_")}

    def run():
        subprocess.run(command, check=True, env=kept | environment, stdout=subprocess.DEVNULL)

    return _best(run, n)


def _best(run: Callable[[], Any], n: int) -> float:
    return min(_timed(run) for _ in range(n))


def _timed(run: Callable[[], Any]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _paired(first: Callable, second: Callable, n: int = 15) -> tuple[float, float]:
    """Best times of two functions, run in turns after a first call each."""
    first(), second()
    times = [(_timed(first), _timed(second)) for _ in range(n)]
    return min(t for t, _ in times), min(t for _, t in times)
