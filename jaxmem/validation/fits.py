"""Fits to measured kernels and served models, each with its errors on what it was not fitted to."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmem.devices.curve import Curve
from jaxmem.validation.kernels import Kernels, share_of
from jaxmem.validation.served import Served, arrays
from jaxmem.xpu import engines
from jaxmem.xpu.calibrate import Prior, fit, left_out
from jaxmem.xpu.families import FAMILIES

_ROW_WEIGHT = 2.0 / 7.0
"""How much a served row counts against the priors: rows repeat one another's conditions."""
_N_FOLD = 5
_SHAPES = {
    "gemm": ("n", "k"), "attention": ("n_q", "n_kv", "head_dim"), "latent": ("n_q",),
    "experts": ("hidden", "top_k", "n_expert"),
}  # fmt: skip


class Fitted(NamedTuple):
    """Constants, and relative errors with their signs.

    Attributes:
        constants: value by name.
        error: [row] of all rows.
        is_fit: [row] whether it was fitted to.
        group_error: [row] with the row's group left out of the fit.
    """

    constants: dict[str, float]
    error: np.ndarray
    is_fit: np.ndarray
    group_error: np.ndarray


@functools.cache
def predictor(family: str, device: Any) -> Any:
    """Seconds of a family's kernels by constants and counts; the same function for the same two."""
    return lambda constants, counts: FAMILIES[family].seconds(constants, device, **counts)


def fit_kernels(found: Kernels, device: Any, *, with_groups: bool = True) -> Fitted:
    """The efficiency curve of one family of kernels.

    Args:
        found: the measurements.
        device: the GPU, or for collectives the link, with its own rates.
        with_groups: whether groups (weight shapes, head counts, models, GPUs) are left out in turn.
    """
    priors = FAMILIES[found.family].priors
    predict = predictor(found.family, device)
    with jax.enable_x64(True):
        weight = found.is_fit * 1.0
        constants = fit(predict, found.counts, found.seconds, priors, weight=weight)
        error = np.asarray(jax.jit(predict)(constants, found.counts)) / found.seconds - 1
        group_error = np.full_like(error, np.nan)
        if with_groups:
            group_error = left_out(
                predict, found.counts, found.seconds, priors, _groups(found), weight=weight
            )
    return Fitted(constants, error, found.is_fit, group_error)


def _groups(found: Kernels) -> np.ndarray:
    """[row] which of a few groups of like shapes a row belongs to."""
    names = next((n for key, n in _SHAPES.items() if found.family.startswith(key)), ("n_gpu",))
    if names == ("n_gpu",) and len(np.unique(found.counts["n_gpu"])) == 1:
        names = ("hidden",)
    shape = np.stack([found.counts[name] for name in names], 1)
    return np.array([share_of(row.tobytes()) % _N_FOLD for row in shape])


def curve_error(curve: Curve, found: Kernels, device: Any) -> np.ndarray:
    """[row] relative errors of a given curve."""
    with jax.enable_x64(True):
        seconds = jax.jit(predictor(found.family, device))(curve, found.counts)
        return np.asarray(seconds) / found.seconds - 1


def fit_engines(found: list[Served], *, with_groups: bool = True) -> tuple[Fitted, Fitted]:
    """The constants of all engines: of output tokens, and then of first tokens.

    Args:
        found: clean measurements.
        with_groups: whether models are left out in turn (of output tokens).
    """
    is_fit = np.array([x.is_fit for x in found])
    model = np.array([x.model for x in found])
    tpot, ttft = (np.array([getattr(x, n) for x in found]) for n in ("tpot_s", "ttft_s"))
    mixed = np.array([not x.is_apart for x in found])
    priors = engines.priors(engines.OWN, engines.SHARED)
    with jax.enable_x64(True):
        rows = arrays(found)
        settings = {"row_weight": _ROW_WEIGHT, "weight": is_fit * 1.0}
        constants = fit(engines.tpot_s, rows, tpot, priors, **settings)
        error = np.asarray(jax.jit(engines.tpot_s)(constants, rows)) / tpot - 1
        group_error = np.full_like(error, np.nan)
        if with_groups:
            group_error = left_out(engines.tpot_s, rows, tpot, priors, model, **settings)
        later = {name: Prior(value, 0.0) for name, value in constants.items()}
        later |= engines.priors(engines.FIRST)
        settings["weight"] = is_fit * mixed * 1.0
        both = fit(engines.ttft_s, rows, ttft, later, **settings)
        first = np.asarray(jax.jit(engines.ttft_s)(both, rows)) / ttft - 1
    first = np.where(mixed, first, np.nan)  # other GPUs' queues are not modelled
    return (
        Fitted(constants, error, is_fit, group_error),
        Fitted(both, first, is_fit, np.full_like(first, np.nan)),
    )


def engine_errors(constants: dict[str, float], found: list[Served]) -> tuple[Any, Any]:
    """[row] relative errors of output tokens and of first tokens by given constants."""
    with jax.enable_x64(True):
        seen = jax.jit(engines.predict)(constants, arrays(found))
        tpot, ttft = (np.array([getattr(x, n) for x in found]) for n in ("tpot_s", "ttft_s"))
        return np.asarray(seen.tpot_s) / tpot - 1, np.asarray(seen.ttft_s) / ttft - 1
