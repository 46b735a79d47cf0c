"""The largest batch that its constraints allow, exactly, with a derivative.

Serving asks for the largest whole batch under a latency objective and a capacity. The batch is
found by integer bisection, so it is exact; its derivative is that of the condition which binds,
g(batch, parameters) = bound, by the implicit function theorem. Nothing is differentiated through
the bisection, so a gradient costs about as much as one more evaluation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
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
    fixed = jax.tree.map(jax.lax.stop_gradient, parameters)
    top = jax.lax.stop_gradient(jnp.floor(jnp.minimum(max_batch, 2.0**N_BISECTION - 1)))
    bounds = [c.bound(fixed) for c in constraints]

    def violated(batch):
        return [
            ~(c.quantity(fixed, batch) <= bound)
            for c, bound in zip(constraints, bounds, strict=True)
        ]

    def halve(_, interval):
        low, high = interval
        middle = jnp.ceil((low + high) / 2)
        is_bad = jnp.stack(violated(middle)).any(0)
        return jnp.where(is_bad, low, middle), jnp.where(is_bad, middle - 1, high)

    start = (jnp.zeros_like(top), top)
    found, _ = jax.lax.fori_loop(0, N_BISECTION, halve, start)

    batch = found + (max_batch - jax.lax.stop_gradient(max_batch))
    limit = jnp.zeros(jnp.shape(found), jnp.int32)
    is_open = found < top
    for constraint, is_bad in zip(constraints, violated(found + 1), strict=True):
        binds = is_open & is_bad & (limit == 0)
        batch = jnp.where(binds, _on(constraint, parameters, fixed, found), batch)
        limit = jnp.where(binds, constraint.limit, limit)
    return batch, limit


def _on(constraint: Constraint, parameters, fixed, found):
    """`found`, moving with the parameters as the solution of quantity = bound does."""
    one = jnp.ones_like(found)
    _, slope = jax.jvp(lambda b: constraint.quantity(fixed, b), (found,), (one,))
    rises = jax.lax.stop_gradient(slope) > 0
    safe = jnp.where(rises, jax.lax.stop_gradient(slope), 1.0)
    gap = constraint.bound(parameters) - constraint.quantity(parameters, found)
    # An infinite bound never binds, but its gap must not make inf - inf.
    moved = jnp.where(jnp.isfinite(gap) & rises, gap / safe, 0.0)
    return found + (moved - jax.lax.stop_gradient(moved))
