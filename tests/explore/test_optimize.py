"""The search: exact, constrained, better than chance, and equal to the exhaustive best."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmem as jm

pytestmark = pytest.mark.slow

PIM = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
HBF = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")
DECODE = jm.Decode.create(batch=8, context_tokens=1024)
SERVE = jm.Serve.create(input_tokens=2000, output_tokens=500, slo_s=0.1)
PIM_SPACE = {
    "ch_per_head": [1, 2, 4, 8, 16, 32],
    "n_o1p2": [1, 2, 4, 8, 16, 32, 64],
    "block_tokens": [16, 32, 64],
    "workload.batch": list(range(1, 97)),
}


def test_finds_the_exhaustive_best_under_a_constraint():
    bound = jm.at_most("latency_s", 0.03)
    ds = jm.sweep(jm.pim.evaluate, PIM, DECODE, PIM_SPACE)
    known = jm.best(ds, maximize="tokens_per_s", subject_to=[bound])
    found = jm.optimize(jm.pim.evaluate, PIM, DECODE, PIM_SPACE, maximize="tokens_per_s",
                        subject_to=[bound], compare_to=float(known.tokens_per_s))  # fmt: skip
    assert found.feasible
    assert float(found.metrics.latency_s) <= 0.03
    assert found.gap <= 0.001
    again = jm.pim.evaluate(found.design, found.workload)
    assert float(again.tokens_per_s) == float(found.metrics.tokens_per_s)
    assert found.n_evaluation < ds.latency_s.size


def test_continuous_fields_names_and_several_bounds():
    space = {
        "planes_per_megaplane": [1, 2, 4, 8, 16, 32, 48, 96],
        "expert_read": ["all", "touched"],
        "workload.slo_s": jm.between(0.03, 0.2, log=True),
    }
    found = jm.optimize(
        jm.hbf.evaluate, HBF, SERVE, space, maximize="tokens_per_s",
        subject_to=[jm.at_most("latency_s", 0.08), jm.at_most("hbm_buffer_bytes", 60e9)],
    )  # fmt: skip
    assert found.feasible
    assert float(found.metrics.latency_s) <= 0.08 * (1 + 1e-9)
    assert float(found.metrics.hbm_buffer_bytes) <= 60e9 * (1 + 1e-9)
    assert "latency_s" in found.binding
    assert found.choice["expert_read"] in ("all", "touched")
    assert set(found.sensitivity) == {"planes_per_megaplane", "workload.slo_s"}


def test_gradients_earn_their_keep():
    """The same search with random directions, at equal evaluations, finds clearly worse designs."""
    space = {
        "device.flash.read_s": jm.between(2e-6, 30e-6, log=True),
        "device.gpu.matmul_efficiency": jm.between(0.2, 0.9),
        "device.scale_up.bytes_per_s": jm.between(50e9, 900e9, log=True),
        "device.gpu.operator_s": jm.between(1e-7, 1e-5, log=True),
        "sram_bytes": jm.between(1e6, 64e6, log=True),
        "device.gpu.attention_efficiency": jm.between(0.2, 0.9),
    }
    work = jm.Decode.create(batch=512, context_tokens=4000)

    def at_random(gradient, key):
        return jax.random.normal(key, gradient.shape)

    options = {"minimize": "latency_s", "n_start": 4, "n_step": 24, "polish": False}
    ratio = []
    for seed in range(3):
        true = jm.optimize(jm.hbf.evaluate, HBF, work, space, seed=seed, **options)
        chance = jm.optimize(
            jm.hbf.evaluate, HBF, work, space, seed=seed, direction=at_random, **options
        )
        assert true.n_evaluation == chance.n_evaluation
        ratio.append(float(chance.metrics.latency_s / true.metrics.latency_s))
    assert np.median(ratio) > 1.1, ratio


def test_says_when_nothing_qualifies():
    found = jm.optimize(
        jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [1, 2, 4]}, minimize="latency_s",
        subject_to=[jm.at_most("latency_s", 1e-9)], n_start=2, n_step=4,
    )  # fmt: skip
    assert not found.feasible


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"minimize": "latncy_s"}, "latency_s"),
        ({}, "exactly one"),
        ({"minimize": "latency_s", "subject_to": [jm.at_most("energy", 1)]}, "energy_j"),
    ],
)
def test_bad_goals_are_refused_by_name(change, words):
    with pytest.raises(jm.InputError, match=words):
        jm.optimize(jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [1, 2]}, **change)


def test_any_record_of_metrics_can_be_searched():
    """`optimize` knows nothing of PIM or flash: a user's own function of two records will do."""
    fn = jm.pim.evaluate

    def cost(design, workload):
        m = fn(design, workload)
        import dataclasses

        return dataclasses.replace(m, energy_j=jnp.asarray(m.energy_j * m.latency_s))

    found = jm.optimize(
        cost, PIM, DECODE, {"ch_per_head": [1, 2, 4, 8]}, minimize="energy_j", n_start=4
    )
    assert found.feasible
