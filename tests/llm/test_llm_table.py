"""Layer tables: padded, stacked, vmapped, sharded with traced degrees, differentiated."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem.llm import (
    LayerTable,
    Parallel,
    kind_of,
    kv_bytes,
    kv_bytes_token,
    layer_table,
    load,
    pad,
    resolve,
    shard,
    table,
    weight_bytes,
)
from jaxmem.llm.table import PER_MODEL, expert_bytes

ZOO = ["opt-6.7b", "llama3.1-405b", "deepseek-v3", "gpt-oss-120b", "qwen3.5-35b-a3b"]
THREE_KINDS = {
    "model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 32,
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8,
    "mlp_only_layers": [0], "sliding_window": 5, "use_sliding_window": True,
    "max_window_layers": 2,
}  # fmt: skip


@functools.cache
def zoo_table(name: str) -> LayerTable:
    """`layer_table`, once a model: the type checker of the tests makes it slow."""
    return layer_table(name)


def stacked(models, n_kind: int):
    return jax.tree.map(
        lambda *x: np.stack(x),
        *[pad(zoo_table(m) if isinstance(m, str) else layer_table(m), n_kind) for m in models],
    )


def leaves(record) -> dict:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}


def test_padding_changes_no_sum():
    for name in ZOO:
        short = zoo_table(name)
        long = pad(short, 7)
        assert long.n_layer.shape == (7,)
        assert pad(long, 3) is long
        for quantity in (weight_bytes, kv_bytes_token, expert_bytes):
            assert float(quantity(short)) == float(quantity(long))
        assert float(kv_bytes(short, 1e5)) == float(kv_bytes(long, 1e5))
        assert all(np.isfinite(v).all() for k, v in leaves(long).items() if k != "window_tokens")


def test_three_kinds():
    model = load(THREE_KINDS)
    assert [g.n_layer for g in model.groups] == [1, 1, 1]
    assert [g.window for g in model.groups] == [0, 0, 5]
    assert [g.n_expert for g in model.groups] == [0, 4, 4]
    rows = layer_table(model)
    assert float(kv_bytes(rows, 10.0)) == model.kv_bytes(10) == 2 * 2 * 16 * 2 * (10 + 10 + 5)
    assert float(weight_bytes(rows)) == model.weight_bytes


def test_models_stack_and_vmap():
    models = [*ZOO, THREE_KINDS]
    batch = stacked(models, 3)
    sums = jax.jit(jax.vmap(lambda t: (weight_bytes(t), kv_bytes_token(t), kv_bytes(t, 4096.0))))
    for i, row in enumerate(zip(*sums(batch), strict=True)):
        model = load(models[i])
        expected = (model.weight_bytes, model.kv_bytes_token(), model.kv_bytes(4096))
        np.testing.assert_allclose(row, expected, rtol=2e-6)


def test_leading_axes_need_no_vmap():
    batch = stacked(ZOO, 2)
    direct, mapped = weight_bytes(batch), jax.vmap(weight_bytes)(batch)
    np.testing.assert_allclose(direct, mapped, rtol=1e-6)  # float64 in NumPy, float32 in JAX
    assert kind_of(batch, 1).n_layer.shape == (len(ZOO),)
    assert kind_of(batch, 1).hidden is batch.hidden


def test_traced_degrees_compile_once():
    traces = []

    @jax.jit
    def share(rows, parallel):
        traces.append(1)
        part = shard(rows, resolve(parallel, rows, 8))
        return weight_bytes(part), kv_bytes_token(part)

    for name in ZOO:
        for tp in (0.0, 4.0):
            parallel = Parallel(tp=np.float32(tp), dp=np.float32(0), ep=np.float32(0))
            part = shard(zoo_table(name), resolve(parallel, zoo_table(name), 8))
            got = share(zoo_table(name), parallel)
            np.testing.assert_allclose(got, (weight_bytes(part), kv_bytes_token(part)), rtol=1e-6)
    assert len(traces) == len({zoo_table(name).n_layer.shape for name in ZOO})


def test_degrees_vmap():
    rows = zoo_table("llama3.1-70b")
    degrees = np.asarray([1.0, 2.0, 8.0, 16.0])
    batch = jax.vmap(lambda tp: kv_bytes_token(shard(rows, Parallel(tp=tp, dp=1, ep=1))))(degrees)
    np.testing.assert_array_equal(batch, [327_680, 163_840, 40_960, 40_960])


def test_shares_add_up():
    """Without replicated KV heads, TP x EP shares hold the model once."""
    for name in ("llama3.1-70b", "qwen3-235b-a22b", "deepseek-v3"):
        whole = zoo_table(name)
        part = shard(whole, Parallel(tp=4, dp=1, ep=8))
        rest = weight_bytes(whole) - expert_bytes(whole) - whole.other_weight_bytes
        rest_part = weight_bytes(part) - expert_bytes(part) - part.other_weight_bytes
        np.testing.assert_allclose(float(4 * rest_part), float(rest), rtol=1e-5)
        np.testing.assert_allclose(float(8 * expert_bytes(part)), float(expert_bytes(whole)))


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("llama3.1-70b", {}, (8, 1, 1)),
        ("deepseek-v3", {}, (1, 8, 8)),
        ("gpt-oss-20b", {"tp": 2}, (2, 8, 8)),
        ("llama3.1-70b", {"tp": 4, "dp": 2}, (4, 2, 1)),
        ("deepseek-v3", {"tp": 8, "dp": 1, "ep": 1}, (8, 1, 1)),
    ],
)
def test_resolve(name, given, expected):
    """Table II of FlashAccel: dense models TP; models with experts DP attention and EP."""
    parallel = resolve(Parallel.create(**given), zoo_table(name), 8)
    assert (float(parallel.tp), float(parallel.dp), float(parallel.ep)) == expected
    assert parallel.spreads_weights == 1


@jax.jit
@functools.partial(jax.grad, argnums=(0, 1, 2))
def slopes(parallel, rows, context):
    part = shard(rows, parallel)
    return weight_bytes(part) / 1e9 + kv_bytes(part, context) / 1e6


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("tp", [1.0, 3.0, 8.0, 100.0])
def test_gradients_are_finite(name, tp):
    rows = jax.tree.map(jnp.asarray, zoo_table(name))
    parallel = Parallel(tp=tp, dp=1.0, ep=2.0, pp=1.0, spreads_weights=1.0)
    grads = slopes(parallel, rows, 128.0)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))
    assert grads[0].tp < 0
    assert grads[2] >= 0


def test_gradient_through_a_smooth_share(x64):
    """Without rounding (all KV heads divide), the derivative in the context is exact."""
    part = shard(zoo_table("gpt-oss-120b"), Parallel(tp=8, dp=1, ep=1))
    slope = jax.grad(lambda c: kv_bytes(part, c))
    assert float(slope(100.0)) == 73_728 / 8
    assert float(slope(1000.0)) == 36_864 / 8


def test_largest_sizes_still_make_a_table():
    config = THREE_KINDS | {"hidden_size": 10**7, "intermediate_size": 10**7, "vocab_size": 10**7}
    rows = table(load(config))
    assert np.isfinite(float(weight_bytes(rows)))
    assert {f.name for f in dataclasses.fields(rows)} >= set(PER_MODEL)
