"""Served models in closed form, pipeline stages, engines, and which field moves what."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem import devices
from jaxmem.core.design import specs
from jaxmem.core.errors import InputError
from jaxmem.devices.engine import Engine, tuned
from jaxmem.llm import Parallel, load, shard, table, weight_bytes
from jaxmem.xpu import area, energy, engines, matmul, vector
from jaxmem.xpu.online import online
from jaxmem.xpu.step import PLAIN, hbm, step, total_s

pytestmark = pytest.mark.slow

NODE, WIDE = devices.load("8xH200"), devices.load("16xH200")
DENSE, SPARSE = table(load("llama3.1-70b")), table(load("deepseek-v3"))
ENGINES = ("trtllm", "vllm", "sglang")


def degrees(tp=8.0, dp=1.0, ep=1.0, pp=1.0):
    return Parallel(tp=tp, dp=dp, ep=ep, pp=pp, spreads_weights=1.0)


@jax.jit
def decode(model, node, parallel, engine, n, context):
    return step(
        model, node, parallel, n, context, n_request=n, memory=hbm(node), expert_read=1,
        engine=engine,
    )  # fmt: skip


@jax.jit
def serve(model, node, parallel, engine, n, apart):
    return online(
        model, node, parallel, engine, n_request=n, input_tokens=1024.0, output_tokens=512.0,
        is_apart=apart,
    )  # fmt: skip


def leaves(record):
    return jax.tree.map(lambda x: jnp.asarray(x, float), record)


def test_an_output_token_is_a_step_and_its_share_of_prompts(x64):
    engine = leaves(devices.load("vllm"))
    found = serve(DENSE, NODE, degrees(), engine, 32.0, 0.0)
    alone = serve(DENSE, NODE, degrees(), engine, 32.0, 1.0)
    plain = decode(DENSE, tuned(NODE, engine), degrees(), engine, 32.0, 1024.0 + 256.0)
    assert float(alone.tpot_s) == pytest.approx(float(total_s(plain)))
    assert float(found.tpot_s - alone.tpot_s) == pytest.approx(float(found.parts["prompts"]))
    assert float(sum(found.parts.values())) == pytest.approx(float(found.tpot_s))
    one = serve(DENSE, NODE, degrees(), engine, 1.0, 0.0)
    assert float(one.parts["prompts"]) == 0.0
    first = engine.first_s + engine.own_passes * one.prefill_s
    assert float(one.ttft_s) == pytest.approx(float(first))


def test_prompts_of_their_own_cost_more_than_within_a_step(x64):
    engine = leaves(devices.load("vllm"))
    apart = dataclasses.replace(engine, is_mixed=jnp.asarray(0.0))
    within = serve(SPARSE, NODE, degrees(ep=8.0), engine, 32.0, 0.0)
    outside = serve(SPARSE, NODE, degrees(ep=8.0), apart, 32.0, 0.0)
    assert float(outside.tpot_s) > float(within.tpot_s)


@pytest.mark.parametrize("model", [DENSE, SPARSE])
def test_pipeline_stages(x64, model):
    """Two stages at half the batch each: all layers at half the batch, and two hops."""
    n, parallel = 64.0, degrees(tp=4.0, pp=2.0)
    both = decode(model, NODE, parallel, leaves(PLAIN), n, 2048.0)
    half = decode(model, NODE, degrees(tp=4.0), leaves(PLAIN), n / 2, 2048.0)
    hop = 6e-6 + (n / 2 * float(model.hidden) * 2 / 4) / (0.8 * 450e9)
    assert float(total_s(both)) == pytest.approx(float(total_s(half)) + 2 * hop, rel=1e-9)
    whole, stage = shard(model, degrees(tp=4.0)), shard(model, parallel)
    layers = float(weight_bytes(whole)) - float(weight_bytes(stage))
    assert layers > 0.45 * float(weight_bytes(whole))


def test_experts_under_tensor_parallelism(x64):
    """Without EP each expert is divided by TP; with EP over the same GPUs it is whole, on one."""
    tp, ep = shard(SPARSE, degrees()), shard(SPARSE, degrees(ep=8.0))
    assert np.allclose(tp.expert_weight_bytes * 8, SPARSE.expert_weight_bytes)
    assert np.allclose(ep.expert_weight_bytes, SPARSE.expert_weight_bytes)
    a, b = (
        decode(SPARSE, NODE, degrees(ep=e), leaves(PLAIN), 64.0, 2048.0).parts["expert"]
        for e in (1.0, 8.0)
    )
    assert float(a) == pytest.approx(float(b))


@pytest.mark.parametrize("name", ENGINES)
def test_shipped_engines_are_fits_that_keep_their_untuned_values(name):
    rows = {row.field: row for row in devices.catalog.rows(name)}
    engine, untuned = devices.load(name), Engine()
    fitted = [f for f, row in rows.items() if row.confidence == "fitted"]
    assert len(fitted) >= 15
    for field in fitted:
        assert float(rows[field].unfitted) == pytest.approx(float(getattr(untuned, field)))
        assert float(getattr(engine, field)) >= 0


def test_constants_of_all_engines_come_apart_again():
    constants = engines.shipped()
    for name in ENGINES:
        own = engines.engine(constants, name)
        for field, spec in specs(Engine()).items():
            if spec.kind == "leaf":
                assert float(own[field]) == pytest.approx(float(getattr(devices.load(name), field)))


OUTPUTS = ("tpot", "ttft", "step", "wide")


@jax.jit
def outputs(node, wide, engine):
    """What an engine on a node does: tokens and first tokens; a step beyond one domain."""
    found = [
        online(model, node, parallel, engine, n_request=n, input_tokens=2048.0,
               output_tokens=512.0)
        for model, parallel, n in (
            (DENSE, degrees(tp=2.0), 8.0), (SPARSE, degrees(ep=8.0), 64.0),
            (SPARSE, degrees(tp=1.0, dp=8.0, ep=8.0), 4096.0),
        )
    ]  # fmt: skip
    far = online(DENSE, wide, degrees(tp=16.0), engine, n_request=8.0, input_tokens=2048.0,
                 output_tokens=512.0)  # fmt: skip
    values = [x for o in (*found, far) for x in (o.tpot_s, o.ttft_s)]
    return jnp.stack(values)


def moved(before, after):
    return not np.allclose(np.asarray(before), np.asarray(after), rtol=1e-9, atol=0)


UNUSED = {
    "hbm_bytes": "capacity: hbf.occupancy and the served rows' fit in memory",
    "weight_read_efficiency": "an engine's takes its place", "kv_read_efficiency": "the same",
    "matmul_efficiency": "the same", "attention_efficiency": "the same",
    "operator_s": "the same", "step_s": "the same",
}  # fmt: skip


def test_every_field_of_an_engine_moves_an_output(x64):
    engine = leaves(devices.load("vllm"))
    before = outputs(NODE, WIDE, engine)
    for field, spec in specs(Engine()).items():
        if spec.kind != "leaf":
            continue
        value = 1.0 - engine.is_mixed if field == "is_mixed" else getattr(engine, field) * 0.8
        after = outputs(NODE, WIDE, dataclasses.replace(engine, **{field: value}))
        assert moved(before, after), field


def bare(node):
    """Parts of steps that bandwidth and arithmetic decide, without an engine."""
    spread = degrees(tp=1.0, dp=8.0, ep=8.0)
    found = [
        decode(model, node, parallel, leaves(PLAIN), n, 2048.0).parts
        for model, parallel, n in (
            (SPARSE, spread, 64.0), (SPARSE, spread, 8192.0), (DENSE, degrees(), 64.0),
        )
    ]  # fmt: skip
    return jax.tree.leaves(found)


def test_every_field_of_a_gpu_moves_an_output_or_is_named(x64):
    engine = leaves(devices.load("vllm"))
    before = outputs(NODE, WIDE, engine)
    plain = bare(NODE)
    joule = energy.operator_j(NODE.gpu, flop=1.0, moved=1.0)
    for field, spec in specs(NODE.gpu).items():
        if spec.kind != "leaf":
            continue
        gpu = dataclasses.replace(NODE.gpu, **{field: getattr(NODE.gpu, field) * 0.8})
        node, wide = (dataclasses.replace(n, gpu=gpu) for n in (NODE, WIDE))
        is_moved = moved(before, outputs(node, wide, engine))
        of_step = moved(plain, bare(node))
        of_energy = moved(
            list(joule.values()), list(energy.operator_j(gpu, flop=1.0, moved=1.0).values())
        )
        assert is_moved or of_step or of_energy or field in ("hbm_bytes",), field
        assert is_moved != (field in UNUSED or field in ("tdp_w", "hbm_j_per_byte")), field


@jax.jit
def of_chip(chip):
    return jnp.stack([
        matmul.mapped_s(chip, 512.0, 4096.0, 1536.0, grid=matmul.COARSE) + chip.matmul_s,
        matmul.mapped_s(chip, 1.0, 64.0, 4096.0, grid=matmul.COARSE),
        matmul.mapped_s(chip, 24.0, 48.0, 40.0, grid=matmul.COARSE),
        vector.softmax_s(chip, 4096.0, 8192.0) + chip.softmax_s,
        vector.norm_s(chip, 4096.0, 8192.0) + chip.norm_s,
        vector.norm_s(chip, 64.0, 96.0),
        vector.gelu_s(chip, 1e6) + chip.activation_s,
        *area.die_mm2(chip).values(),
    ])  # fmt: skip


def test_every_field_of_a_chip_moves_an_output(x64):
    chip = leaves(devices.load("a100-80gb-chip"))
    before = of_chip(chip)
    for field, spec in specs(chip).items():
        if spec.kind == "leaf":
            value = getattr(chip, field) * (0.25 if field == "l2_bytes" else 0.5)
            assert moved(before, of_chip(dataclasses.replace(chip, **{field: value}))), field


def test_a_better_device_is_never_slower(x64):
    engine = leaves(devices.load("trtllm"))
    before = np.asarray(outputs(NODE, WIDE, engine))
    for field in ("hbm_bytes_per_s", "bf16_flops", "fp8_flops"):
        gpu = dataclasses.replace(NODE.gpu, **{field: getattr(NODE.gpu, field) * 1.5})
        node, wide = (dataclasses.replace(n, gpu=gpu) for n in (NODE, WIDE))
        assert np.all(np.asarray(outputs(node, wide, engine)) <= before * (1 + 1e-9)), field
    link = dataclasses.replace(NODE.scale_up, bytes_per_s=NODE.scale_up.bytes_per_s * 2)
    faster = dataclasses.replace(NODE, scale_up=link)
    assert np.all(np.asarray(outputs(faster, WIDE, engine)) <= before * (1 + 1e-9))


CHIP = devices.load("h200-chip")


@jax.jit
def mapped(model, parallel, n):
    return step(
        model, NODE, parallel, n, 2048.0, n_request=n, memory=hbm(NODE), expert_read=1,
        fidelity="mapped", chip=CHIP,
    )  # fmt: skip


@pytest.mark.parametrize(("model", "parallel"), [(DENSE, degrees()), (SPARSE, degrees(ep=8.0))])
def test_mapped_products_lie_near_the_roofline(x64, model, parallel):
    """Decode: memory decides, and both are one; many rows: within 15 % of 70 % of the peak."""
    for n, least, most in ((8.0, 1.0, 1.001), (4096.0, 0.75, 1.15)):
        plain = decode(model, NODE, parallel, leaves(PLAIN), n, 2048.0)
        found = mapped(model, parallel, n)
        ratio = float(total_s(found)) / float(total_s(plain))
        assert least <= ratio <= most, (n, ratio)
        for part in ("kv", "collective", "overhead"):
            assert float(found.parts[part]) == float(plain.parts[part])


def test_mapped_needs_a_chip():
    with pytest.raises(InputError, match="chip"):
        step(DENSE, NODE, degrees(), 8.0, 8.0, n_request=8.0, memory=hbm(NODE), fidelity="mapped")
