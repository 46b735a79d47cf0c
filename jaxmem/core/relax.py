"""Exact forward, useful backward: rounding, selection and division for differentiable models.

Every function returns exactly what its NumPy namesake returns, bit for bit. The derivative of a
rounding is that of the line it steps along (straight-through), so that it has the sign of the
secant over a lattice step; the derivative of a selection is that of the selected branch, the mean
of both at a tie. No gradient is ever NaN or infinite, zeros and ties included. (XLA
flushes subnormal numbers to zero.)
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from jaxmem.core.design import Leaf


def _straight_through(exact):
    @jax.custom_jvp
    def rounding(x):
        return exact(_real(x))

    @rounding.defjvp
    def _(primals, tangents):
        return rounding(*primals), tangents[0]

    return rounding


def _real(x):
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


_ceil = _straight_through(jnp.ceil)
_floor = _straight_through(jnp.floor)
_round = _straight_through(jnp.round)


def ceil(x: Leaf):
    """Smallest whole number >= `x`. Gradient: 1 (relaxed).

    Example:
        >>> import jax
        >>> float(ceil(1.2)), float(jax.grad(ceil)(1.2))
        (2.0, 1.0)
    """
    return _ceil(_real(x))


def floor(x: Leaf):
    """Largest whole number <= `x`. Gradient: 1 (relaxed)."""
    return _floor(_real(x))


def round(x: Leaf):
    """Nearest whole number, halves to even. Gradient: 1 (relaxed)."""
    return _round(_real(x))


def snap(x: Leaf, lattice: tuple[float, ...]):
    """The value of `lattice` nearest to `x`, the lower at a tie. Gradient: 1 (relaxed).

    Example:
        >>> float(snap(5.1, (1, 2, 4, 8)))
        4.0
    """
    values = jnp.asarray(sorted(lattice), dtype=_real(x).dtype)
    nearest = _straight_through(lambda y: values[jnp.argmin(jnp.abs(values - y[..., None]), -1)])
    return nearest(_real(x))


def maximum(x: Leaf, y: Leaf):
    """The larger of two. Gradient: exact; half to each at a tie."""
    return jnp.maximum(x, y)


def minimum(x: Leaf, y: Leaf):
    """The smaller of two. Gradient: exact; half to each at a tie."""
    return jnp.minimum(x, y)


def at_least(x: Leaf, low: Leaf):
    """`x`, but never below `low`: a guard against values that have no meaning.

    Gradient: that of `x` down to and including the guard, where `maximum` would halve it.

    Example:
        >>> float(at_least(0.2, 1.0)), float(jax.grad(at_least)(1.0, 1.0))
        (1.0, 1.0)
    """
    return jnp.where(jnp.greater_equal(x, low), x, low)


def where(predicate, x: Leaf, y: Leaf):
    """`x` where `predicate`, else `y`. Gradient: of the selected branch; the other gets none."""
    return jnp.where(predicate, x, y)


def divide(x: Leaf, y: Leaf, default: Leaf = 0.0):
    """`x / y`, and `default` where `y` is zero. Gradient: exact, zero where `y` is zero.

    Example:
        >>> float(divide(1.0, 0.0)), float(jax.grad(divide, 1)(1.0, 0.0))
        (0.0, 0.0)
    """
    is_zero = jnp.equal(y, 0)
    return jnp.where(is_zero, default, x / jnp.where(is_zero, 1, y))


def once(values):
    """`values`, computed once: XLA would otherwise compute them again in each of their uses.

    Gradient: that of `values`. Concrete values pass as they are.
    """
    is_traced = any(isinstance(x, Tracer) for x in jax.tree.leaves(values))
    return _barrier(values) if is_traced else values


@jax.custom_jvp
def _barrier(values):
    return jax.lax.optimization_barrier(values)


@_barrier.defjvp
def _(primals, tangents):
    return _barrier(*primals), tangents[0]


def total(terms: Iterable[Any]) -> Any:
    """The sum of pytrees, each computed once and by itself; a term of zeros changes no bit.

    Gradient: exact.
    """
    found = [once(term) for term in terms]
    return jax.tree.map(lambda *x: sum(x[1:], x[0]), *found)


def sqrt(x: Leaf):
    """Square root, 0 below 0. Gradient: exact above 0, zero elsewhere."""
    is_positive = jnp.greater(x, 0)
    return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, x, 1)), 0)
