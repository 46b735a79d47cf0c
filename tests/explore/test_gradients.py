"""Gradients of both `evaluate`s in every swept leaf: finite, exact where smooth, useful else."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core import design as records
from jaxmem.core.program import unwrapped

pytestmark = pytest.mark.slow

PIM = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
HBF = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")

# field -> values to sample from, in lattice order
PIM_LATTICE = {
    "ch_per_head": [1, 2, 4, 8],
    "policy.own_blocks": [1, 2, 4, 8, 16, 32, 64],
    "block_tokens": [16, 32, 64, 128],
}
HBF_LATTICE = {
    "planes_per_megaplane": [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 96],
    "device.n_stack": [2, 3, 4, 5, 6, 7, 8],
}
PIM_SMOOTH = [
    "device.clock_s", "device.timing.n_mode_change", "device.host.hbm_bytes_per_s",
    "device.host.operator_s", "device.energy.mac_all_bank_j", "policy.overlap",
]  # fmt: skip
HBF_SMOOTH = [
    "device.flash.read_s", "device.flash.read_j_per_byte", "device.flash.program_s",
    "device.scale_up.bytes_per_s", "device.gpu.operator_s", "retention_s", "device.gpu.tdp_w",
]  # fmt: skip
METRICS = ["latency_s", "energy_j", "tokens_per_s"]


def values_of(fn, design, workload, paths, metrics):
    """A function of the values at `paths` alone: some metrics."""

    def evaluate(*values):
        d, w = design, workload
        for path, value in zip(paths, values, strict=True):
            if path.startswith("workload."):
                w = records.put(w, path.removeprefix("workload."), value)
            else:
                d = records.put(d, path, value)
        m = unwrapped(fn)(d, w)
        return jnp.stack([jnp.asarray(getattr(m, name)) for name in metrics])

    return evaluate


CASES = {
    "pim decode": (
        jm.pim.evaluate, PIM, jm.Decode.create(batch=8, context_tokens=1024),
        {**PIM_LATTICE, "workload.batch": list(range(1, 65)),
         "workload.context_tokens": list(range(128, 4096, 128))},
        ["latency_s", "energy_j", "tokens_per_s"],
    ),
    "pim known runs": (
        jm.pim.evaluate, PIM, jm.Decode.create(batch=8, context_tokens=1024),
        {"expected_run_blocks": list(range(4, 65, 4)),
         "workload.context_tokens": list(range(128, 4096, 128))},
        ["latency_s", "energy_j", "tokens_per_s"],
    ),
    "pim serve": (
        jm.pim.evaluate, PIM, jm.Serve.create(input_tokens=1024, output_tokens=256, slo_s=0.04),
        {**PIM_LATTICE, "workload.input_tokens": list(range(128, 4096, 128)),
         "workload.slo_s": list(np.linspace(0.02, 0.08, 40))},
        ["batch", "tokens_per_s"],
    ),
    "hbf decode": (
        jm.hbf.evaluate, HBF, jm.Decode.create(batch=64, context_tokens=4096),
        {**HBF_LATTICE, "workload.batch": list(range(8, 1024, 8)),
         "workload.context_tokens": list(range(512, 16384, 512))},
        ["latency_s", "energy_j", "tokens_per_s"],
    ),
    "hbf serve": (
        jm.hbf.evaluate, HBF, jm.Serve.create(input_tokens=2000, output_tokens=500, slo_s=0.1),
        {**HBF_LATTICE, "workload.input_tokens": list(range(512, 16384, 512)),
         "workload.output_tokens": list(range(256, 8192, 256)),
         "workload.slo_s": list(np.linspace(0.03, 0.2, 40))},
        ["batch", "tokens_per_s"],
    ),
}  # fmt: skip
"""Under an objective the batch takes up every slack, so a step's own time only saws below it."""


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("case", CASES)
def test_sign_of_the_secant_over_one_lattice_step(case):
    """At 90 % or more of random points, for every lattice field and metric."""
    fn, design, workload, lattice, metrics = CASES[case]
    paths = list(lattice)
    evaluate = values_of(fn, design, workload, paths, metrics)
    forward = jax.jit(jax.vmap(evaluate))
    slope = jax.jit(jax.vmap(jax.jacfwd(evaluate, argnums=tuple(range(len(paths))))))
    table = [np.asarray(v, float) for v in lattice.values()]
    rng = np.random.default_rng(0)
    index = np.stack([rng.integers(0, len(t) - 1, 300) for t in table])
    here = [t[i] for t, i in zip(table, index, strict=True)]
    base, slopes = np.asarray(forward(*here)), [np.asarray(s) for s in slope(*here)]
    report = {}
    for i, path in enumerate(paths):
        there = list(here)
        there[i] = table[i][index[i] + 1]
        secant = np.asarray(forward(*there)) - base
        for m, metric in enumerate(metrics):
            assert np.isfinite(slopes[i][:, m]).all(), (path, metric)
            # A change below 0.01 % counts as none; NaN compares false.
            moves = np.abs(secant[:, m]) > 1e-4 * np.abs(base[:, m])
            if moves.sum() >= 20:
                same = np.sign(secant[:, m]) == np.sign(slopes[i][:, m])
                report[path, metric] = float(same[moves].mean())
    assert len(report) >= len(paths)
    bad = {k: v for k, v in report.items() if v < 0.9}
    assert not bad, bad


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("system", ["pim", "hbf"])
def test_equal_to_finite_differences_where_smooth(system):
    if system == "pim":
        fn, design, paths = jm.pim.evaluate, PIM, PIM_SMOOTH
        design = records.put(design, "expected_run_blocks", np.float64(20.0))
        design = records.put(design, "policy.overlap", np.float64(0.3))
        workload = jm.Decode.create(batch=8, context_tokens=1024)
    else:
        fn, design, paths = jm.hbf.evaluate, HBF, HBF_SMOOTH
        workload = jm.Decode.create(batch=256, context_tokens=8000)
    evaluate = values_of(fn, design, workload, paths, METRICS)
    at = [float(records.get(design, p)) for p in paths]
    slopes = jax.jit(jax.jacrev(evaluate, argnums=tuple(range(len(paths)))))(*at)
    forward = jax.jit(evaluate)
    moved = 0
    for i, path in enumerate(paths):
        step = 1e-5 * abs(at[i])
        up, down = list(at), list(at)
        up[i], down[i] = at[i] + step, at[i] - step
        difference = (np.asarray(forward(*up)) - np.asarray(forward(*down))) / (2 * step)
        scale = np.abs(np.asarray(forward(*at))) / at[i]
        np.testing.assert_allclose(slopes[i] / scale, difference / scale, atol=1e-6, err_msg=path)
        moved += int(np.abs(difference / scale).max() > 1e-9)
    assert moved >= len(paths) - 1  # retention touches none of the three


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("system", "kind"),
    [
        ("pim", "serve"),
        ("hbf", "serve"),
        ("hbf", "decode"),
        pytest.param("pim", "decode", marks=pytest.mark.deep),
    ],
)
def test_finite_in_every_leaf_everywhere(system, kind):
    """Reverse mode, every float leaf at once, over feasible, infeasible and edge points."""
    if system == "pim":
        fn, designs = jm.pim.evaluate, [PIM]
    else:
        plain = records.put(HBF, "device", records.put(HBF.device, "n_stack", np.float64(0)))
        fn, designs = jm.hbf.evaluate, [HBF, plain]
    if kind == "decode":
        sizes = ((1, 1), (1, 16), (32, 2048), (4096, 10**6))
        works = [jm.Decode.create(batch=b, context_tokens=c) for b, c in sizes]
    else:
        works = [jm.Serve.create(input_tokens=5000, slo_s=s) for s in (1e-6, 0.05, np.inf)]
    leaves, treedef = jax.tree.flatten((designs[0], works[0]))
    real = [i for i, x in enumerate(leaves) if np.issubdtype(np.asarray(x).dtype, np.floating)]

    def total(values, rest):
        full = list(rest)
        for i, v in zip(real, values, strict=True):
            full[i] = v
        m = unwrapped(fn)(*jax.tree.unflatten(treedef, full))
        return sum(jnp.nan_to_num(getattr(m, name)) for name in METRICS)

    slope = jax.jit(jax.grad(total))
    for design in designs:
        for work in works:
            values = [jnp.asarray(x) for x in jax.tree.leaves((design, work))]
            slopes = slope([values[i] for i in real], values)
            for i, s in zip(real, slopes, strict=True):
                keys = jax.tree_util.tree_flatten_with_path((design, work))[0][i][0]
                assert np.isfinite(s).all(), (jax.tree_util.keystr(keys), work)


def test_batch_moves_with_the_objective():
    """The implicit derivative against a wide secant of the exact, stepped batch."""
    work = jm.Serve.create(input_tokens=8110, output_tokens=2530, slo_s=0.1)

    def batch(slo_s):
        return jm.hbf.evaluate(HBF, dataclasses.replace(work, slo_s=slo_s)).batch

    slope = float(jax.grad(batch)(0.1))
    secant = (float(batch(np.float64(0.11))) - float(batch(np.float64(0.09)))) / 0.02
    assert slope == pytest.approx(secant, rel=0.05)
