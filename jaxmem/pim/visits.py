"""Visits to rows: the order in which a channel's work passes through them, and what that opens.

What a channel does is a sequence of visits to rows; a visit costs an activation where its row is
not the one that the visit before left open. Arrays [request, visit], padded.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmem.pim.placement import NONE


class Visits(NamedTuple):
    """Visits to rows in the order of time, by request: [request, visit]."""

    first: Any  # row that the visit begins in
    last: Any  # and ends in
    inner: Any  # rows changed on the way
    is_one: Any  # whether there is such a visit
    is_counted: Any  # whether its activations count
    before: Any  # row left by the request's visit before, NONE for its first


def opens(v: Visits, n_pass: Any = 1) -> Any:
    """Activations of the visits, each request's repeated `n_pass` times before the next's."""
    counted = v.is_one & v.is_counted
    is_begin = v.is_one & (v.before == NONE)
    change = ~is_begin & (v.first != v.before)
    inside = jnp.where(counted, v.inner + change, 0).sum(1)
    first = jnp.where(is_begin, v.first, 0).sum(1)
    counts = (is_begin & v.is_counted).any(1)
    last = last_row(v)
    # A request begins where the one before it ended, and its later passes where it ended itself.
    open_ = lax.cummax(jnp.where(last >= 0, jnp.arange(last.shape[0]), NONE))
    open_ = jnp.concatenate([jnp.full(1, NONE), open_[:-1]])
    left = jnp.where(open_ >= 0, last[open_], NONE)
    once, again = inside + (counts & (first != left)), inside + (counts & (first != last))
    return jnp.where(last >= 0, once + (n_pass - 1) * again, 0).sum()


def last_row(v: Visits) -> Any:
    """[request] row that the last visit of each leaves open, or NONE."""
    at = jnp.max(jnp.where(v.is_one, jnp.arange(v.is_one.shape[1]), NONE), axis=1)
    row = jnp.take_along_axis(v.last, index_of(at)[:, None], 1)[:, 0]
    return jnp.where(at >= 0, row, NONE)


def visit(first: Any, last: Any, inner: Any, is_one: Any, before: Any = None) -> Visits:
    """Visits with the rows left before them, which those who know them give."""
    shape = is_one.shape
    first, last, inner = (jnp.broadcast_to(x, shape) for x in (first, last, inner))
    if before is None:
        before = lax.cummax(jnp.where(is_one, jnp.arange(shape[1]), NONE), axis=1)
        row = jnp.take_along_axis(last, index_of(before), 1)
        before = shifted(jnp.where(before >= 0, row, NONE))
    return Visits(first, last, inner, is_one, jnp.ones(shape, bool), before)


def shifted(row: Any) -> Any:
    return jnp.concatenate([jnp.full_like(row[:, :1], NONE), row[:, :-1]], axis=1)


def one_after_another(*parts: Visits) -> Visits:
    """Visits of each request, one part after another."""
    done = parts[0]
    for part in parts[1:]:
        before = jnp.where(part.before == NONE, last_row(done)[:, None], part.before)
        both = (done, part._replace(before=before))
        done = jax.tree.map(lambda *x: jnp.concatenate(x, axis=1), *both)
    return done


def index_of(x: Any) -> Any:
    """Block indices that address something; where there is no block, the answer is masked."""
    return jnp.maximum(x, 0)
