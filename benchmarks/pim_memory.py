"""PATTON's memory: allocator events, loads and streams of a placement.

The allocator against its plain-Python twin, which ships with the tests alone; where the checkout
has none, the ratio is left out.
"""

import dataclasses
import importlib.util
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxmem as jm
from jaxmem.cli.bench import Row, best_s
from jaxmem.core.design import put
from jaxmem.pim import layout, pool

BATCH, N_TURN, N_DESIGN = 32, 1000, 64
N_RANDOM = 1_000_000 // BATCH
N_NEW, N_SHARE = 7, 8  # blocks that a step begins, and shares
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

    second = best_s(lambda: run(design, events)[1])
    yield Row("scheduler steps of a batch of 32", N_TURN / second, "design-steps/s")
    yield Row("  an event", second / n_event * 1e9, "ns", "", f"{n_event:,} events")
    lost, n_token = _lost(design, bounds)
    n = f"{N_RANDOM * BATCH:,} random events wrote {n_token:,} tokens"
    yield Row("  tokens lost or misplaced", lost, "tokens", "0", n)

    many = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], N_DESIGN, 0), design)
    own = np.resize([4.0, 8.0, 16.0, 32.0], N_DESIGN)
    many = put(many, "policy.own_blocks", own)
    short = jax.tree.map(lambda x: x[:100], events)
    mapped = jax.jit(lambda ds: jax.lax.map(lambda d: run(d, short)[1], ds))
    of_many = best_s(lambda: mapped(many), 1)
    yield Row("the same, 64 designs", N_DESIGN * 100 / of_many, "design-steps/s")

    one = {}
    for n_row in (2048, 131_072):
        sized = put(design, "device.n_row", np.float64(n_row))
        b = _bounds(sized)
        one[b.max_place] = _per_event(b, sized, traffic(200, b.max_block))
    for n_place, ns in one.items():
        yield Row(f"  an event among {n_place:,} blocks", ns, "ns", "within 3 x of each other")
    if TWIN.exists():
        ratio = N_DESIGN * 100 / of_many * _twin(events)
        yield Row("  64 designs against the plain twin", ratio, "x", "20 x")

    placement = layout.contiguous(design, [2048] * BATCH)
    load = jax.jit(partial(layout.load, max_local=4))
    second = best_s(lambda: load(design, placement).n_step)
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


def random_traffic(n_turn: int, n_block: int, seed: int = 0) -> tuple[pool.Events, np.ndarray]:
    """Requests of random prompts and lengths; a third share the prefix of the one before.

    Returns:
        (events, [turn, request] tokens that each holds after the turn).
    """
    rng = np.random.default_rng(seed)
    leave, n_token = (np.zeros((n_turn, BATCH), np.int32) for _ in range(2))
    share = np.full((n_turn, BATCH, N_SHARE), -1, np.int32)
    block = np.full((n_turn, BATCH, N_NEW), -1, np.int32)
    held = np.zeros((n_turn, BATCH), np.int32)
    tokens, until = np.zeros(BATCH, int), np.zeros(BATCH, int)
    tables: list[list[int]] = [[] for _ in range(BATCH)]
    following = 0
    for turn in range(n_turn):
        for r in np.flatnonzero(until <= turn):
            leave[turn, r] = rng.integers(1, 3) if tables[r] else 0
            is_cached = leave[turn, r] == pool.FINISHES and rng.random() < 0.5
            prefix = tables[r][: min(tokens[r] // 16, N_SHARE)] if is_cached else []
            share[turn, r, : len(prefix)] = prefix
            tables[r], tokens[r] = list(prefix), 16 * len(prefix)
            n_token[turn, r] = rng.integers(1, 16 * (N_NEW - 1))
            until[r] = turn + 1 + rng.integers(1, 250)
        n_token[turn] = np.maximum(n_token[turn], 1)
        tokens += n_token[turn]
        for r in np.flatnonzero(-(-tokens // 16) > [len(t) for t in tables]):
            n = int(-(-tokens[r] // 16)) - len(tables[r])
            block[turn, r, :n] = (following + np.arange(n)) % n_block
            tables[r] += block[turn, r, :n].tolist()
            following += n
        held[turn] = tokens
    return pool.Events(leave=leave, share=share, block=block, n_token=n_token), held


def _lost(design: Any, b: Any) -> tuple[int, int]:
    """Tokens that a request does not hold where it should, over random events; and how many."""
    events, held = random_traffic(N_RANDOM, b.max_block)

    @jax.jit
    def run(design: Any, given: Any) -> Any:
        def turn(state: Any, given: Any) -> Any:
            event, tokens = given
            state, placement, _ = pool.step(b, state, event, design)
            n_block = (placement.row_set >= 0).sum(1)
            is_kept = (placement.n_token == tokens) & (n_block == -(-tokens // 16))
            return state, jax.numpy.where(is_kept, 0, event.n_token).sum()

        return jax.lax.scan(turn, pool.create(b), given)[1].sum()

    return int(run(design, (events, held))), int(events.n_token.sum())


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

    return best_s(lambda: run(design, events)) / (len(events.n_token) * BATCH) * 1e9


def _twin(events: Any) -> float:
    """Seconds a step of the plain twin takes."""
    spec = importlib.util.spec_from_file_location("reference_pim_pool", TWIN)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    plain = module.Pool(
        n_row=512, r=2, set_blocks=64, own=16, row_slots=32, n_request=BATCH, max_held=32,
        undoes=False,
    )  # fmt: skip
    n = 500
    columns = [np.asarray(x)[:n].tolist() for x in vars(events).values()]
    start = time.perf_counter()
    for leave, _, block, n_token in zip(*columns, strict=True):
        plain.step([(a, [], b, c) for a, b, c in zip(leave, block, n_token, strict=True)])
    return (time.perf_counter() - start) / n
