"""Serving runs on PIM: scheduler steps a second, by policy, and over many designs."""

from collections.abc import Iterator

import jax
import numpy as np

import jaxmem as jm
from jaxmem.cli.bench import Row, best_s
from jaxmem.core.design import put
from jaxmem.pim import simulate
from jaxmem.serving import draw, live

N_STEP, N_DESIGN = 400, 16
POLICIES = ("patton", "attacc", "pimphony", "blockpim", "neupims")
CASES = (("llama3-8b", 32), ("opt-6.7b", 8))


def rows() -> Iterator[Row]:
    """What `jaxmem bench pim_simulate` measures: contexts up to 2,048 tokens."""
    talks = live.talks(draw("sharegpt", n_conversation=400, conversations_per_s=1.0))
    for model, batch in CASES:
        for policy in POLICIES:
            d = jm.pim.Design.create(device="aim-gddr6-16gib", llm=model, policy=policy)
            b = simulate.bounds(d, n_running=batch, n_step=N_STEP)
            run = jax.jit(simulate.simulate, static_argnames="bounds")
            rate = N_STEP / best_s(lambda run=run, d=d, b=b: run(d, talks, bounds=b)[0].latency_s)
            yield Row(f"{policy}, {model}, batch {batch}", rate, "steps/s")
    base = jm.pim.Design.create(device="aim-gddr6-16gib", llm="opt-6.7b")
    many = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], N_DESIGN, 0), base)
    many = put(many, "policy.own_blocks", np.resize([4.0, 8.0, 16.0, 32.0], N_DESIGN))
    b = simulate.bounds(put(base, "policy.own_blocks", np.float64(4)), n_running=8, n_step=N_STEP)
    mapped = jax.jit(
        lambda ds: jax.lax.map(lambda d: simulate.simulate(d, talks, b)[0].latency_s, ds)
    )
    rate = N_DESIGN * N_STEP / best_s(lambda: mapped(many))
    note = f"{N_DESIGN} designs of {N_STEP} steps, opt-6.7b; more take as long each"
    yield Row("many designs", rate, "design-steps/s", "", note)
