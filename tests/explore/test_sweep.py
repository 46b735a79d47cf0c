"""Sweeps: one compile, rows equal to scalar calls, honest labels."""

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core import program

PIM = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
HBF = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")
DECODE = jm.Decode.create(batch=8, context_tokens=1024)
SERVE = jm.Serve.create(input_tokens=2000, output_tokens=500, slo_s=0.05)

PIM_SPACE = {
    "llm": ["llama3-8b", "opt-6.7b", "gemma2-9b", "deepseek-v2-lite"],
    "policy": ["patton", "patton-wo-cz"],
    "policy.write_issue": ["channel_all_bank", "stock_all_bank"],
    "ch_per_head": [1, 4, 8],
    "n_o1p2": [4, 16],
    "block_tokens": [16, 32],
    "expected_run_blocks": [8, 64],
    "workload.batch": [1, 32],
    "workload.context_tokens": [100, 2048],
}
HBF_SPACE = {
    "llm": ["llama3.1-405b", "deepseek-v3", "gpt-oss-120b"],
    "device": ["8xH200", "8xCSI", "16xCSI", "4xCLI"],
    "planes_per_megaplane": [1, 8, 32, 96],
    "expert_read": ["all", "touched"],
    "is_replicated": [0, 1],
    "workload.slo_s": [0.05, 0.1],
    "workload.input_tokens": [1000, 15000],
}


def scalar(fn, design, workload, space, index):
    from jaxmem.core import design as records

    for (path, values), i in zip(space.items(), index, strict=True):
        if path.startswith("workload."):
            workload = records.with_value(workload, path.removeprefix("workload."), values[i])
        else:
            design = records.with_value(design, path, values[i])
    return fn(design, workload)


@pytest.mark.parametrize(
    ("fn", "design", "workload", "space"),
    [
        (jm.pim.evaluate, PIM, DECODE, {k: v for k, v in PIM_SPACE.items() if k != "policy"}),
        (jm.hbf.evaluate, HBF, SERVE, HBF_SPACE),
    ],
    ids=["pim", "hbf"],
)
def test_one_compile_and_every_row_is_the_scalar_call(fn, design, workload, space):
    module = fn.__module__
    before = program.TRACES.get(module, 0)
    ds = jm.sweep(fn, design, workload, space, chunk_points=512)
    assert program.TRACES.get(module, 0) - before <= 1  # 0 where another test compiled it
    rng = np.random.default_rng(1)
    for _ in range(12):
        index = [int(rng.integers(len(v))) for v in space.values()]
        one = scalar(fn, design, workload, space, index)
        row = ds.isel(dict(zip(ds.sizes, index, strict=True)))
        for name in ds.data_vars:
            head, _, rest = name.partition(".")
            value = getattr(one, head)
            value = value[rest] if rest else value
            np.testing.assert_array_equal(row[name].values, value, err_msg=f"{name} at {index}")


def test_whole_policies_are_one_compile():
    before = program.TRACES.get("jaxmem.pim.serve", 0)
    ds = jm.sweep(
        jm.pim.evaluate, PIM, DECODE,
        {"policy": ["patton", "patton-wo-cz", "patton-wo-o2v"], "ch_per_head": [2, 4]},
    )  # fmt: skip
    assert program.TRACES["jaxmem.pim.serve"] - before <= 1  # 0 where another test compiled it
    assert list(ds.policy.values) == ["patton", "patton-wo-cz", "patton-wo-o2v"]
    assert (
        ds.sel(policy="patton-wo-cz").latency_s.values[1]
        != ds.sel(policy="patton").latency_s.values[1]
    )


def test_chunks_do_not_matter():
    space = {"ch_per_head": [1, 2, 4, 8, 16], "workload.batch": list(range(1, 300))}
    whole = jm.sweep(jm.pim.evaluate, PIM, DECODE, space)
    for chunk in (7, 1024, 1500):
        part = jm.sweep(jm.pim.evaluate, PIM, DECODE, space, chunk_points=chunk)
        for name in whole.data_vars:
            np.testing.assert_array_equal(part[name].values, whole[name].values)


def test_labels_units_and_limits():
    ds = jm.sweep(jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [1, 64], "n_o1p2": [16]})
    assert ds.latency_s.dims == ("ch_per_head", "n_o1p2")
    assert ds.latency_s.attrs["unit"] == "s"
    assert ds["parts.qk"].attrs["unit"] == "s"
    assert ds.attrs["limits"][int(ds.limit[1, 0])] == "layout"
    assert np.isnan(ds.latency_s.values[1, 0])


def test_samples_repeat_and_fill_the_range():
    space = {"planes_per_megaplane": [1, 8, 32], "workload.slo_s": jm.between(0.03, 0.2, log=True)}
    one = jm.sweep(jm.hbf.evaluate, HBF, SERVE, space, n_sample=64, seed=3)
    two = jm.sweep(jm.hbf.evaluate, HBF, SERVE, space, n_sample=64, seed=3)
    assert one.identical(two)
    slo = np.sort(one["workload.slo_s"].values)
    assert slo[0] < 0.032
    assert slo[-1] > 0.19
    assert set(one.planes_per_megaplane.values) == {1, 8, 32}


def test_progress_counts_every_point():
    seen = []
    space = {"workload.batch": list(range(1, 101))}
    jm.sweep(jm.pim.evaluate, PIM, DECODE, space, chunk_points=40,
             progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    assert seen == [(40, 100), (80, 100), (100, 100)]


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "at least one field"),
        ({"ch_per_hed": [1]}, "ch_per_head"),
        ({"workload.bach": [1]}, "workload.batch"),
        ({"ch_per_head": []}, "at least one value"),
        ({"ch_per_head": 4}, "a list of values"),
        ({"ch_per_head": [1, -2]}, "whole number"),
        ({"policy": ["paton"]}, "patton"),
        ({"workload.batch": jm.between(1, 9)}, "n_sample"),
        ({"n_o1p2": [1], "policy.own_blocks": [2]}, "each field once"),
        ({"policy": ["patton"], "policy.own_blocks": [2]}, "each field once"),
    ],
)
def test_bad_spaces_are_refused_by_name(space, words):
    with pytest.raises(jm.InputError, match=words) as caught:
        jm.sweep(jm.pim.evaluate, PIM, DECODE, space)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("system", ["pim", "hbf"])
def test_public_models_vmap_jit_and_keep_the_callers_precision(system):
    fn, base = (jm.pim.evaluate, PIM) if system == "pim" else (jm.hbf.evaluate, HBF)
    for work, path in ((DECODE, "batch"), (SERVE, "input_tokens")):
        import dataclasses

        def at(x, work=work, path=path):
            return fn(base, dataclasses.replace(work, **{path: x}))

        many = jax.jit(jax.vmap(at))(np.asarray([16.0, 64.0, 800.0]))
        assert many.latency_s.dtype == np.float32
        for i, x in enumerate((16.0, 64.0, 800.0)):
            one = at(x)
            np.testing.assert_allclose(many.latency_s[i], one.latency_s, rtol=2e-5)
