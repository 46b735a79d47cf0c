"""What every evaluation returns, and why a point may be infeasible."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxmem.core.design import Leaf, code, leaf, part, record

LIMITS = {
    "none": 0,
    "slo": 1,
    "capacity": 2,
    "hbm_buffer": 3,
    "context_cap": 4,
    "layout": 5,
    "invalid": 6,
}
LIMIT_TEXT = {
    "none": "nothing stops the batch that was asked for",
    "slo": "more requests would break the latency objective",
    "capacity": "more requests do not fit in memory",
    "hbm_buffer": "more requests do not fit in the HBM that buffers writes and replicas",
    "context_cap": "the context is longer than the policy takes",
    "layout": "the model cannot be laid out on the device in this way",
    "invalid": "the fields contradict each other or lie outside what is modelled",
}


@record
class Metrics:
    """What a design point achieves; NaN means unknown, or that the point is infeasible."""

    latency_s: Leaf = leaf("time of one decode step: one token for every request", unit="s")
    tokens_per_s: Leaf = leaf("decoded tokens a second, whole system", unit="tokens/s")
    tokens_per_s_per_gpu: Leaf = leaf("decoded tokens a second a GPU", unit="tokens/s")
    energy_j: Leaf = leaf("energy of one decode step, whole system", unit="J")
    tokens_per_j: Leaf = leaf("decoded tokens a joule", unit="tokens/J")
    batch: Leaf = leaf("requests decoded together", unit="requests")
    capacity_tokens: Leaf = leaf("KV tokens that fit", unit="tokens")
    feasible: Leaf = leaf("whether the point can run")
    limit: Leaf = code("what binds the batch, or makes the point infeasible", LIMITS)
    parts: dict[str, Any] = part("seconds of a decode step by cause")
    energy_parts: dict[str, Any] = part("joules of a decode step by cause")


def mask[M](metrics: M, feasible: Any) -> M:
    """`metrics` with NaN for every real number where the point is not `feasible`.

    Gradient: zero where infeasible, never NaN.
    """

    def masked(x):
        is_real = jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)
        return jnp.where(feasible, x, jnp.nan) if is_real else x

    return jax.tree.map(masked, metrics)
