"""Guard for the compiler bug that sets our lowest Python: jax-ml/jax#39103.

The CPU compiler of jax 0.10.2 returns wrong rows for a jitted vmap of small matrix-vector products
reduced over a large batch.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_batched_matvec_reduction(dtype):
    n, k = 32769, 3
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(0)
        matrix = jnp.asarray(rng.standard_normal((n, k, k)), dtype)
        vector = jnp.asarray(rng.standard_normal((n, k)), dtype)

        def product(a, x):
            return jnp.sum(a @ x)

        eager = jax.vmap(product)(matrix, vector)
        compiled = jax.jit(jax.vmap(product))(matrix, vector)
        exact = np.einsum("nij,nj->n", np.asarray(matrix, float), np.asarray(vector, float))
        tolerance = 1e-5 if dtype == "float32" else 1e-13
        np.testing.assert_allclose(compiled, eager, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(compiled, exact, rtol=100 * tolerance, atol=100 * tolerance)
