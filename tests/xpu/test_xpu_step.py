"""One transformer step: against a plain-Python twin, and what must hold for any step."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem import devices, llm
from jaxmem.core.errors import InputError
from jaxmem.llm import Parallel, resolve
from jaxmem.xpu import hbm, step
from jaxmem.xpu.step import EXPERT_READ, experts_touched, total_s


def twin_module():
    path = Path(__file__).parents[1] / "reference" / "xpu_step.py"
    spec = importlib.util.spec_from_file_location("reference_xpu_step", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


twin = twin_module()
MODELS = {
    "llama3.1-405b": twin.LLAMA_405B,
    "qwen3-235b-a22b": twin.QWEN3_235B,
    "deepseek-v3": twin.DEEPSEEK_V3,
    "gemma3-12b": twin.GEMMA3_12B,
}
TABLES = {name: llm.table(llm.load(name)) for name in MODELS}
NODES = {name: devices.load(name) for name in ("8xH200", "16xH200", "8xCSI")}


def degrees(name, n_gpu, **given):
    with jax.enable_x64(True):
        return resolve(Parallel.create(**given), TABLES[name], float(n_gpu))


@jax.jit
def _run(table, node, parallel, n_token, context, n_request, expert_read):
    return step(
        table, node, parallel, n_token, context,
        n_request=n_request, memory=hbm(node), expert_read=expert_read,
    )  # fmt: skip


def run(name, n_token, context, n_request=None, node="8xH200", read="all", **given):
    """A step in float64; decode unless `n_request` says otherwise."""
    node = NODES[node] if isinstance(node, str) else node
    n_request = n_token if n_request is None else n_request
    parallel = degrees(name, node.n_gpu, **given)
    numbers = [float(x) for x in (n_token, context, n_request)]
    with jax.enable_x64(True):
        out = _run(TABLES[name], node, parallel, *numbers, EXPERT_READ[read])
        return jax.tree.map(float, out)


SHAPES = [  # n_token, context, n_request
    (8, 1, 8), (64, 2048, 64), (256, 21_000, 256), (4096, 600, 4096),
    (8192, 0, 8), (32_768, 4096, 16),
]  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("llama3.1-405b", {}),  # TP8
        ("qwen3-235b-a22b", {}),  # DP8, EP8
        ("qwen3-235b-a22b", {"tp": 8, "dp": 1, "ep": 8}),  # more ranks than KV heads
        ("qwen3-235b-a22b", {"tp": 2, "dp": 4, "ep": 4}),
        ("deepseek-v3", {}),
        ("gemma3-12b", {}),
    ],
)
def test_step_is_its_twin(name, given, shape):
    n_token, context, n_request = shape
    p = degrees(name, 8, **given)
    tp, dp, ep = float(p.tp), float(p.dp), float(p.ep)
    for read in EXPERT_READ:
        got = run(name, n_token, context, n_request, read=read, **given)
        parts, weights, kv, sent = twin.step(
            MODELS[name], 8, tp, dp, ep, n_token, n_request, context,
            reads_touched=read == "touched",
        )  # fmt: skip
        assert set(got.parts) == set(parts)
        for part, seconds in parts.items():
            assert got.parts[part] == pytest.approx(seconds, rel=1e-9, abs=1e-18), part
        assert got.weight_bytes == pytest.approx(weights, rel=1e-9)
        assert got.kv_bytes == pytest.approx(kv, rel=1e-9)
        assert got.link_bytes == pytest.approx(sent, rel=1e-9)


@pytest.mark.parametrize("name", ["llama3.1-405b", "qwen3-235b-a22b"])
def test_scale_out_is_the_twins(name):
    p = degrees(name, 16)
    got = run(name, 128, 4096, node="16xH200")
    parts, *_ = twin.step(
        MODELS[name], 16, float(p.tp), float(p.dp), float(p.ep), 128, 128, 4096, domain=8
    )
    assert got.parts["collective"] == pytest.approx(parts["collective"], rel=1e-9)
    assert float(total_s(got)) == pytest.approx(sum(parts.values()), rel=1e-9)


def test_float32_is_near():
    p = degrees("deepseek-v3", 8)
    args = (TABLES["deepseek-v3"], NODES["8xH200"], p, 256.0, 8192.0, 256.0)
    low = _run(*jax.tree.map(np.float32, args), 1)
    high = run("deepseek-v3", 256, 8192, read="touched")
    assert float(total_s(low)) == pytest.approx(float(total_s(high)), rel=1e-5)


@pytest.mark.parametrize("read", EXPERT_READ)
@pytest.mark.parametrize("name", MODELS)
def test_rises_with_batch_and_context(name, read):
    batches = [total_s(run(name, 8 * b, 2048, read=read)) for b in (1, 2, 3, 8, 64, 65, 512)]
    assert batches == sorted(batches)
    assert batches[0] < batches[-1]
    contexts = [total_s(run(name, 64, c, read=read)) for c in (0, 1, 64, 1000, 1025, 30_000)]
    assert contexts == sorted(contexts)
    assert contexts[0] < contexts[-1]


RATES = ["gpu.hbm_bytes_per_s", "gpu.bf16_flops", "gpu.fp8_flops", "scale_up.bytes_per_s",
         "gpu.kv_read_efficiency", "gpu.matmul_efficiency"]  # fmt: skip


@given(
    rate=st.sampled_from(RATES),
    name=st.sampled_from(sorted(MODELS)),
    batch=st.integers(1, 4096),
    context=st.integers(0, 100_000),
    gain=st.floats(1.0, 1.4),
)
def test_a_faster_part_never_slows_the_step(rate, name, batch, context, gain):
    from jaxmem.core.design import get, put

    node = NODES["8xH200"]
    faster = put(node, rate, np.float64(get(node, rate) * gain))
    old, new = run(name, batch, context), run(name, batch, context, node=faster)
    assert total_s(new) <= total_s(old) * (1 + 1e-12)
    assert new.weight_bytes == old.weight_bytes


@pytest.mark.parametrize("name", MODELS)
def test_one_gpu_has_no_collectives(name):
    node = NODES["8xH200"]
    alone = dataclasses.replace(node, n_gpu=np.float64(1))
    got = run(name, 64, 2048, node=alone)
    assert got.parts["collective"] == 0
    assert got.link_bytes == 0
    one = degrees(name, 1)
    with jax.enable_x64(True):
        bare = step(TABLES[name], node.gpu, one, 64.0, 2048.0, n_request=64.0, memory=hbm(node.gpu))
        assert float(total_s(bare)) == pytest.approx(float(total_s(got)), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_a_step_reads_each_weight_once(name):
    """Over the node: attention once a replica, experts and TP shards once; embeddings are looked
    up, the final norm is left out."""
    model, table = llm.load(name), TABLES[name]
    n_token = 10_000_000  # every expert is touched
    dense = {"tp": 8, "dp": 1, "ep": 8}
    got = run(name, n_token, 1, read="touched", **dense)
    expected = llm.weight_bytes(table) - table.embedding_weight_bytes - table.other_weight_bytes
    assert 8 * got.weight_bytes == pytest.approx(float(expected), rel=1e-12)
    unread = 2.0 * (model.other_params + (0 if model.is_tied else model.embedding_params))
    assert 8 * got.weight_bytes == pytest.approx(model.weight_bytes - unread, rel=1e-12)
    few = run(name, 8, 1, read="touched", **dense)
    assert (few.weight_bytes < got.weight_bytes) == bool(table.n_expert.sum())


@pytest.mark.parametrize("name", MODELS)
def test_prefill_costs_its_tokens_where_compute_binds(name):
    """n tokens of a request cost n times what decoding one of as many requests does."""
    few, many = (run(name, n, 8192, 8, read="all") for n in (65_536, 131_072))
    for part in ("attention", "expert", "ffn"):
        assert many.parts[part] == pytest.approx(2 * few.parts[part], rel=1e-9)
    assert many.kv_bytes == few.kv_bytes  # the cache is read once for all tokens of a request
    assert many.parts["head"] == few.parts["head"]  # only a request's last token is unembedded
    decode = run(name, 65_536, 8192)
    for part in ("attention", "expert", "ffn", "collective"):
        assert few.parts[part] == pytest.approx(decode.parts[part], rel=1e-9)
    assert few.kv_bytes == pytest.approx(decode.kv_bytes * 8 / 65_536)


def test_fidelity_is_checked():
    node, name = NODES["8xH200"], "gemma3-12b"
    with pytest.raises(InputError, match="roofline"):
        step(TABLES[name], node, degrees(name, 8), 1.0, 1.0, n_request=1.0, memory=hbm(node),
             fidelity="rofline")  # fmt: skip


# ---------------------------------------------------------------- experts


@pytest.mark.parametrize(
    ("n", "k", "batch", "touched"),
    [
        (8, 2, 1, 2.0), (8, 2, 3, 4.625), (8, 2, 8, 7.1991), (256, 8, 32, 163.31),
        (256, 8, 128, 251.6), (256, 8, 1, 8.0), (8, 8, 1, 8.0), (8, 8, 0, 0.0), (1, 1, 5, 1.0),
        (0, 0, 7, 0.0), (64, 6, 0, 0.0),
    ],
)  # fmt: skip
def test_experts_touched(x64, n, k, batch, touched):
    got = float(experts_touched(float(n), float(k), float(batch)))
    assert got == pytest.approx(touched, rel=2e-4)
    if n == k:
        assert got == touched  # exactly


@given(
    n=st.integers(1, 512), share=st.floats(0, 1), batch=st.integers(0, 10**7), wide=st.booleans()
)
def test_touched_experts_are_bounded(n, share, batch, wide):
    k = max(1, round(share * n))
    with jax.enable_x64(wide):
        got = float(experts_touched(float(n), float(k), float(batch)))
        more = float(experts_touched(float(n), float(k), batch + 1.0))
    slack = 1 + (1e-12 if wide else 1e-5)
    assert got <= n
    assert got <= more * slack
    assert got <= k * batch * slack
    assert got >= min(k, k * batch) / slack


def test_touched_experts_against_drawing():
    rng = np.random.default_rng(7)
    n, k, batch = 16, 2, 6
    drawn = [
        len({e for _ in range(batch) for e in rng.choice(n, k, replace=False)}) for _ in range(4000)
    ]
    assert float(experts_touched(16.0, 2.0, 6.0)) == pytest.approx(np.mean(drawn), rel=0.01)


@pytest.mark.parametrize(("n", "k"), [(8.0, 8.0), (8.0, 2.0), (0.0, 0.0), (256.0, 8.0)])
def test_touched_experts_have_a_gradient(x64, n, k):
    slope = jax.grad(experts_touched, argnums=(0, 1, 2))(n, k, 4.0)
    assert all(np.isfinite(slope))
    if 0 < k < n:
        h = 1e-6
        up, down = experts_touched(n, k, 4.0 + h), experts_touched(n, k, 4.0 - h)
        assert float(slope[2]) == pytest.approx(float(up - down) / (2 * h), rel=1e-6)


def test_step_has_a_finite_gradient():
    node = NODES["8xCSI"]
    for name in MODELS:
        p = degrees(name, 8)

        def seconds(gpu, batch, context, name=name, p=p):
            on = dataclasses.replace(node, gpu=gpu)
            t = step(
                TABLES[name], on, p, batch, context, n_request=batch, memory=hbm(on), expert_read=1
            )
            return total_s(t)

        with jax.enable_x64(True):
            slope = jax.jit(jax.grad(seconds, argnums=(0, 1, 2)))(node.gpu, 64.0, 4000.0)
        assert all(np.isfinite(x) for x in jax.tree.leaves(slope))
        assert float(slope[0].hbm_bytes_per_s) < 0 < float(slope[1])


def test_step_vmaps():
    name = "qwen3-235b-a22b"
    batches = np.array([8.0, 64.0, 512.0])
    p = degrees(name, 8)
    with jax.enable_x64(True):
        many = jax.vmap(_run, (None, None, None, 0, None, 0, None))(
            TABLES[name], NODES["8xH200"], p, batches, 4096.0, batches, 1
        )
        one = [total_s(run(name, b, 4096, read="touched")) for b in batches]
        np.testing.assert_allclose(total_s(many), one, rtol=1e-12)
