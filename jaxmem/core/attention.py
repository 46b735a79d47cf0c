"""Attention, whole and in pieces: the numerical truth that every physical layout must meet.

Decode attention over any split of the keys is a set of partial results (running maximum, sum and
weighted values), merged by log-sum-exp (FlashAttention, Dao et al. 2022). A DRAM channel, a flash
hyperpage or a cache block each yield a piece; the merge is the same.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Partial(NamedTuple):
    """Attention over some of the keys: maximum m, sum l of exp(score - m), and values o."""

    m: Float[Array, "*piece query"]
    l: Float[Array, "*piece query"]  # noqa: E741  (FlashAttention's symbol)
    o: Float[Array, "*piece query value"]


def reference(
    q: Float[Array, "query dim"],
    k: Float[Array, "token dim"],
    v: Float[Array, "token value"],
    mask: Bool[Array, " token"] | None = None,
) -> Float[Array, "query value"]:
    """Softmax attention of one KV head, in one piece.

    Args:
        q: queries of the heads that share the KV head, already scaled by 1/sqrt(dim).
        k: keys.
        v: values.
        mask: tokens that take part; all where None.

    Gradient: exact.

    Example:
        >>> q = k = jnp.eye(2); v = jnp.array([[1.0], [3.0]])
        >>> [round(float(x), 3) for x in reference(q, k, v)[:, 0]]
        [1.538, 2.462]
    """
    mask = jnp.ones(k.shape[0], bool) if mask is None else mask
    return finish(partial(q, k, v, mask))


def partial(
    q: Float[Array, "query dim"],
    k: Float[Array, "token dim"],
    v: Float[Array, "token value"],
    mask: Bool[Array, " token"],
) -> Partial:
    """Attention over one piece of the keys; a piece with no token weighs nothing.

    What lies in masked lanes does not matter, NaN included: memory that was never written.
    """
    score = jnp.where(mask, q @ jnp.where(mask[:, None], k, 0).T, -jnp.inf)
    m = jnp.max(score, axis=-1, initial=-jnp.inf)
    weight = jnp.where(mask, jnp.exp(score - _finite(m)[:, None]), 0)
    return Partial(m, weight.sum(-1), weight @ jnp.where(mask[:, None], v, 0))


def merge(parts: Partial) -> Partial:
    """Merge pieces stacked along a leading axis, in any order, into one.

    Args:
        parts: `Partial` whose arrays have a leading [piece] axis.
    """
    m = jnp.max(parts.m, axis=0)
    weight = jnp.where(jnp.isneginf(parts.m), 0, jnp.exp(parts.m - _finite(m)[None]))
    return Partial(m, (weight * parts.l).sum(0), (weight[..., None] * parts.o).sum(0))


def finish(part: Partial) -> Float[Array, "query value"]:
    """Attention output of a merged piece; zero where no token took part."""
    return part.o / jnp.where(part.l > 0, part.l, 1)[:, None]


def _finite(m):
    return jnp.where(jnp.isneginf(m), 0, m)
