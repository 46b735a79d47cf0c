"""The allocator against its plain twin, event by event, with its invariants."""

import copy
import dataclasses
import functools
import importlib.util
import random
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.pim import address, isa, layout, pool

pytestmark = pytest.mark.slow


def _load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HERE = Path(__file__).parent
twin = _load_module("reference_pim_pool", HERE.parent / "reference" / "pim_pool.py")
sizes_of = _load_module("pim_test_address", HERE / "test_address.py")
N_REQUEST, N_HELD, N_NEW = 4, 12, 12
# Sixteen blocks a set, of four granules; four slots a zone row.
SMALL = sizes_of.design(
    n_channel=4, n_row=14, row_bytes=512, n_layer=1, n_kv=1, head_dim=64, c=1, block_tokens=16
)
BOUNDS = pool.Bounds(
    max_block=40, max_place=64, max_granule=64, max_request=N_REQUEST, max_held=N_HELD,
    max_slot=12, max_home=4,
)  # fmt: skip
step = jax.jit(functools.partial(pool.step, BOUNDS))


def pair(n_row=26, own=4, c=1, **policy):
    """The same small memory twice: a design, and its plain twin."""
    fields = {"own_blocks": own, **policy}
    d = dataclasses.replace(
        SMALL,
        ch_per_head=np.float64(c),
        device=dataclasses.replace(SMALL.device, n_row=np.float64(n_row)),
        policy=jm.pim.Policy.create(**fields),
    )
    m = address.concrete(d)
    if fields.get("is_static"):
        own = -(-fields["max_context_tokens"] // (16 * int(m.set_blocks))) * int(m.set_blocks)
    else:
        own = min(own, int(m.set_blocks))
    plain = twin.Pool(
        n_row=n_row, r=int(m.value_rows), set_blocks=int(m.set_blocks),
        own=own, row_slots=int(m.row_slots), n_request=N_REQUEST,
        max_slot=BOUNDS.max_slot, max_held=N_HELD, carries=fields.get("carries", True),
        has_zone=fields.get("v_write", "commit_zone") == "commit_zone",
        caches=fields.get("has_prefix_cache", True),
        n_home=4 if fields.get("spread") == "request" else 1,
        channel=(lambda i: i % c) if fields.get("spread") == "block" else None,
        cap=fields.get("max_context_tokens", 10**9),
    )  # fmt: skip
    return d, plain


def arrays(events):
    def padded(rows, n):
        return np.array([[*row, *[-1] * (n - len(row))] for row in rows], np.int32)

    leave, share, ids, n_token = zip(*events, strict=True)
    return pool.Events(
        leave=np.array(leave, np.int32), share=padded(share, N_HELD), block=padded(ids, N_NEW),
        n_token=np.array(n_token, np.int32),
    )  # fmt: skip


def same(state, plain):
    found = pool.snapshot(BOUNDS, state)
    expected = plain.snapshot(BOUNDS.max_block)
    found["granule"] = [tuple(g[:3]) for g in found["granule"]][: len(expected["granule"])]
    found["request"] = [tuple(r) for r in found["request"]]
    found["slot"] = {i: r for i, r in enumerate(found["slot"]) if r >= 0}
    table = {b: i for i, b in enumerate(found.pop("table")) if b >= 0}
    assert table == {b: p for b, p in enumerate(expected["place"]) if p >= 0}
    for name in expected:
        assert found[name] == expected[name], name


def random_events(rng, plain, ends):
    """A step's events: some leave, some begin (with a cached prefix or without), some go on."""
    events, taken = [], set(plain.place)
    for r in plain.requests:
        leave = rng.choice([0, 0, 0, 0, 1, 2]) if r.held else 0
        share, n_token = [], 0
        if not r.held or leave:
            if rng.random() < 0.6:
                # A conversation that ended goes on, or one that branches off.
                past = rng.choice(ends) if ends and rng.random() < 0.7 else []
                share = past[: rng.randrange(len(past) + 1)]
                n_token = rng.choice([1, 5, 16, 20, 32, 50, 90])
        elif rng.random() < 0.8:
            n_token = rng.choice([1, 1, 1, 15, 16, 17, 40])
        free = [b for b in range(BOUNDS.max_block) if b not in taken]
        ids = rng.sample(free, min(len(free), 7))
        if rng.random() < 0.03 and ids:
            ids[0] = rng.choice([b for b in range(BOUNDS.max_block) if b not in ids])
        taken |= set(ids)
        if leave and r.n_token >= 16:
            ends.append(r.held[: r.n_token // 16])
        events.append((leave, share, ids, n_token))
    return events


POLICIES = [
    {}, {"own": 2}, {"carries": False}, {"v_write": "direct"}, {"own": 16}, {"n_row": 33},
    {"has_prefix_cache": False}, {"own": 8, "n_row": 35},
    {"is_static": True, "max_context_tokens": 100, "v_write": "direct", "own": 1},
    {"is_static": True, "max_context_tokens": 300, "n_row": 33, "v_write": "direct"},
    {"spread": "request", "v_write": "direct", "own": 8, "n_row": 8},
    {"spread": "request", "v_write": "direct", "own": 16, "n_row": 8, "has_prefix_cache": False},
    {"spread": "block", "v_write": "direct", "own": 1, "n_row": 8, "c": 4},
    {"spread": "token", "v_write": "direct", "shares_rowset": False, "n_row": 24, "own": 16},
]  # fmt: skip


def sequence(seed, n_step):
    rng = random.Random(seed)
    d, plain = pair(**POLICIES[seed % len(POLICIES)])
    state, ends, failed = pool.create(BOUNDS), [], 0
    for _ in range(n_step):
        events = random_events(rng, plain, ends)
        state, placement, ok = step(state, arrays(events), d)
        expected = plain.step(events)
        assert ok.tolist() == expected, (seed, events)
        plain.check()
        same(state, plain)
        failed += expected.count(False)
        for i, (event, is_ok) in enumerate(zip(events, expected, strict=True)):
            assert int(placement.n_write[i]) == (event[3] if is_ok else 0)
    return failed


def test_equals_the_plain_twin():
    failed = sum(sequence(seed, 5) for seed in range(300))
    assert failed > 20


@pytest.mark.deep
@pytest.mark.parametrize("first", range(1000, 11000, 1000))
def test_equals_the_plain_twin_at_length(first):
    for seed in range(first, first + 1000):
        sequence(seed, 30)


def moves(plain, n_block):
    """What may happen next to one of the requests, a half or a whole block at a time."""
    idle = (0, [], [], 0)
    free = [b for b in range(n_block) if b not in plain.place]
    cached = [b for b in plain.place if plain.filled[b]]
    for i, r in enumerate(plain.requests[:3]):
        if r.held:
            options = [(1, [], [], 0), (2, [], [], 0), (0, [], free, 8)]
        else:
            options = [(0, share, free, 8) for share in ([], *([b] for b in cached))]
            options.append((0, [], free, 16))
        for option in options:
            events = [idle] * N_REQUEST
            events[i] = option
            yield events


def breadth_first(depth, visit):
    """Distinct states of 4 blocks and 3 requests in two granules, of which the zone costs one."""
    d, plain = pair(n_row=16, own=16)
    seen, edge = {plain.key()}, [(plain, visit(None, None, plain, d))]
    for _ in range(depth):
        beyond = []
        for before, state in edge:
            for events in moves(before, 4):
                after = copy.deepcopy(before)
                after.step(events)
                after.check()
                if after.key() not in seen:
                    seen.add(after.key())
                    beyond.append((after, visit(state, events, after, d)))
        edge = beyond
    return len(seen)


def test_every_state_of_a_few_blocks():
    """Every distinct state that is at most 8 events away: invariants hold, and both agree."""

    def both(state, events, plain, d):
        if state is None:
            return pool.create(BOUNDS)
        state, _, _ = step(state, arrays(events), d)
        same(state, plain)
        return state

    assert breadth_first(8, both) == 480


def test_what_it_places_runs():
    """The stream of a step that the allocator placed has the load of that placement."""
    rng = random.Random(5)
    d, plain = pair()
    state, ends = pool.create(BOUNDS), []
    for _ in range(10):
        events = random_events(rng, plain, ends)
        state, placement, _ = step(state, arrays(events), d)
        plain.step(events)
    placement = jax.tree.map(np.asarray, placement)
    for name in layout.STEPS:
        expected = isa.load(layout.stream(d, placement, name), d.device)
        found = jax.jit(layout.load, static_argnames="step")(d, placement, name)
        equal = jax.tree.map(lambda a, b: np.array_equal(a[:4], b), found, expected)
        assert all(jax.tree.leaves(equal)), name
