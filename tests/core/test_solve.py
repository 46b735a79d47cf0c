"""The batch search against enumeration; its derivative against the binding condition."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem.core.solve import Constraint, largest_batch

TIME = Constraint(
    lambda p, b: p["a"] + p["c"] * b + p["d"] * jnp.ceil(b / 3), lambda p: p["slo"], 1
)
SPACE = Constraint(lambda p, b: p["e"] * b, lambda p: p["room"], 2)


def search(p, top):
    return largest_batch([TIME, SPACE], p, top)


@given(
    a=st.floats(0, 5), c=st.floats(0.01, 2), d=st.floats(0, 2), slo=st.floats(0, 50),
    e=st.floats(0.01, 2), room=st.floats(0, 60), top=st.integers(0, 80),
)  # fmt: skip
def test_is_the_largest_that_meets_all(a, c, d, slo, e, room, top):
    p = {"a": a, "c": c, "d": d, "slo": slo, "e": e, "room": room}
    p = {k: np.float32(v) for k, v in p.items()}
    batch, limit = jax.jit(search)(p, float(top))

    def meets(b):
        b = np.float32(b)
        time = p["a"] + p["c"] * b + p["d"] * np.ceil(b / np.float32(3))
        return (time <= p["slo"], p["e"] * b <= p["room"])

    good = [b for b in range(1, top + 1) if all(meets(b))]
    expected = max(good, default=0)
    assert abs(float(batch) - expected) <= (1 if near_edge(meets, p, expected) else 0)
    if float(batch) == expected and not near_edge(meets, p, expected):
        following = meets(expected + 1)
        code = 0 if expected >= top else 1 if not following[0] else 2
        assert int(limit) == code


def near_edge(meets, p, b):
    """Whether fused arithmetic may fall on the other side of a bound."""
    for x in (b, b + 1):
        time = p["a"] + p["c"] * x + p["d"] * np.ceil(x / 3)
        if abs(time - p["slo"]) < 1e-4 or abs(p["e"] * x - p["room"]) < 1e-4:
            return True
    return False


def test_gradient_follows_the_binding_condition():
    p = {"a": 1.0, "c": 0.5, "d": 0.0, "slo": 10.25, "e": 1e-3, "room": 1.0}
    slope = jax.grad(lambda q: search(q, 1e6)[0])(p)
    assert slope["slo"] == pytest.approx(1 / 0.5)
    assert slope["a"] == pytest.approx(-1 / 0.5)
    assert slope["c"] == pytest.approx(-18 / 0.5)
    assert slope["e"] == 0
    q = p | {"slo": jnp.inf}
    slope = jax.grad(lambda q: search(q, 1e6)[0])(q)
    assert slope["room"] == pytest.approx(1 / 1e-3)
    assert slope["a"] == 0
    assert float(jax.grad(lambda top: search(p, top)[0])(5.0)) == 1.0
