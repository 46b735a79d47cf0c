"""The exact PIM engine: instructions a second, timing variants, mixed streams, the closed form.

Against the public AiM simulator's own figures (research/aim.md section 7: user seconds on a shared
two-core machine): 16,897 instructions of one layer's attention in 3.85 s.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxmem as jm
from jaxmem.cli.bench import Row, best_s
from jaxmem.pim import engine, isa, streams, timing, trace_form

SIMULATOR_S = 3.85
SIMULATOR_PER_S = 16_897 / SIMULATOR_S
N_VARIANT = 1000
N_THREAD = 2
N_BATCH = 50  # of a thread's variants in one vector
_ITS = "the simulator's own figure, research/aim.md section 7"


def rows() -> Iterator[Row]:
    """What `jaxmem bench engine` measures."""
    device = jm.devices.load("aim-gddr6-16gib")
    stream = streams.attention(gb_piece_bursts=64)
    n = len(stream.op)
    yield from _rate("in-order attention, simulator mode", stream, device, "simulator", "100 x")
    yield from _rate("in-order attention, with refresh", stream, device, "device", "")
    yield from _mixed(device)
    second = _variants(stream, device)
    yield Row("1,000 timing variants of the attention", N_VARIANT * n / second, "instructions/s")
    ratio = N_VARIANT * SIMULATOR_S / second
    yield Row("the same against 1,000 simulator runs", ratio, "x", "600 x", _ITS)
    load = jax.tree.map(lambda x: x[0], isa.load(stream, device))
    closed = jax.jit(timing.cycles)
    second = best_s(lambda: closed(load, device), 200)
    note = f"one load in one call; {_ITS}"
    yield Row("closed form of the same attention", SIMULATOR_S / second, "x", "10,000 x", note)


def _rate(name: str, stream: Any, device: Any, mode: str, bar: str) -> Iterator[Row]:
    n = len(stream.op)
    whole = best_s(lambda: timing.run(stream, device, mode).cycles, 8)
    program, shape = engine.prepare(stream, device, has_refresh=mode == "device")
    cycles = engine.numbers(device.timing)
    rules = engine.MODES[mode]
    alone = best_s(lambda: engine._run(program, cycles, rules, shape)["cycles"], 8)
    yield Row(name, n / whole, "instructions/s", "", f"{n:,} instructions, laying out included")
    yield Row("  its program alone", n / alone, "instructions/s")
    yield Row("  ratio to the simulator", SIMULATOR_S / alone, "x", bar, _ITS)


def _mixed(device: Any) -> Iterator[Row]:
    """Ordinary reads and writes among PIM instructions: the longest measured streams."""
    path = Path(jm.__file__).parent / "validation" / "data" / "aim.jsonl.gz"
    cases = [c for c in trace_form.read(path, device) if c.family == "e_random_all"]
    longest = sorted(cases, key=lambda c: len(c.stream.op))[-4:]
    n = sum(len(c.stream.op) for c in longest)

    def run() -> list[Any]:
        return [timing.run(c.stream, device, "simulator").cycles for c in longest]

    rate = n / best_s(run, 3)
    yield Row("mixed with single-bank reads and writes", rate, "instructions/s", "",
              "event by event")  # fmt: skip
    yield Row("  ratio to the simulator", rate / SIMULATOR_PER_S, "x", "", _ITS)


def _variants(stream: Any, device: Any) -> float:
    """Seconds of the attention under a thousand timings, every parameter varied."""
    program, shape = engine.prepare(stream, device, has_refresh=False)
    rng = np.random.default_rng(0)

    def vary(value: Any) -> np.ndarray:
        return np.asarray(value) + rng.integers(0, 4, N_VARIANT).astype(np.int32)

    timings = jax.tree.map(vary, engine.numbers(device.timing))
    parts = [jax.tree.map(lambda x, k=k: x[k::N_THREAD], timings) for k in range(N_THREAD)]

    @jax.jit
    def cycles(some: Any) -> Any:
        def one(t: Any) -> Any:
            return engine._run(program, t, engine.SIMULATOR, shape)["cycles"]

        return jax.lax.map(one, some, batch_size=N_BATCH)

    def run() -> list[Any]:
        with ThreadPoolExecutor(N_THREAD) as pool:
            return list(pool.map(lambda t: np.asarray(cycles(t)), parts))

    return best_s(run, 2)
