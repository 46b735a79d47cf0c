"""The scheduler against its plain twin, step by step; every known mistake is noticed."""

import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from jaxmem.core.errors import InputError
from jaxmem.serving import designs, pool, scheduler, sessions
from jaxmem.serving.blocks import Chain
from jaxmem.serving.memory import NONE
from jaxmem.serving.scheduler import Config

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
from vllm_scheduler import Scheduler

pytestmark = pytest.mark.slow

SIZE = 4
N_BLOCK = 24
N_REQUEST = 32
HOW = ("decode", "new", "resumed")
TRAPS = [
    "free_head_first", "append_unkeyed", "dedupe", "no_last_token_cap", "lookup_refreshes",
    "newest_copy", "unused_hits_uncounted", "preempted_to_back", "cache_last_token", "capacity_n",
]  # fmt: skip
OPTIONS = [
    {}, {"max_tokens": 7}, {"long_prefill_tokens": 5}, {"watermark": 0.2}, {"reserves_full": 0},
    {"is_caching": 0}, {"fronts_unkeyed": 0}, {"max_running": 2}, {"n_block": 12},
]  # fmt: skip


def traffic(seed):
    """Requests over few shared prompts, some exact repeats, some turns of one conversation."""
    rng = np.random.default_rng(seed)
    chain, roots = Chain(SIZE), [[("r", r, i) for i in range(24)] for r in range(3)]
    prompts, outputs, keys, arrival, follower, said = [], [], [], [], [], None
    for request in range(N_REQUEST):
        goes_on = said is not None and rng.random() < 0.3
        if goes_on:
            follower[-1] = request
        else:
            said = list(roots[rng.integers(3)][: SIZE * rng.integers(1, 7)])
        if rng.random() < 0.6:
            said = said + [("u", request, i) for i in range(rng.integers(1, 9))]
        prompts.append(len(said))
        outputs.append(int(rng.integers(1, 14)))
        said = said + [("o", request, i) for i in range(outputs[-1])]
        keys.append(np.asarray(chain.keys(said), int))
        arrival.append(NONE if goes_on else int(rng.integers(0, 40)))
        follower.append(NONE)
    return sessions.asked(
        prompts, outputs, keys, len(chain), np.asarray(arrival), block_tokens=SIZE,
        follower=np.asarray(follower), think=3,
    )  # fmt: skip


def config_of(**options):
    limits = {"n_block": N_BLOCK, "block_tokens": SIZE, "max_running": 6, "max_tokens": 24}
    return Config.create(**{**limits, **options})


def twin_run(todo, trap="", **options):
    """[step] what the twin does, in numbers; None where a mistake made it crash or hang."""
    names = {"long_prefill_tokens": "long_prefill"}
    given = {"n_block": N_BLOCK, "max_running": 6, "max_tokens": 24, **options}
    given = {names.get(k, k): v for k, v in given.items()}
    twin = Scheduler(given.pop("n_block"), SIZE, trap=trap, **given)
    requests = [
        {"id": i, "prompt": int(p), "output": int(o), "keys": todo.key[r:].tolist()}
        for i, (p, o, r) in enumerate(zip(*todo[:3], strict=True))
    ]
    own = [i for i in np.argsort(todo.arrival, kind="stable") if todo.arrival[i] >= 0]
    due, steps, n_left = [], [], len(own)
    for step in range(2000):
        now = [i for i in own if todo.arrival[i] == step] + [i for t, i in due if t == step]
        for i in now:
            twin.arrive(requests[i])
            n_left -= requests[i].get("rejected", False)
        try:
            rows, preempted, finished, counts = twin.step()
        except (IndexError, AssertionError):
            return None
        for request in finished:
            n_left -= 1
            if (after := todo.follower[request["id"]]) >= 0:
                due.append((step + 1 + todo.think, after))
                n_left += 1
        batch = [(r["id"], n, c, HOW.index(how)) for r, n, c, how in rows]
        names = [[r["id"] for r in group] for group in (preempted, finished)]
        steps.append((now, batch, *names, counts))
        if n_left == 0:
            return steps
    return None


def jax_run(todo, **options):
    history = sessions.run(todo, config_of(**options))
    assert history.is_complete
    b, steps = history.step.batch, []
    for s in range(history.n_step):
        width = int((b.request[s] >= 0).sum())
        columns = (b.request, b.n_token, b.context_tokens, b.admission)
        batch = [tuple(int(c[s][i]) for c in columns) for i in range(width)]
        lists = [[int(r) for r in c[s] if r >= 0] for c in (b.preempted, b.finished)]
        now = [int(r) for r in history.step.arrived[s] if r >= 0]
        counts = (b.n_running, b.n_waiting, b.n_free, b.n_free_after, b.n_evicted)
        steps.append((now, batch, *lists, [int(c[s]) for c in counts]))
    return steps, history


def trimmed(steps):
    while steps and not steps[-1][1]:
        steps = steps[:-1]
    return steps


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_step_is_the_twins(options):
    for seed in range(3):
        todo = traffic(seed)
        steps, _ = jax_run(todo, **options)
        assert steps == trimmed(twin_run(todo, **options))


@pytest.fixture(scope="module")
def runs():
    """The same traffic through the scheduler, for every seed."""
    return [(todo, jax_run(todo)[0]) for todo in map(traffic, range(12))]


@pytest.mark.parametrize("trap", TRAPS)
def test_each_trap_is_noticed(runs, trap):
    """The twin with a known mistake in it no longer does what the scheduler does."""
    assert any(trimmed(twin_run(todo, trap) or []) != steps for todo, steps in runs)


def test_no_token_is_lost():
    """prompt = hit + computed at first; injected = completed + queued + running, at every step."""
    todo = traffic(5)
    _, history = jax_run(todo)
    tally, batch = history.tally, history.step.batch
    assert int(tally.n_finished) + int(tally.n_rejected) == N_REQUEST
    is_in = ~history.is_rejected
    needed = (todo.prompt_tokens + todo.output_tokens - 1)[is_in].sum()
    hits = int(tally.hit_tokens) + int(tally.resumed_hit_tokens)
    again = int(tally.computed_tokens) + hits - needed
    assert again >= 0
    if int(tally.n_preempted) == 0:
        assert again == 0
    injected = (history.step.arrived >= 0).sum(axis=1).cumsum() - int(tally.n_rejected)
    completed = (batch.finished >= 0).sum(axis=1).cumsum()
    before = np.append(0, completed[:-1])
    np.testing.assert_array_equal(injected, before + batch.n_running + batch.n_waiting)


def test_one_block_too_small_ends_with_a_reason():
    todo = sessions.asked([8], [9], [np.arange(2)], 2, [0], block_tokens=SIZE)
    history = sessions.run(todo, config_of(n_block=5))  # 16 tokens are 4 blocks: they fit
    assert history.last_step[0] == 8
    history = sessions.run(todo, config_of(n_block=4))
    assert history.is_rejected.tolist() == [True]
    assert history.is_complete
    assert history.first_step[0] == -1


def test_events_say_what_happened_to_every_block():
    """Replaying the log of events gives the pool's references and free blocks after each step."""
    todo, config = traffic(3), config_of()
    config = jax.tree.map(jax.numpy.asarray, config)
    bounds = sessions.bounds_of(todo, config, max_event=256)
    requests, _ = sessions.on_device(todo, bounds)
    state, _ = sessions.start(bounds, config)
    step = jax.jit(scheduler.step, static_argnums=0)
    ref, keyed = {}, set()
    order = np.argsort(np.where(todo.arrival < 0, 10**6, todo.arrival), kind="stable")
    for number in range(30):
        now = [i for i in order if todo.arrival[i] == number]
        arrived = np.pad(now, (0, 8 - len(now)), constant_values=NONE).astype(np.int32)
        state, events, batch = step(bounds, requests, state, arrived, config)
        assert int(events.n_event) <= 256
        for request, index, block, bits in np.asarray(events.row)[: int(events.n_event)].tolist():
            assert request >= 0
            assert index >= 0
            if bits & pool.ALLOCATED:
                assert ref.get(block, 0) == 0
                assert (block in keyed) == bool(bits & pool.EVICTED)
                keyed.discard(block)
                ref[block] = 1
            if bits & pool.REUSED:
                assert block in keyed
                ref[block] = ref.get(block, 0) + 1
            if bits & pool.PUBLISHED:
                keyed.add(block)
            if bits & pool.DROPPED:
                ref[block] -= 1
                assert (ref[block] == 0) == bool(bits & pool.FREED)
        assert int(batch.n_free_after) == N_BLOCK - 1 - sum(r > 0 for r in ref.values())


def test_designs_side_by_side_are_each_alone():
    """On one thread or two, the totals of every design are those of its own run."""
    todo = traffic(1)
    options = [{"n_block": 12}, {"n_block": 18}, {}, {"max_tokens": 9}, {"fronts_unkeyed": 0}]
    configs = [config_of(**one) for one in options]
    alone = [sessions.run(todo, config).tally for config in configs]
    for n_thread in (1, 2):
        found = designs.run_designs(todo, configs, n_thread=n_thread)
        for i, tally in enumerate(alone):
            for name in ("hit_tokens", "n_preempted", "n_finished", "computed_tokens"):
                assert getattr(found.tally, name)[i] == getattr(tally, name)
    with pytest.raises(InputError, match="configs"):
        designs.run_designs(todo, [])


def test_bad_input():
    with pytest.raises(InputError, match="policy"):
        config_of(policy="lruu")
    with pytest.raises(InputError, match="n_block"):
        config_of(n_block=1)
    with pytest.raises(InputError, match="requests"):
        sessions.run(sessions.asked([], [], [], 0, [], block_tokens=4), config_of())
