"""One traffic through many designs of a scheduler: totals of each, no history.

Lanes run one after the other on a core (`jax.lax.map`, which keeps every pool in place; `vmap`
would copy it), and on as many cores as there are threads. A design's totals do not depend on the
others, nor on the number of threads.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxmem.core.errors import InputError
from jaxmem.serving import scheduler, sessions
from jaxmem.serving.memory import Layout
from jaxmem.serving.scheduler import Bounds, Config, Requests
from jaxmem.serving.sessions import Arrivals, Asked, StepTime

MAX_STEP = 1_000_000


class Totals(NamedTuple):
    """What every design did with the traffic."""

    tally: scheduler.Tally  # [design] each
    n_evicted: Any  # [design]
    n_step: Any  # [design] that ran something
    clock: Any  # [design] steps, or ticks with a step-time model


def run_designs(
    todo: Asked,
    configs: Sequence[Config],
    *,
    step_s: StepTime | None = None,
    n_thread: int = 1,
) -> Totals:
    """Run a traffic to its end through every design.

    Args:
        todo: the requests.
        configs: the designs; all of one program, sized for the largest.
        step_s: seconds of a batch; without it a step is the unit of time.
        n_thread: cores to use.

    Raises:
        InputError: no design.
    """
    if not configs:
        raise InputError("configs", 0, "at least one design")
    bounds = joint_bounds(todo, configs)
    requests, arrivals = sessions.on_device(todo, bounds)
    n_thread = max(min(n_thread, len(configs)), 1)
    # Every thread's share has one size, so that one program serves all; the last is filled up.
    share = -(-len(configs) // n_thread)
    shares = [configs[i : i + share] for i in range(0, len(configs), share)]
    shares = [[*s, *[s[-1]] * (share - len(s))] for s in shares]

    def one(designs):
        lanes = jax.tree.map(lambda *v: np.stack(v), *designs)
        return jax.device_get(
            totals(bounds, requests, arrivals, lanes, len(todo.row), step_s=step_s)
        )

    with ThreadPoolExecutor(n_thread) as threads:
        found = list(threads.map(one, shares))
    n = len(configs)
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:n], *found)


def joint_bounds(todo: Asked, configs: Sequence[Config]) -> Bounds:
    """Static sizes that hold every one of several designs."""
    each = [sessions.bounds_of(todo, config) for config in configs]
    most: Layout = max((b.layout for b in each), key=lambda layout: layout.max_block)
    is_lru = all(b.layout.is_lru for b in each)
    layout = Layout(
        max_block=most.max_block, n_key=most.n_key, n_held=most.n_held,
        n_request=most.n_request, is_lru=is_lru,
    )  # fmt: skip
    return Bounds(layout, max(b.max_running for b in each))


@partial(jax.jit, static_argnames=("bounds", "step_s"))
def totals(
    bounds: Bounds,
    requests: Requests,
    arrivals: Arrivals,
    configs: Config,
    n_request: Any,
    *,
    step_s: StepTime | None = None,
) -> Totals:
    """`Totals` of stacked designs; ends when all `n_request` requests have, or at `MAX_STEP`."""

    def one(config):
        def goes_on(carry):
            state, driver, _ = carry
            tally = state.tally
            n_done = tally.n_finished + tally.n_rejected
            # A conversation whose turn was rejected has no further turns.
            is_idle = (tally.n_running == 0) & (tally.n_waiting == 0)
            is_over = (driver.n_arrived >= arrivals.n_own) & (driver.n_taken >= driver.n_due)
            return (n_done < n_request) & ~(is_idle & is_over) & (tally.step < MAX_STEP)

        def step(carry):
            state, driver, n_step = carry
            state, driver, batch = sessions.advance(
                bounds, requests, arrivals, state, driver, config, step_s
            )
            return state, driver, n_step + (batch.request[0] >= 0)

        state, driver = sessions.start(bounds, config)
        state, driver, n_step = lax.while_loop(goes_on, step, (state, driver, jnp.int32(0)))
        return Totals(state.tally, state.pool.count.n_evicted, n_step, driver.clock)

    return lax.map(one, configs)
