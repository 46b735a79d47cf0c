"""relax: forward bit-exact, gradient finite everywhere and useful."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem.core import relax

NUMBER = st.floats(-1e6, 1e6, allow_nan=False, allow_subnormal=False, width=32)
EDGE = [0.0, -0.0, 1.0, -1.0, 0.5, 2.5, 1e-30, 1e30]
ROUNDING = {"ceil": np.ceil, "floor": np.floor, "round": np.round}


@pytest.mark.parametrize("name", ROUNDING)
@given(x=NUMBER)
def test_rounding_is_exact_and_slopes_by_one(name, x):
    fn = getattr(relax, name)
    assert float(jax.jit(fn)(x)) == ROUNDING[name](np.float32(x))
    assert float(jax.grad(fn)(x)) == 1.0


@given(x=NUMBER, y=NUMBER)
def test_selection_is_exact(x, y):
    a, b = np.float32(x), np.float32(y)
    assert float(relax.maximum(a, b)) == max(a, b)
    assert float(relax.minimum(a, b)) == min(a, b)
    assert float(relax.where(a > b, a, b)) == max(a, b)
    if b == 0 or abs(b) > 1e-6:
        assert float(relax.divide(a, b, 7.0)) == (np.float32(7) if b == 0 else a / b)


@pytest.mark.parametrize("x", EDGE)
@pytest.mark.parametrize("y", EDGE)
@pytest.mark.parametrize("name", ["maximum", "minimum", "divide"])
def test_gradients_are_finite_at_ties_and_zeros(name, x, y):
    if name == "divide" and 0 < abs(y) < 1e-20:
        return  # the true derivative overflows float32
    slopes = jax.grad(getattr(relax, name), (0, 1))(x, y)
    assert np.isfinite(slopes).all()


def test_ties_share():
    assert jax.grad(relax.maximum, (0, 1))(3.0, 3.0) == (0.5, 0.5)


def test_sqrt():
    assert float(relax.sqrt(0.0)) == 0.0
    assert float(jax.grad(relax.sqrt)(0.0)) == 0.0
    assert float(jax.grad(relax.sqrt)(4.0)) == 0.25


@given(x=st.floats(0.1, 100))
def test_snap_takes_the_nearest(x):
    lattice = (1.0, 2.0, 4.0, 8.0, 16.0)
    got = float(relax.snap(x, lattice))
    assert got in lattice
    assert abs(got - np.float32(x)) == min(abs(v - np.float32(x)) for v in lattice)
    assert float(jax.grad(lambda v: relax.snap(v, lattice))(x)) == 1.0


def test_vmaps():
    x = jnp.linspace(-2, 2, 9)
    np.testing.assert_array_equal(jax.vmap(relax.ceil)(x), np.ceil(x))
    np.testing.assert_array_equal(jax.vmap(lambda v: relax.snap(v, (0.0, 1.0)))(x) <= 1, True)
