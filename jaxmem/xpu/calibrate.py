"""Constants fitted to measurements: gradient least squares in units of what is believed beforehand.

A constant is its prior value times exp(z), and z costs (z / spread)^2: data that do not speak for a
constant leave it where it was. Errors are relative (of logarithms) and saturate, so that a few rows
that measure something else do not decide. Used for engines and for the curves of single operators.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

_SATURATES = 0.1  # relative error beyond which a row's pull stops growing
_N_STEP = 300


class Prior(NamedTuple):
    """What is believed of a constant.

    Attributes:
        value: before the fit.
        spread: of its logarithm; 0 leaves the constant alone.
        high: never above this.
    """

    value: float
    spread: float
    high: float = np.inf


def values(z: Any, priors: dict[str, Prior]) -> dict[str, Any]:
    """The constants at coordinates `z` [constant]."""
    found = {}
    for i, (name, prior) in enumerate(priors.items()):
        value = prior.value * jnp.exp(z[i] * prior.spread)
        found[name] = jnp.minimum(value, prior.high)
    return found


def fit(
    predict: Callable[[dict[str, Any], Any], Any],
    rows: Any,
    measured: Any,
    priors: dict[str, Prior],
    *,
    row_weight: float = 1.0,
    weight: Any = None,
) -> dict[str, float]:
    """The constants that explain measurements best.

    Args:
        predict: from constants and rows, [row] predictions, positive.
        rows: a pytree whose leaves have a leading axis [row].
        measured: [row] measurements, positive.
        priors: constants by name.
        row_weight: how much a row counts against the priors; below 1 where rows repeat one another.
        weight: [row] 1 for rows of the fit, 0 for others (of the same shapes, so that folds share
            one compiled program); all by default.

    Returns:
        Value by name.

    Gradient: this is one; L-BFGS on it.
    """
    measured = jnp.asarray(measured)
    weight = jnp.ones_like(measured) if weight is None else jnp.asarray(weight)
    rows = jax.tree.map(jnp.asarray, rows)
    z = _minimum(predict, tuple(priors.items()), rows, measured, weight, row_weight)
    return {name: float(value) for name, value in values(z, priors).items()}


@functools.partial(jax.jit, static_argnames=("predict", "priors"))
def _minimum(predict, priors, rows, measured, weight, row_weight):
    """[constant] coordinates of the least loss; one compile for all folds of one set of rows."""
    is_free = jnp.array([prior.spread > 0 for _, prior in priors])

    def loss(z):
        error = jnp.log(predict(values(z, dict(priors)), rows) / measured) / _SATURATES
        pull = 2.0 * (jnp.sqrt(1.0 + error**2) - 1.0)
        return row_weight * jnp.sum(weight * pull) + jnp.sum(z**2)

    solver = optax.lbfgs()

    def one(carry, _):
        z, state = carry
        value, slope = optax.value_and_grad_from_state(loss)(z, state=state)
        slope = jnp.where(is_free, jnp.asarray(slope), 0.0)
        move, state = solver.update(slope, state, z, value=value, grad=slope, value_fn=loss)
        return (optax.apply_updates(z, move), state), None

    z = jnp.zeros(len(priors))
    return jax.lax.scan(one, (z, solver.init(z)), length=_N_STEP)[0][0]


def left_out(
    predict: Callable[[dict[str, Any], Any], Any],
    rows: Any,
    measured: Any,
    priors: dict[str, Prior],
    group: np.ndarray,
    *,
    row_weight: float = 1.0,
    weight: Any = None,
) -> np.ndarray:
    """[row] relative errors of each group by constants fitted without it.

    Args: as `fit`, and
        group: [row] label of each row's group.
    """
    measured = np.asarray(measured)
    weight = np.ones_like(measured) if weight is None else np.asarray(weight)
    predicted = jax.jit(predict)
    error = np.zeros_like(measured)
    for label in np.unique(group):
        mine = group == label
        constants = fit(
            predict, rows, measured, priors, row_weight=row_weight, weight=weight * ~mine
        )
        error[mine] = (np.asarray(predicted(constants, rows)) / measured - 1)[mine]
    return error
