"""The largest batch that its constraints allow, exactly, with a derivative.

Serving asks for the largest whole batch under a latency objective and a capacity. The batch is
found by integer bisection, so it is exact; its derivative is that of the condition which binds,
g(batch, parameters) = bound, by the implicit function theorem. Nothing is differentiated through
the bisection, so a gradient costs about as much as one more evaluation.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxmem.core.design import Leaf

N_BISECTION = 24
"""Halvings: batches up to 2**24 per replica."""


class Constraint(NamedTuple):
    """`quantity(parameters, batch) <= bound(parameters)`, rising in the batch, with its code."""

    quantity: Callable[[Any, Any], Any]
    bound: Callable[[Any], Any]
    limit: int


def largest_batch(
    constraints: Sequence[Constraint], parameters: Any, max_batch: Leaf
) -> tuple[Float[Array, "..."], Int[Array, "..."]]:
    """The largest whole number in 0..max_batch that meets every constraint, and what stopped it.

    Args:
        constraints: each non-decreasing in the batch; the first one violated at the next batch is
            the one that is named.
        parameters: a pytree that the constraints read; gradients flow to its leaves.
        max_batch: the largest batch to consider, below 2**24.

    Returns:
        The batch, and the `limit` of the binding constraint, 0 where `max_batch` itself binds.

    Gradient: relaxed: d batch / d p = (d bound / d p - d quantity / d p) / (d quantity / d batch)
        of the binding constraint; that of `max_batch` where it binds.
    """
    return _largest(tuple(constraints), parameters, max_batch)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _largest(constraints, parameters, max_batch):
    top = jnp.floor(jnp.minimum(max_batch, 2.0**N_BISECTION - 1))
    bounds = [c.bound(parameters) for c in constraints]

    def halve(_, state):
        low, high, limit = state
        middle = jnp.ceil((low + high) / 2)
        broken = jnp.zeros(jnp.shape(top), jnp.int32)  # code of the first constraint violated
        for c, bound in reversed(list(zip(constraints, bounds, strict=True))):
            is_met = c.quantity(parameters, middle) <= bound
            broken = jnp.where(is_met, broken, c.limit)
        is_bad = broken > 0
        # Batches found too large only ever shrink, so the last one's code is that of the next.
        return (
            jnp.where(is_bad, low, middle),
            jnp.where(is_bad, middle - 1, high),
            jnp.where(is_bad, broken, limit),
        )

    start = (jnp.zeros_like(top), top, jnp.zeros(jnp.shape(top), jnp.int32))
    found, _, limit = jax.lax.fori_loop(0, N_BISECTION, halve, start)
    return found, jnp.where(found < top, limit, 0)


@_largest.defjvp
def _(constraints, primals, tangents):
    parameters, _ = primals
    moved, max_moved = tangents
    found, limit = _largest(constraints, *primals)
    tangent = jnp.where(limit == 0, max_moved, 0.0)
    one = jnp.ones_like(found)
    for c in constraints:

        def gap(p, c=c):
            return c.bound(p) - c.quantity(p, found)

        _, gap_moved = jax.jvp(gap, (parameters,), (moved,))
        _, slope = jax.jvp(lambda b, c=c: c.quantity(parameters, b), (found,), (one,))
        rises = slope > 0
        on_this = jnp.where(rises, gap_moved / jnp.where(rises, slope, 1.0), 0.0)
        tangent = jnp.where(limit == c.limit, on_this, tangent)
    return (found, limit), (tangent, np.zeros(jnp.shape(limit), jax.dtypes.float0))
