"""PATTON's memory: allocator events, loads and streams of a placement.

The allocator against its plain-Python twin, which ships with the tests alone; where the checkout
has none, the ratio is left out.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxmem as jm
from jaxmem.cli.bench import Row
from jaxmem.core.design import put
from jaxmem.pim import layout, pool

BATCH, N_TURN, N_DESIGN = 32, 1000, 64
LENGTH = 200  # steps after which a request leaves
TWIN = Path(__file__).parents[1] / "tests" / "reference" / "pim_pool.py"


def rows() -> Iterator[Row]:
    """What `jaxmem bench pim_memory` measures."""
    design = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
    bounds = _bounds(design)
    events = traffic(N_TURN, bounds.max_block)
    n_event = int((np.asarray(events.n_token) > 0).sum())

    @jax.jit
    def run(design: Any, events: Any) -> Any:
        def turn(state: Any, event: Any) -> Any:
            state, _, ok = pool.step(bounds, state, event, design)
            return state, ok.sum()

        return jax.lax.scan(turn, pool.create(bounds), events)

    second = _best(lambda: run(design, events)[1])
    done = int(run(design, events)[1].sum())
    yield Row("scheduler steps of a batch of 32", N_TURN / second, "design-steps/s")
    yield Row("  an event", second / n_event * 1e9, "ns", "", f"{n_event:,} events")
    yield Row("  events that lost nothing", done / (N_TURN * BATCH), "x", "1 x")

    many = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], N_DESIGN, 0), design)
    own = np.resize([4.0, 8.0, 16.0, 32.0], N_DESIGN)
    many = put(many, "policy.own_blocks", own)
    short = jax.tree.map(lambda x: x[:100], events)
    mapped = jax.jit(lambda ds: jax.lax.map(lambda d: run(d, short)[1], ds))
    of_many = _best(lambda: mapped(many), 1)
    yield Row("the same, 64 designs", N_DESIGN * 100 / of_many, "design-steps/s")

    one = {}
    for n_row in (2048, 131_072):
        sized = put(design, "device.n_row", np.float64(n_row))
        b = _bounds(sized)
        one[b.max_place] = _per_event(b, sized, traffic(200, b.max_block))
    for n_place, ns in one.items():
        yield Row(f"  an event among {n_place:,} blocks", ns, "ns", "within 3 x of each other")
    if TWIN.exists():
        note = "the twin copies its state at every event, to take a failed one back"
        ratio = N_DESIGN * 100 / of_many * _twin(events)
        yield Row("  64 designs against the plain twin", ratio, "x", "20 x", note)

    placement = layout.contiguous(design, [2048] * BATCH)
    load = jax.jit(partial(layout.load, step=("k_write", "v_write", "commit", "qk", "sv")))
    second = _best(lambda: load(design, placement).n_step)
    yield Row("load of a decode step, batch 32, context 2,048", 1 / second, "placements/s")
    start = time.perf_counter()
    stream = layout.stream(design, placement)
    rate = len(stream.op) / (time.perf_counter() - start)
    yield Row("its stream, on the host", rate, "instructions/s")


def traffic(n_turn: int, n_block: int) -> pool.Events:
    """Requests of 100 tokens that decode for `LENGTH` steps and leave their blocks cached."""
    turn, request = np.arange(n_turn)[:, None], np.arange(BATCH)[None]
    age = (turn + request * LENGTH // BATCH) % LENGTH
    begins = (age == 0) | (turn == 0)
    n_token = np.where(begins, 100, 1)
    # Tokens of a request before the step, and the blocks that the step begins.
    since = np.where(turn < age, turn, age)
    before = np.where(begins, 0, 99 + since)
    n_new = -(-(before + n_token) // 16) - -(-before // 16)
    first = np.cumsum(n_new.ravel()).reshape(n_new.shape) - n_new
    index = np.arange(7)
    ids = np.where(index < n_new[..., None], (first[..., None] + index) % n_block, -1)
    return pool.Events(
        leave=(begins & (turn > 0)).astype(np.int32),
        share=np.full((n_turn, BATCH, 1), -1, np.int32),
        block=ids.astype(np.int32),
        n_token=n_token.astype(np.int32),
    )


def _bounds(design: Any) -> pool.Bounds:
    """Four ids a place, so that one is used again only once its block was evicted."""
    b = pool.bounds(design, max_request=BATCH, max_held=32)
    return dataclasses.replace(b, max_block=4 * b.max_place)


def _per_event(b: Any, design: Any, events: Any) -> float:
    @jax.jit
    def run(design: Any, events: Any) -> Any:
        def turn(state: Any, event: Any) -> Any:
            state, _, ok = pool.step(b, state, event, design)
            return state, ok.sum()

        return jax.lax.scan(turn, pool.create(b), events)[1]

    return _best(lambda: run(design, events)) / (len(events.n_token) * BATCH) * 1e9


def _twin(events: Any) -> float:
    """Seconds a step of the plain twin takes."""
    spec = importlib.util.spec_from_file_location("reference_pim_pool", TWIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plain = module.Pool(
        n_row=512, r=2, set_blocks=64, own=16, row_slots=32, n_request=BATCH, max_held=32
    )
    n = 20
    columns = [np.asarray(x)[:n].tolist() for x in vars(events).values()]
    start = time.perf_counter()
    for leave, _, block, n_token in zip(*columns, strict=True):
        plain.step([(a, [], b, c) for a, b, c in zip(leave, block, n_token, strict=True)])
    return (time.perf_counter() - start) / n


def _best(call: Callable[[], Any], n: int = 3) -> float:
    jax.block_until_ready(call())
    found = []
    for _ in range(n):
        start = time.perf_counter()
        jax.block_until_ready(call())
        found.append(time.perf_counter() - start)
    return min(found)
