"""HBF `evaluate` against hand-worked numbers (research/flashaccel.md)."""

import math

import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core.metrics import LIMITS
from jaxmem.hbf import energy, layout, timing

LONG = {"input_tokens": 15_000, "output_tokens": 6_000}


def design(llm="qwen3-235b-a22b", device="8xCSI", **fields):
    return jm.hbf.Design.create(device=device, llm=llm, **fields)


def test_405b_on_h200_is_bound_by_capacity():
    """The paper's 30 requests; 29 with full lengths and decimal GB."""
    m = jm.hbf.evaluate(design("llama3.1-405b", "8xH200"), jm.Serve.create(**LONG))
    assert float(m.batch) in (29, 30)
    assert int(m.limit) == LIMITS["capacity"]


def test_405b_on_csi_is_bound_by_the_slo():
    d = design("llama3.1-405b")
    m = jm.hbf.evaluate(d, jm.Serve.create(**LONG, slo_s=0.05))
    assert int(m.limit) == LIMITS["slo"]
    assert float(m.latency_s) <= 0.05


@pytest.mark.parametrize("llm", ["llama3.1-405b", "qwen3-235b-a22b", "deepseek-v3"])
@pytest.mark.parametrize("slo_s", [0.05, 0.1])
def test_next_batch_breaks_the_objective(llm, slo_s):
    d = design(llm)
    m = jm.hbf.evaluate(d, jm.Serve.create(**LONG, slo_s=slo_s))
    dp = 1 if llm.startswith("llama") else 8
    assert float(m.batch) % dp == 0
    assert float(m.latency_s) <= slo_s
    # Serve charges the prompt's write-back too, so its own step time is what must break.
    import dataclasses

    import jax

    from jaxmem.hbf.serve import step_time
    from jaxmem.llm import resolve
    from jaxmem.xpu.step import total_s

    with jax.enable_x64(True):
        full = dataclasses.replace(d, parallel=resolve(d.parallel, d.llm, d.device.n_gpu))
        work = jm.Serve.create(**LONG, slo_s=slo_s)
        assert float(total_s(step_time(full, work, float(m.batch) / dp))) <= slo_s
        assert float(total_s(step_time(full, work, float(m.batch) / dp + 1))) > slo_s


def test_peak_rates():
    d = design()
    page = timing.read_s(d, layout.Load(mean=1.0, fullest=1.0, replicated_bytes=0.0))
    hyperpage = layout.n_megaplane(d) * layout.megapage_bytes(d)
    assert float(page) == pytest.approx(4e-6)
    assert float(hyperpage / page) == pytest.approx(4.608e12)
    assert float(hyperpage / timing.program_s(d, hyperpage)) == pytest.approx(245.76e9)
    assert float(layout.n_megaplane(d)) == 144


def test_kv_block_and_megablock():
    """N = 32 tokens for 405B, 64 for Qwen3-235B at M = 32; a megablock of 256 pages is 32 MiB"""
    d = design()
    assert float(layout.block_tokens(d, 4096.0)) == 32
    assert float(layout.block_tokens(d, 2048.0)) == 64
    assert float(layout.block_tokens(d, 1152.0)) == 113
    assert float(layout.megablock_bytes(d)) == 32 * 2**20


def test_imbalance_falls_with_megaplane_size():
    """1.522 at M = 1, 1.367 at 32, 1.306 at 96 for 100e9 B (research/flashaccel.md section 2)."""
    for m, expected in ((1, 1.522), (8, 1.434), (32, 1.367), (96, 1.306)):
        d = design(planes_per_megaplane=m, is_replicated=0)
        balls = 100e9 / 94 / 4096 / 4608  # the study's balls are pages of 4,096 B on planes
        load = layout.kv_load(d, balls * layout.n_megaplane(d) * layout.megapage_bytes(d))
        assert float(load.fullest / load.mean) == pytest.approx(expected, abs=0.008)


def test_replication_moves_a_few_percent():
    """2.84 % at a mean of 197 megapages."""
    d = design()
    n_bytes = 197 * layout.n_megaplane(d) * layout.megapage_bytes(d)
    load = layout.kv_load(d, n_bytes)
    assert float(load.replicated_bytes / n_bytes) == pytest.approx(0.0284, abs=1e-4)
    assert float(load.fullest) == pytest.approx(197)


def test_batch_256_is_near_hbm():
    """FlashAccel VII-C: within about 4 % of HBM at the same batch, far off without its parts."""
    work = jm.Decode.create(batch=256, context_tokens=10_640)
    hbm = float(jm.hbf.evaluate(design(device="8xH200"), work).latency_s)
    full = float(jm.hbf.evaluate(design(), work).latency_s)
    assert full / hbm == pytest.approx(1.0, abs=0.06)
    plain = float(jm.hbf.evaluate(design(is_prefetched=0, is_replicated=0), work).latency_s)
    assert plain > 1.5 * full


def test_endurance_of_the_paper():
    """1,152 GiB x 1e6 P/E at three days; 988 MiB/s for five years is 148,571 TiB."""
    d = design()
    assert float(energy.program_erase_cycles(d)) == pytest.approx(1e6)
    year_s = 365 * 86400
    assert float(energy.program_erase_cycles(design(retention_s=3 * year_s))) == pytest.approx(1e5)
    life_s = float(energy.lifetime_s(d, 988 * 2**20))
    assert life_s == pytest.approx(1152 * 2**30 * 1e6 / (988 * 2**20))
    assert life_s > 5 * year_s


def test_area():
    """A stack takes 149 mm2 at M = 32, the array die; smaller M lets control outgrow it."""
    assert float(energy.area_mm2(design())) == pytest.approx(6 * 149, rel=0.003)
    assert float(energy.area_mm2(design(planes_per_megaplane=1))) > 6 * 150


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"planes_per_megaplane": 5}, "invalid"),
        (
            {
                "parallel": jm.hbf.Design.create(device="8xH200", llm="llama3-8b").parallel.create(
                    tp=3
                )
            },
            "invalid",
        ),
        ({"device": "8xH200", "llm": "kimi-k2"}, "capacity"),
        ({"device": "8xCLI", "planes_per_megaplane": 96, "block_pages": 4096}, "hbm_buffer"),
    ],
)
def test_infeasible_points_say_why(change, limit):
    m = jm.hbf.evaluate(design(**change), jm.Decode.create(batch=512, context_tokens=8192))
    assert not bool(m.feasible)
    assert int(m.limit) == LIMITS[limit]
    assert math.isnan(float(m.latency_s))


def test_parts_add_up():
    m = jm.hbf.evaluate(design(), jm.Serve.create(**LONG, slo_s=0.1))
    assert sum(map(float, m.parts.values())) == pytest.approx(float(m.latency_s))
    assert sum(map(float, m.energy_parts.values())) == pytest.approx(float(m.energy_j))
    assert np.isfinite(float(m.lifetime_s))
