"""Partial attention merged in any order is attention."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem.core import attention


def data(n=48, dim=16, query=4, dtype=jnp.float32):
    k1, k2, k3 = jax.random.split(jax.random.key(3), 3)
    shape = (n, dim)
    return (
        jax.random.normal(k1, (query, dim), dtype),
        jax.random.normal(k2, shape, dtype) * 3,
        jax.random.normal(k3, shape, dtype),
    )


def plain(q, k, v):
    score = np.asarray(q, float) @ np.asarray(k, float).T
    weight = np.exp(score - score.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True) @ np.asarray(v, float)


def test_reference_is_softmax():
    q, k, v = data()
    np.testing.assert_allclose(attention.reference(q, k, v), plain(q, k, v), rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("n_piece", [1, 3, 8])
@pytest.mark.parametrize("seed", [0, 1])
def test_pieces_in_any_order_merge_to_the_whole(n_piece, seed):
    q, k, v = data()
    order = np.random.default_rng(seed).permutation(48)
    split = [jnp.asarray(order).reshape(n_piece, -1)[i] for i in range(n_piece)]
    parts = [attention.partial(q, k[i], v[i], jnp.ones(len(i), bool)) for i in split]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    got = attention.finish(attention.merge(stacked))
    np.testing.assert_allclose(got, plain(q, k, v), rtol=2e-5, atol=2e-6)


def test_empty_pieces_and_stale_lanes_weigh_nothing():
    q, k, v = data()
    mask = jnp.arange(48) < 20
    dirty_k, dirty_v = k.at[20:].set(jnp.nan), v.at[20:].set(jnp.inf)
    got = attention.reference(q, dirty_k, dirty_v, mask)
    np.testing.assert_allclose(got, plain(q, k[:20], v[:20]), rtol=2e-5, atol=2e-6)
    empty = attention.partial(q, k, v, jnp.zeros(48, bool))
    whole = attention.partial(q, k, v, jnp.ones(48, bool))
    both = jax.tree.map(lambda *x: jnp.stack(x), empty, whole)
    np.testing.assert_allclose(
        attention.finish(attention.merge(both)), attention.finish(whole), rtol=1e-6
    )
    assert (attention.finish(empty) == 0).all()


def test_gradient_is_finite_through_masks():
    q, k, v = data()
    slope = jax.grad(lambda x: attention.reference(q, x, v, jnp.arange(48) < 7).sum())(k)
    assert np.isfinite(slope).all()
    assert float(jnp.abs(slope[7:]).max()) == 0.0
