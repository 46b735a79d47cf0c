"""Requests run to their end: arrivals, conversations that wait for their answers, results.

A conversation's next turn arrives some time after the turn before has finished, so that load reacts
to the system (closed loop); a trace's requests arrive by the clock (open loop). Both go through
`scheduler.step`. Without a step-time model the clock counts steps; with one it counts ticks of
10 us, whole numbers, so that an hour keeps its precision in 32 bits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from jaxmem.core.errors import InputError
from jaxmem.serving import scheduler
from jaxmem.serving.blocks import Blocked
from jaxmem.serving.memory import NONE, Layout
from jaxmem.serving.scheduler import Bounds, Config, Requests, State, StepBatch

CHUNK = 256
"""Steps a call of the device."""
TICK_S = 1e-5
MAX_ARRIVAL = 64
"""Most requests that join the queue in one step; more wait for the next."""
_LATER = np.iinfo(np.int32).max

type StepTime = Callable[[StepBatch], Any]
"""Seconds that a batch takes; traced."""


class Asked(NamedTuple):
    """What is asked of a scheduler, on the host."""

    prompt_tokens: Int[np.ndarray, " request"]
    output_tokens: Int[np.ndarray, " request"]
    row: Int[np.ndarray, " request"]  # of its first block in `key`
    key: Int[np.ndarray, " block"]  # of all blocks of all requests, responses included
    n_key: int
    arrival: Int[np.ndarray, " request"]  # step or tick; NONE: after the request it follows
    follower: Int[np.ndarray, " request"]  # the conversation's next turn, or NONE
    think: int = 0  # steps or ticks between a turn's last token and the next turn


class Arrivals(NamedTuple):
    """When requests join the queue; constant during a run."""

    order: Int[Array, " request"]  # requests with an arrival of their own, by its time
    at: Int[Array, " request"]
    n_own: Int[Array, ""]
    follower: Int[Array, " request"]
    think: Int[Array, ""]


class Driver(NamedTuple):
    """Where the arrivals of a run stand."""

    clock: Any
    n_arrived: Any  # of those with an arrival of their own
    due: Int[Array, "request 2"]  # (request, time) of turns that wait for it
    n_due: Any
    n_taken: Any
    now: Int[Array, " arrival"]  # requests that arrived with the last step


class Record(NamedTuple):
    """One step of a run."""

    batch: StepBatch
    arrived: Int[Array, " arrival"]
    begin: Int[Array, ""]  # clock at the step's start
    end: Int[Array, ""]


class History(NamedTuple):
    """A run, step by step, and what became of its requests."""

    step: Record  # stacked
    tally: scheduler.Tally
    first_step: Int[np.ndarray, " request"]  # of its first token; -1: none
    last_step: Int[np.ndarray, " request"]  # of its last token; -1: none
    is_rejected: Bool[np.ndarray, " request"]  # no pool of this size could hold it
    n_step: int
    is_complete: bool  # every request ended


def asked(
    prompt_tokens: Any,
    output_tokens: Any,
    keys: list[np.ndarray],
    n_key: int,
    arrival: Any,
    *,
    block_tokens: int,
    follower: Any = None,
    think: int = 0,
) -> Asked:
    """Requests with the keys that are known; blocks beyond them get keys of their own.

    Args:
        prompt_tokens: [request] tokens.
        output_tokens: [request] tokens, at least 1.
        keys: [request] keys of the first full blocks of prompt and response together.
        n_key: keys so far.
        arrival: [request] step or tick; NONE for a turn that follows another.
        block_tokens: tokens of a block.
        follower: [request] the next turn of its conversation, or NONE.
        think: time between a turn and the next.
    """
    prompt = np.asarray(prompt_tokens, np.int64)
    response = np.maximum(np.asarray(output_tokens, np.int64), 1)
    n_block = -(-(prompt + response) // block_tokens)
    row = np.cumsum(n_block) - n_block
    key = np.full(int(n_block.sum()), NONE, np.int64)
    for first, known in zip(row.tolist(), keys, strict=True):
        key[first : first + len(known)] = known
    place = np.arange(len(key)) - np.repeat(row, n_block)
    is_new = (key == NONE) & (place < np.repeat((prompt + response) // block_tokens, n_block))
    key[is_new] = n_key + np.arange(is_new.sum())
    follows = np.full(len(prompt), NONE) if follower is None else np.asarray(follower)
    n_key = n_key + int(is_new.sum())
    return Asked(prompt, response, row, key, n_key, np.asarray(arrival), follows, think)


def of_trace(blocked: Blocked, arrival: Any) -> Asked:
    """A trace's requests, which arrive by the clock; what responses say is not known to it."""
    keys = [blocked.keys(request) for request in range(len(blocked.input_tokens))]
    lengths = (blocked.input_tokens, blocked.output_tokens)
    size = blocked.block_tokens
    return asked(*lengths, keys, blocked.n_key, arrival, block_tokens=size)


def bounds_of(todo: Asked, config: Config, *, max_event: int = 0) -> Bounds:
    """Static sizes for these requests, rounded up so that few programs are compiled."""
    layout = Layout(
        max_block=_bucket(int(config.n_block), 32),
        n_key=_bucket(todo.n_key, 512),
        n_held=_bucket(len(todo.key), 512),
        n_request=_bucket(len(todo.row), 32),
        max_event=max_event,
        is_lru=int(config.rule.policy) == 0,
    )
    return Bounds(layout, _bucket(int(config.max_running), 8))


def on_device(todo: Asked, bounds: Bounds) -> tuple[Requests, Arrivals]:
    """Requests and arrivals as a jitted run reads them, padded to the bounds."""
    n = bounds.layout.n_request
    prompt, response, row = (_padded(c, n, 1) for c in todo[:3])
    requests = Requests(prompt, response, row, _padded(todo.key, bounds.layout.n_held, NONE))
    own = np.flatnonzero(todo.arrival != NONE)
    own = own[np.argsort(todo.arrival[own], kind="stable")]
    arrivals = Arrivals(
        _padded(own, n, 0), _padded(todo.arrival[own], n, _LATER), jnp.int32(len(own)),
        _padded(todo.follower, n, NONE), jnp.int32(todo.think),
    )  # fmt: skip
    return requests, arrivals


@partial(jax.jit, static_argnames=("bounds",))
def start(bounds: Bounds, config: Config) -> tuple[State, Driver]:
    """A scheduler and a driver before their first step."""
    zero = jnp.int32(0)
    due = jnp.full((bounds.layout.n_request, 2), NONE, jnp.int32)
    now = jnp.full(MAX_ARRIVAL, NONE, jnp.int32)
    return scheduler.create(bounds, config), Driver(zero, zero, due, zero, zero, now)


def advance(
    bounds: Bounds,
    requests: Requests,
    arrivals: Arrivals,
    state: State,
    driver: Driver,
    config: Config,
    step_s: StepTime | None,
) -> tuple[State, Driver, StepBatch]:
    """One step with its arrivals; the clock after it, and the turns that now wait for theirs."""
    driver = _due(arrivals, driver)
    state, _, batch = scheduler.step(bounds, requests, state, driver.now, config)
    driver = driver._replace(clock=_after(arrivals, driver, batch, step_s))
    return state, _follow(arrivals, driver, batch.finished), batch


@partial(jax.jit, static_argnames=("bounds", "step_s", "n_step"), donate_argnames=("state",))
def run_steps(
    bounds: Bounds,
    requests: Requests,
    arrivals: Arrivals,
    state: State,
    driver: Driver,
    config: Config,
    *,
    step_s: StepTime | None = None,
    n_step: int = CHUNK,
) -> tuple[State, Driver, Record]:
    """`n_step` steps; those after the last request's end do nothing."""

    def once(carry, _):
        state, driver = carry
        begin = driver.clock
        state, driver, batch = advance(bounds, requests, arrivals, state, driver, config, step_s)
        return (state, driver), Record(batch, driver.now, begin, driver.clock)

    (state, driver), steps = lax.scan(once, (state, driver), None, length=n_step)
    return state, driver, steps


def run(
    todo: Asked,
    config: Config,
    *,
    step_s: StepTime | None = None,
    max_step: int = 1_000_000,
    progress: Callable[[int, int], None] | None = None,
) -> History:
    """Run until every request has ended.

    Args:
        todo: the requests.
        config: limits and rules.
        step_s: seconds of a batch; without it a step is the unit of time.
        max_step: stop after so many steps, incomplete.
        progress: takes (requests ended, requests) as the run goes on.

    Raises:
        InputError: no request.
    """
    n = len(todo.row)
    if not n:
        raise InputError("requests", 0, "at least one request")
    config = jax.tree.map(jnp.asarray, config)
    bounds = bounds_of(todo, config)
    requests, arrivals = on_device(todo, bounds)
    state, driver = start(bounds, config)
    found: list[Record] = []
    n_done = 0
    while n_done < n and len(found) * CHUNK < max_step:
        state, driver, steps = run_steps(
            bounds, requests, arrivals, state, driver, config, step_s=step_s
        )
        found.append(jax.device_get(steps))
        n_done = int(state.tally.n_finished) + int(state.tally.n_rejected)
        n_done += _unreachable(todo, bounds, state)
        if progress:
            progress(n_done, n)
    record = jax.tree.map(lambda *parts: np.concatenate(parts), *found)
    is_used = (record.batch.request[:, 0] >= 0) | (record.batch.n_waiting > 0)
    n_step = int(np.flatnonzero(is_used).max(initial=-1)) + 1
    words = np.asarray(state.words)[: bounds.running_base].reshape(-1, scheduler.REQUEST_WORDS)[:n]
    started, outcome = words[:, scheduler.STARTED], words[:, scheduler.OUTCOME]
    return History(
        jax.tree.map(lambda column: column[:n_step], record),
        jax.device_get(state.tally),
        started - 1,
        np.where(outcome > 0, outcome - 1, -1),
        outcome == scheduler.REJECTED,
        n_step,
        n_done >= n,
    )


def _unreachable(todo: Asked, bounds: Bounds, state: State) -> int:
    """Turns of conversations in which an earlier turn was rejected: they never arrive."""
    if int(state.tally.n_rejected) == 0:
        return 0
    words = np.asarray(state.words)[: bounds.running_base].reshape(-1, scheduler.REQUEST_WORDS)
    rejected = words[: len(todo.row), scheduler.OUTCOME] == scheduler.REJECTED
    n = 0
    for request in np.flatnonzero(rejected):
        while (request := todo.follower[request]) != NONE:
            n += 1
    return n


class Latency(NamedTuple):
    """What users of a run saw; NaN for requests that never ended."""

    ttft_s: Float[np.ndarray, " request"]  # from arrival to the first token
    tpot_s: Float[np.ndarray, " request"]  # between tokens after the first
    span_s: float

    def goodput(self, ttft_s: float = np.inf, tpot_s: float = np.inf) -> float:
        """Requests a second that meet both objectives."""
        one = np.nan_to_num(self.tpot_s, nan=0.0)  # a single token has no time between tokens
        is_good = (self.ttft_s <= ttft_s) & (one <= tpot_s)
        return float(is_good.sum()) / self.span_s if self.span_s else float("nan")


def latency(todo: Asked, history: History, tick_s: float = TICK_S) -> Latency:
    """Time to first token, and per token, of every request of a run.

    Args:
        todo: the requests.
        history: of a run with a step-time model.
        tick_s: seconds of a unit of the clock; 1.0 gives both in steps.
    """
    end = history.step.end.astype(np.int64)
    arrived = todo.arrival.astype(float)
    before = np.flatnonzero((todo.follower != NONE) & (history.last_step >= 0))
    arrived[todo.follower[before]] = end[history.last_step[before]] + todo.think
    has = (history.first_step >= 0) & (history.last_step >= 0)
    first, last = (end[np.maximum(s, 0)] for s in (history.first_step, history.last_step))
    more = todo.output_tokens - 1
    ttft = np.where(has, (first - arrived) * tick_s, np.nan)
    tpot = np.where(has & (more > 0), (last - first) * tick_s / np.maximum(more, 1), np.nan)
    return Latency(ttft, tpot, float(end[-1] - history.step.begin[0]) * tick_s)


def _due(arrivals: Arrivals, driver: Driver):
    """The driver with who arrives now: those with a time of their own, then followers."""
    lane = jnp.arange(MAX_ARRIVAL // 2)
    n = arrivals.order.shape[0]
    own = driver.n_arrived + lane
    place = jnp.minimum(own, n - 1)
    own_is = (own < arrivals.n_own) & (arrivals.at[place] <= driver.clock)
    late = driver.n_taken + lane
    due = driver.due[jnp.minimum(late, n - 1)]
    late_is = (late < driver.n_due) & (due[:, 1] <= driver.clock)
    mine = jnp.where(own_is, arrivals.order[place], NONE)
    theirs = jnp.where(late_is, due[:, 0], NONE)
    return driver._replace(
        n_arrived=driver.n_arrived + own_is.sum(dtype=jnp.int32),
        n_taken=driver.n_taken + late_is.sum(dtype=jnp.int32),
        now=jnp.concatenate([mine, theirs]),
    )


def _after(arrivals: Arrivals, driver: Driver, batch: StepBatch, step_s: StepTime | None):
    """The clock after a step; with nothing to do, time passes to the next arrival."""
    if step_s is None:
        return driver.clock + 1
    n = arrivals.order.shape[0]
    ticks = jnp.round(step_s(batch) / TICK_S).astype(jnp.int32)
    is_own = driver.n_arrived < arrivals.n_own
    own = jnp.where(is_own, arrivals.at[jnp.minimum(driver.n_arrived, n - 1)], _LATER)
    is_due = driver.n_taken < driver.n_due
    due = jnp.where(is_due, driver.due[jnp.minimum(driver.n_taken, n - 1), 1], _LATER)
    next_ = jnp.minimum(own, due)
    idle = jnp.where(next_ < _LATER, jnp.maximum(next_, driver.clock), driver.clock)
    return jnp.where(batch.request[0] >= 0, driver.clock + jnp.maximum(ticks, 1), idle)


def _follow(arrivals: Arrivals, driver: Driver, finished):
    """The next turns of the conversations whose turns have `finished`."""
    n = arrivals.order.shape[0]
    follower = jnp.where(finished >= 0, arrivals.follower[jnp.maximum(finished, 0)], NONE)
    is_one = follower >= 0
    place = driver.n_due + jnp.cumsum(is_one, dtype=jnp.int32) - 1
    at = jnp.full_like(follower, driver.clock + arrivals.think)
    to = jnp.where(is_one, place, n)
    due = driver.due.at[to].set(jnp.stack([follower, at], axis=1), mode="drop")
    return driver._replace(due=due, n_due=driver.n_due + is_one.sum(dtype=jnp.int32))


def _bucket(n: int, least: int) -> int:
    """The power of two from `n` on, and at least `least`: few sizes, few compiles."""
    return 1 << max(int(n) - 1, least - 1).bit_length()


def _padded(values: Any, n: int, fill: int):
    values = np.asarray(values)
    return jnp.asarray(np.pad(values, (0, n - len(values)), constant_values=fill), jnp.int32)
