"""Workloads: their bounds, and the context that a request is charged at."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem.core.design import specs
from jaxmem.core.errors import InputError
from jaxmem.serving import Decode, Serve
from jaxmem.serving.workload import context_tokens


def test_defaults():
    d, s = Decode.create(), Serve.create()
    assert (d.batch, d.context_tokens) == (1, 1024)
    assert (s.input_tokens, s.output_tokens, s.max_batch) == (1024, 256, 2**20)
    assert np.isinf(s.slo_s)


@pytest.mark.parametrize(
    ("kind", "field", "bad"),
    [
        (Decode, "batch", 0), (Decode, "batch", -1), (Decode, "batch", 1.5),
        (Decode, "batch", 2.0**24), (Decode, "batch", float("nan")), (Decode, "batch", None),
        (Decode, "context_tokens", 0), (Decode, "context_tokens", 1e9 + 1),
        (Decode, "context_tokens", "long"), (Serve, "input_tokens", 0),
        (Serve, "output_tokens", 0.5), (Serve, "slo_s", 0.0), (Serve, "slo_s", -0.1),
        (Serve, "slo_s", float("nan")), (Serve, "max_batch", 0), (Serve, "max_batch", [1, "x"]),
    ],
)  # fmt: skip
def test_bounds(kind, field, bad):
    with pytest.raises(InputError) as caught:
        kind.create(**{field: bad})
    assert str(caught.value).startswith(f"{field}: expected ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "field", "good"),
    [
        (Decode, "batch", 2.0**24 - 1), (Decode, "batch", "32"), (Decode, "context_tokens", 1e9),
        (Serve, "slo_s", 1e-9), (Serve, "slo_s", "inf"), (Serve, "slo_s", float("inf")),
    ],
)  # fmt: skip
def test_edges(kind, field, good):
    assert getattr(kind.create(**{field: good}), field) == float(good)


def test_unknown_field_names_the_nearest():
    with pytest.raises(InputError, match="did you mean 'context_tokens'"):
        Decode.create(contxt_tokens=1)
    with pytest.raises(InputError, match="did you mean 'slo_s'"):
        Serve.create(slo=1)


def test_every_field_says_its_unit():
    for kind in (Decode, Serve):
        assert all(s.unit in ("requests", "tokens", "s") and s.doc for s in specs(kind).values())


@given(prompt=st.integers(1, 10**9), response=st.integers(1, 10**9), context=st.integers(1, 10**9))
def test_context(prompt, response, context):
    serve = Serve.create(input_tokens=prompt, output_tokens=response)
    assert float(context_tokens(serve)) == prompt + response
    assert float(context_tokens(Decode.create(context_tokens=context))) == context


def test_workloads_are_pytrees_and_take_tracers():
    doubled = jax.vmap(lambda b: Decode.create(batch=b).batch * 2)(np.arange(1.0, 4.0))
    np.testing.assert_array_equal(doubled, [2, 4, 6])
    slope = jax.grad(lambda n: context_tokens(Serve.create(input_tokens=n)))(100.0)
    assert float(slope) == 1.0
