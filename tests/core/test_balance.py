"""Loads on parallel units against SciPy, simulation and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxmem.core import balance

MEAN = [5.0, 8.0, 20.0, 53.0, 197.0, 500.0, 2000.0]
UNIT = [2.0, 5.0, 24.0, 53.0, 144.0, 1024.0, 4608.0]


def scipy_max(mean, n_unit):
    x = np.arange(int(mean + 15 * np.sqrt(mean) + 40))
    return np.sum(-np.expm1(n_unit * stats.poisson.logcdf(x, mean)))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mean", MEAN)
@pytest.mark.parametrize("n_unit", UNIT)
def test_exact_sum_is_scipys(mean, n_unit):
    got = balance.expected_max_exact(mean, n_unit, n_term=4096)
    assert float(got) == pytest.approx(scipy_max(mean, n_unit), rel=1e-9)


@pytest.mark.usefixtures("x64")
def test_closed_form_error_is_as_stated():
    """0.62 % at worst from a mean of 5 up (research/flashaccel.md section 2)."""
    mean, unit = np.meshgrid(MEAN, UNIT)
    exact = np.vectorize(scipy_max)(mean, unit)
    closed = balance.expected_max(jnp.asarray(mean), jnp.asarray(unit))
    error = np.abs(closed / exact - 1)
    assert error.max() < 0.0062
    assert error.mean() < 0.0015


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("mean", "n_unit"), [(0.05, 64.0), (0.5, 64.0), (1.0, 16.0), (2.0, 144.0)])
def test_closed_form_below_its_range(mean, n_unit):
    assert abs(float(balance.expected_max(mean, n_unit)) - scipy_max(mean, n_unit)) < 0.1


def test_papers_imbalance():
    """100 GiB of Qwen3-235B's KV cache over 4,916 planes: 1.52 (FlashAccel III-B)."""
    balls = 100 * 2**30 / 94 / 4096
    mean = balls / 4916
    assert float(balance.expected_max(mean, 4916.0)) / mean == pytest.approx(1.52, abs=0.005)


@pytest.mark.usefixtures("x64")
def test_bounds_and_gradient():
    mean = jnp.asarray([1e-6, 0.01, 0.3, 1.0, 5.0, 300.0])
    for n in (1.0, 2.0, 64.0, 4608.0):
        value = balance.expected_max(mean, n)
        assert (value >= mean * (1 - 1e-12)).all()
        assert (value <= n * mean * (1 + 1e-12)).all()
        slope = jax.vmap(jax.grad(balance.expected_max), (0, None))(mean, n)
        assert np.isfinite(slope).all()
        assert (slope > 0).all()
    at_zero = jax.grad(balance.expected_max, (0, 1))(0.0, 64.0)
    assert np.isfinite(at_zero).all()
    slope = float(jax.grad(balance.expected_max)(53.0, 4916.0))
    difference = (scipy_max(53.01, 4916.0) - scipy_max(52.99, 4916.0)) / 0.02
    assert slope == pytest.approx(difference, rel=0.01)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("mean", [0.3, 1.0, 7.5, 197.0])
def test_excess_is_half_the_mean_deviation(mean):
    x = np.arange(int(mean + 20 * np.sqrt(mean) + 40))
    exact = np.sum(np.maximum(x - mean, 0) * stats.poisson.pmf(x, mean))
    assert float(balance.expected_excess(mean)) == pytest.approx(exact, rel=1e-9)


def test_sampled_max_has_the_right_mean():
    keys = jax.random.split(jax.random.key(0), 4096)
    draws = jax.vmap(lambda k: balance.sampled_max(k, 53.0, 144.0))(keys)
    error = float(draws.std()) / 64
    assert abs(float(draws.mean()) - scipy_max(53.0, 144.0)) < 4 * error


def test_actual_loads():
    load = jnp.asarray([3.0, 1.0, 2.0, 2.0])
    assert float(balance.makespan(load, 2.0)) == 6.0
    assert float(balance.excess(load, 2.0)) == 1.0
