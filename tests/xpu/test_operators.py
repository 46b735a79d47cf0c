"""Curves of single operators: the roofline as their default, monotony, and what a fit recovers."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem import devices
from jaxmem.devices.curve import Curve
from jaxmem.xpu import area, energy, operators, vector
from jaxmem.xpu.calibrate import Prior, fit, left_out
from jaxmem.xpu.families import FAMILIES, LINKED

pytestmark = pytest.mark.slow

H200, NVLINK = devices.load("h200"), devices.load("nvlink4")
COUNTS = {
    "gemm": {"m": 64.0, "n": 4096.0, "k": 4096.0, "is_fp8": 0.0},
    "attention": {"n_request": 8.0, "context_tokens": 4096.0, "n_q": 32.0, "n_kv": 8.0,
                  "head_dim": 128.0, "kv_bytes": 2.0},
    "latent": {"n_request": 8.0, "context_tokens": 4096.0, "n_q": 128.0, "kv_bytes": 2.0},
    "experts": {"n_token": 64.0, "hidden": 4096.0, "width": 1536.0, "top_k": 8.0,
                "n_expert": 128.0, "n_gpu": 8.0, "is_fp8": 0.0, "power": 1.2, "n_matrix": 3.0},
    "all": {"message_bytes": 1e6, "n_gpu": 8.0, "n_pass": 2.0},
    "dispatch": {"n_token": 64.0, "hidden": 4096.0, "top_k": 8.0, "n_gpu": 8.0,
                 "element_bytes": 1.0},
}  # fmt: skip
KINDS = {"gemm": "gemm-bf16", "attention": "attention-bf16", "latent": "latent-bf16",
         "experts": "experts-bf16", "all": "all-reduce", "dispatch": "dispatch"}  # fmt: skip
SHIPPED = [name for name in devices.names("curve") if name.startswith("h200-")]


def family_of(name: str) -> str:
    return next(f for f in sorted(FAMILIES, key=len, reverse=True) if name.endswith(f))


@jax.jit
def gemm(curve, gpu, m):
    return operators.gemm_s(curve, gpu, m, 4096.0, 4096.0)


def test_the_default_is_the_roofline(x64):
    """M = 8 reads 33.7 MB at 4.8 TB/s; M = 8,192 does 275 GFLOP at 989 TFLOP/s."""
    moved = 2.0 * (8 * 4096 + 4096 * 4096 + 8 * 4096)
    assert float(gemm(Curve(), H200, 8.0)) == pytest.approx(moved / 4.8e12, rel=2e-2)
    flop = 2 * 8192 * 4096**2
    assert float(gemm(Curve(), H200, 8192.0)) == pytest.approx(flop / 989e12, rel=2e-2)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_curves_lie_above_the_roofline(name):
    """No share of a peak beyond what tables of kernels, some of which fit in caches, show."""
    curve = devices.load(name)
    family = family_of(name)
    same = {"reduce": "all", "combine": "dispatch"}
    head = family.split("-")[0]
    counts = COUNTS[same.get(head, head)]
    device = NVLINK if family in LINKED else H200
    seconds = float(FAMILIES[family].seconds(curve, device, **counts))
    assert seconds > float(FAMILIES[family].seconds(Curve(), device, **counts))
    more = {"hbm_bytes_per_s", "bf16_flops", "fp8_flops"} if device is H200 else {"bytes_per_s"}
    faster = dataclasses.replace(device, **{n: 2.0 * getattr(device, n) for n in more})
    assert float(FAMILIES[family].seconds(curve, faster, **counts)) <= seconds


@pytest.mark.parametrize("name", [name for name in SHIPPED if "gemm" in name])
def test_no_product_beats_the_peaks(x64, name):
    """Whatever the shape: shares are at most 1, and the rest only adds."""
    m, n, k = (2.0 ** np.random.default_rng(i).uniform(0, 15, 200) for i in range(3))
    is_fp8 = float("fp8" in name)
    curve = devices.load(name)
    found = operators.gemm_s(curve, H200, m, n, k, is_fp8=is_fp8)
    word, peak = (1.0, 1979e12) if is_fp8 else (2.0, 989e12)
    moved = word * (m * k + k * n) + 2.0 * m * n
    assert np.all(np.asarray(found) >= np.maximum(moved / 4.8e12, 2 * m * n * k / peak))


@pytest.mark.parametrize("kind", KINDS)
def test_every_constant_of_a_family_moves_its_time(x64, kind):
    family = FAMILIES[KINDS[kind]]
    device = NVLINK if KINDS[kind] in LINKED else H200
    base = {name: prior.value for name, prior in family.priors.items()}
    seconds = jax.jit(lambda v: family.seconds(v, device, **COUNTS[kind]))
    before = float(seconds(base))
    for name in base:
        assert float(seconds({**base, name: base[name] * 1.2})) != before, name


def test_attention_is_split_and_paged(x64):
    counts = COUNTS["attention"]
    few = Curve.create(split=1.0)
    many = Curve.create(split=64.0)
    times = [float(operators.decode_attention_s(c, H200, **counts)) for c in (few, many)]
    assert times[0] > times[1]
    odd = {**counts, "context_tokens": 4097.0}
    paged = operators.decode_attention_s(many, H200, **odd, page_tokens=64.0)
    whole = operators.decode_attention_s(many, H200, **{**counts, "context_tokens": 4160.0})
    assert float(paged) == pytest.approx(float(whole))


def test_fused_attention_never_writes_scores(x64):
    chip = devices.load("h200-chip")
    counts = {"n_token": 2048.0, "head_dim": 128.0}
    fused = float(operators.prefill_attention_s(
        Curve(), H200, cached_tokens=0.0, n_q=32.0, n_kv=8.0, **counts))  # fmt: skip
    apart = float(vector.unfused_attention_s(chip, n_head=32.0, context_tokens=2048.0, **counts))
    assert apart > 2 * fused
    assert float(vector.rotary_s(chip, 1e6)) == pytest.approx(4e6 / 4.8e12)
    assert float(vector.gated_s(chip, 1e6)) == pytest.approx(6e6 / 4.8e12)


def test_dispatch_sends_a_token_once_to_a_gpu(x64):
    """8 experts on 8 GPUs lie on 8 (1 - (7/8)^8) = 5.25 of them."""
    taken = operators.dispatch_s(Curve(), 450e9, **{**COUNTS["dispatch"], "n_token": 1e6})
    places = 8 * (1 - (7 / 8) ** 8)
    assert float(taken) == pytest.approx(1e6 * 4096 * places * 7 / 8 / 450e9)


PRIORS = {"slope": Prior(1.0, 1.0), "offset": Prior(1.0, 0.5), "still": Prior(3.0, 0.0)}


def line(constants, rows):
    return constants["slope"] * rows["x"] + constants["offset"] + 0.0 * constants["still"]


def test_a_fit_recovers_its_constants(x64):
    x = np.linspace(1.0, 9.0, 40)
    y = 2.0 * x + 0.5
    y[::10] *= 3.0  # rows that measure something else
    found = fit(line, {"x": x}, y, PRIORS, row_weight=10.0)
    assert found["slope"] == pytest.approx(2.0, rel=0.02)
    assert 0.4 < found["offset"] < 0.7
    assert found["still"] == 3.0


def test_a_fit_without_rows_is_the_prior(x64):
    x = np.linspace(1.0, 9.0, 40)
    found = fit(line, {"x": x}, x, PRIORS, weight=np.zeros(40))
    assert found == pytest.approx({"slope": 1.0, "offset": 1.0, "still": 3.0})


def test_a_group_left_out_does_not_help_itself(x64):
    x = np.linspace(1.0, 9.0, 40)
    group = np.arange(40) % 2
    y = np.where(group, 2.0, 4.0) * x
    error = left_out(line, {"x": x}, y, PRIORS, group, row_weight=10.0)
    assert np.median(error[group == 1]) == pytest.approx(1.0, abs=0.1)  # fitted to 4, measured 2
    assert np.median(error[group == 0]) == pytest.approx(-0.5, abs=0.1)


def test_area_against_llmcompass(reference, x64):
    """GA100's breakdown to six digits."""
    golden = json.loads((reference / "golden" / "area.json").read_text())["GA100"]
    chip = dataclasses.replace(devices.load("a100-80gb-chip"), n_core=128.0, l2_bytes=48.0 * 2**20)
    found = {name: float(value) for name, value in area.die_mm2(chip).items()}
    assert sum(found.values()) == pytest.approx(golden["total_mm2"], rel=1e-6)
    core, io = golden["core_breakdown_mm2"], golden["io_die"]
    theirs_of = {
        "control": "control_area", "vector": "alu_area", "array": "sa_area",
        "register": "regfile_area", "local_buffer": "local_buffer_area",
    }  # fmt: skip
    for name, theirs in theirs_of.items():
        assert found[name] == pytest.approx(128 * core[theirs], rel=1e-6), name
    assert found["global_buffer"] == pytest.approx(io["global_buffer_area"], rel=1e-6)
    assert float(area.die_usd(826.8)) == pytest.approx(424, rel=0.01)
    assert float(area.memory_usd(80e9)) == pytest.approx(560)


def test_energy_by_cause(x64):
    found = energy.operator_j(H200, flop=989e12, moved=4.8e12, sent=1e9)
    assert float(sum(found.values())) == pytest.approx(700 + 1e9 * 40e-12, rel=1e-6)
    half = energy.operator_j(H200, flop=989e12, moved=0.0, is_fp8=1.0)
    assert float(half["compute"]) == pytest.approx(float(found["compute"]) * 989 / 1979)


def test_curves_have_gradients(x64):
    slope = jax.grad(lambda c: operators.gemm_s(c, H200, 64.0, 4096.0, 4096.0))(
        jax.tree.map(jnp.asarray, devices.load("h200-vllm-gemm-bf16"))
    )
    assert all(np.isfinite(leaf) for leaf in jax.tree.leaves(slope))
    assert float(slope.fixed_s) == 1.0
