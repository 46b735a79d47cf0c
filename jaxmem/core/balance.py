"""Loads on parallel units: how long the fullest of them takes.

Channels of a PIM device, megaplanes of flash and experts of an MoE layer are the same computation:
pieces land on units, and a step lasts as long as its fullest unit. Exact makespans serve actual
placements; expectations serve closed forms, where loads are independent Poisson counts
(Poissonisation of balls into bins: Raab and Steger 1998, as FlashAccel III-B uses it).
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtri
from jaxtyping import Array, Float, Shaped

from jaxmem.core import relax
from jaxmem.core.design import Leaf


def makespan(load: Shaped[Array, "unit *more"], unit_s: Leaf = 1.0) -> Float[Array, "*more"]:
    """Time of the fullest unit.

    Args:
        load: [unit] pieces on each unit.
        unit_s: seconds a piece.

    Gradient: exact; shared at ties.

    Example:
        >>> float(makespan(jnp.array([3.0, 1.0, 2.0]), 4.0))
        12.0
    """
    return jnp.max(load, axis=0) * unit_s


def excess(load: Shaped[Array, " unit"], target: Leaf) -> Float[Array, ""]:
    """Pieces above `target`, summed over units: what selective replication moves elsewhere.

    Example:
        >>> float(excess(jnp.array([3.0, 1.0, 2.0]), 2.0))
        1.0
    """
    return jnp.sum(jnp.maximum(load - target, 0))


def expected_max(mean: Leaf, n_unit: Leaf) -> Float[Array, "..."]:
    """Expected largest of `n_unit` independent Poisson loads, in closed form.

    Cornish-Fisher expansion at Blom's quantile z: lam + sqrt(lam) z + (z^2-1)/6 + (z-z^3)/(72
    sqrt(lam)), held between the bounds max(lam, 1 - exp(-n lam)) and n lam. Worst error against
    `expected_max_exact` 0.62 % for mean 5..2000 and 2..4608 units (research/flashaccel.md section
    2; tests/core re-measure it); below a mean of 1 up to 10 % of one piece. One unit gives `mean`.

    Args:
        mean: expected pieces a unit.
        n_unit: number of units; real values interpolate.

    Gradient: exact (of the closed form), in both arguments.

    Example:
        >>> round(float(expected_max(53.0, 4916.0)))
        82
    """
    n = relax.at_least(n_unit, 1.0)
    z = relax.once(ndtri((n - 0.375) / (n + 0.25)))
    root = relax.sqrt(mean)
    tail = relax.divide(z - z * z * z, 72 * root)
    spread = mean + root * z + (z * z - 1) / 6 + tail
    low = relax.maximum(mean, -jnp.expm1(-n * mean))
    held = relax.minimum(relax.maximum(spread, low), n * mean)
    return relax.where(n > 1, held, mean)


def expected_max_exact(mean: Leaf, n_unit: Leaf, *, n_term: int = 512) -> Float[Array, "..."]:
    """Expected largest of `n_unit` independent Poisson loads, as the sum over its tail.

    E max = sum over x of 1 - F(x)^n, with F by log-gamma terms summed from the far end (47 times
    faster than the incomplete gamma function, research/perf.md C). It is the test of
    `expected_max`.

    Args:
        mean: expected pieces a unit; `mean + 12 sqrt(mean)` must stay below `n_term`.
        n_unit: number of units.
        n_term: terms of the sum (static).
    """
    mean, n_unit = jnp.asarray(mean)[..., None], jnp.asarray(n_unit)[..., None]
    x = jnp.arange(n_term, dtype=jnp.result_type(float))
    pmf = jnp.exp(x * jnp.log(mean) - mean - gammaln(x + 1))
    above = jnp.cumsum(pmf[..., ::-1], axis=-1)[..., ::-1] - pmf  # P(X > x)
    return jnp.sum(-jnp.expm1(n_unit * jnp.log1p(-jnp.clip(above, 0, 1))), axis=-1)


def expected_excess(mean: Leaf) -> Float[Array, "..."]:
    """Expected pieces of one Poisson unit above its mean: half its mean absolute deviation.

    Exactly exp(-lam) lam^(floor(lam)+1) / floor(lam)!; about sqrt(lam / 2 pi), which is also the
    derivative's shape. Research/flashaccel.md section 2 (Replication).

    Gradient: exact, by pieces.

    Example:
        >>> round(float(expected_excess(197.0)) / 197.0, 4)
        0.0284
    """
    positive = jnp.where(jnp.greater(mean, 0), mean, 1.0)
    whole = jnp.floor(positive)
    log_term = (whole + 1) * jnp.log(positive) - positive - gammaln(whole + 1)
    return relax.once(jnp.where(jnp.greater(mean, 0), jnp.exp(log_term), 0.0))


def sampled_max(key, mean: Leaf, n_unit: Leaf, *, n_term: int = 512) -> Float[Array, ""]:
    """One draw of the largest of `n_unit` Poisson loads, by inverting its distribution at U^(1/n).

    Args:
        key: typed PRNG key, used once.
        mean: expected pieces a unit.
        n_unit: number of units.
        n_term: largest load considered (static).
    """
    x = jnp.arange(n_term, dtype=jnp.result_type(float))
    cdf = jnp.cumsum(jnp.exp(x * jnp.log(mean) - mean - gammaln(x + 1)))
    level = jax.random.uniform(key) ** (1 / jnp.asarray(n_unit))
    return jnp.sum(cdf < level).astype(cdf.dtype)
