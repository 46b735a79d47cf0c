"""The exact engine: measured cases, the plain twin, sensitivities, gradients, properties."""

import dataclasses
import gzip
import importlib.util
import json
import random
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core.design import specs
from jaxmem.core.errors import InputError
from jaxmem.devices.dram import PimTiming
from jaxmem.pim import constraints, engine, isa, streams, timing, trace_form

pytestmark = pytest.mark.slow

AIM = jm.devices.load("aim-gddr6-16gib")
DATA = Path(jm.__file__).parent / "validation" / "data"


def _twin():
    path = Path(__file__).parents[1] / "reference" / "aim.py"
    spec = importlib.util.spec_from_file_location("reference_aim", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


twin = _twin()


def stream(instructions):
    return trace_form.parse_case(json.dumps({"instrs": instructions}), AIM).stream


def with_timing(**cycles):
    return dataclasses.replace(AIM, timing=dataclasses.replace(AIM.timing, **cycles))


def counts(result):
    return {name: int(n) for name, n in result.counts.items() if int(n)}


def measured(name):
    with gzip.open(DATA / f"{name}.jsonl.gz", "rt") as lines:
        return [trace_form.parse_case(text, AIM) for text in lines]


@pytest.mark.parametrize("name", ["aim", "aim_refresh"])
def test_measured_cases_are_exact(name):
    """Cycles and per-command counts of every case measured on the public simulator."""
    wrong = []
    for case in measured(name):
        found = timing.run(case.stream, AIM, "simulator", name == "aim_refresh")
        if (int(found.cycles), counts(found)) != (case.cycles, dict(case.counts)):
            wrong.append((case.id, int(found.cycles), case.cycles))
    assert not wrong


def differential(seed, longest):
    """A random stream under random timing, mode and refresh, against the plain twin."""
    rng = random.Random(f"timing {seed}")
    work = twin.random_stream(seed, 6 + seed % (longest - 5), ordinary=seed % 3 > 0)
    changed = {}
    if seed % 2:
        changed = {k: max(0, v + rng.randrange(-1, 4)) for k, v in twin.TIMING.items()}
        changed["n_refi"] = rng.randrange(600, 3333)
    refreshes, simulates = seed % 5 > 1, seed % 4 < 2
    rules = twin.Rules(refreshes=refreshes)
    if not simulates:
        rules = twin.Rules(True, False, refreshes, False)
    expected = twin.run(work, rules, changed)
    mode = "simulator" if simulates else "device"
    device = with_timing(**{k: np.float64(v) for k, v in changed.items()})
    found = timing.run(stream(work), device, mode, refreshes)
    assert (int(found.cycles), counts(found)) == expected, seed


def test_equals_the_plain_twin():
    for seed in range(300):
        differential(seed, 18)


def test_a_read_behind_a_sync_holds_the_next_back():
    """The simulator's SYNC leaves before an active read is issued; EOC then waits for its data."""
    bank = {"mask": 1 << 31, "bank": 15}
    work = [
        {"op": "MAC_SBK", **bank, "row": 7156, "opsize": 40},
        {"op": "RD_SBK", "mask": 1 << 31, "bank": 5, "row": 11916},
        {"op": "RD_SBK", **bank, "row": 1145},
        {"op": "SYNC"},
        {"op": "EOC"},
    ]
    assert twin.run(work)[0] == 268
    assert run_cycles(work, "simulator") == 268


@pytest.mark.deep
@pytest.mark.parametrize("first", range(1000, 11000, 1000))
def test_equals_the_plain_twin_at_length(first):
    for seed in range(first, first + 1000):
        differential(seed, 60)


@pytest.mark.parametrize(
    ("piece", "shares_gb", "cycles"),
    [(64, True, 592_896), (32, False, 594_818), (64, False, 759_010)],
)
def test_attention_of_one_layer(piece, shares_gb, cycles):
    """Llama-3-8B, batch 32, context 2048, contiguous, C = 4 (DESIGN section 6)."""
    work = streams.attention(gb_piece_bursts=piece, shares_gb=shares_gb)
    found = timing.run(work, AIM, "simulator")
    assert int(found.cycles) == cycles
    assert float(found.cause["mode_switch"]) == 294_944
    assert sum(map(float, found.cause.values())) == pytest.approx(cycles)


@pytest.mark.parametrize(("f", "cycles"), [(1, 414), (2, 484), (4, 624), (8, 904), (32, 2584)])
def test_fragmented_row(f, cycles):
    assert int(timing.run(streams.fragments(f), AIM).cycles) == cycles


# The general program, which short streams run, and those of long streams agree.
def test_long_streams_take_other_programs_to_the_same_end(monkeypatch):
    work = streams.attention(n_request=1, n_token=512, n_query=1)
    slow = timing.run(work, AIM, "simulator")
    monkeypatch.setattr(engine, "SMALLEST", 32)
    fast = timing.run(work, AIM, "simulator")
    same = jax.tree.map(lambda a, b: float(a) == float(b), slow, fast)
    assert all(jax.tree.leaves(same))


# Not observable: nRAS + nRP < nRC; no rule reads nCLGB; one ACT16 needs no nFAW; and without
# refresh, its two.
UNSEEN = {"n_ras", "n_cl_buffer", "n_faw"}


def unseen(case, fields, refreshes, more=2):
    """The fields of which `more` cycles leave a case's cycles as they are."""
    base = int(timing.run(case.stream, AIM, "simulator", refreshes).cycles)

    def cycles(field):
        changed = with_timing(**{field: getattr(AIM.timing, field) + more})
        return int(timing.run(case.stream, changed, "simulator", refreshes).cycles)

    return {field for field in fields if cycles(field) == base}


def test_every_observable_parameter_moves_some_case():
    cases = {case.id: case for case in measured("aim")}
    left = set(specs(PimTiming))
    for name in ("e_pim_18", "e_pim_11", "e_all_50", "e_all_36"):
        left = unseen(cases[name], left, False)
    assert left == UNSEEN | {"n_rfc", "n_refi"}
    refreshed = {case.id: case for case in measured("aim_refresh")}["e_pim_8"]
    assert unseen(refreshed, {"n_rfc", "n_refi"}, True, more=50) == set()


def test_activation_by_four_brings_n_faw_in():
    rules = dataclasses.replace(engine.SIMULATOR, activates_by_four=1)
    work = streams.fragments(1)
    found = timing.run(work, AIM, rules=rules)
    assert int(found.cycles) == 414 + 3 * 28
    more = timing.run(work, with_timing(n_faw=AIM.timing.n_faw + 2), rules=rules)
    assert int(more.cycles) == 414 + 3 * 30


@pytest.mark.parametrize("seed", range(1, 7))
def test_forward_gradients_are_finite_differences(x64, seed):
    """In every timing parameter at once along random directions, away from ties."""
    rng = np.random.default_rng(seed)
    work = stream(twin.random_stream(seed, 24, ordinary=seed % 2 > 0))
    base = jax.tree.map(lambda v: np.float64(v) + rng.uniform(0, 0.2), AIM.timing)
    along = jax.tree.map(lambda v: np.float64(rng.normal()), AIM.timing)

    def cycles(t):
        return timing.run(work, dataclasses.replace(AIM, timing=t), "simulator").cycles

    def at(step):
        here = jax.tree.map(lambda v, d: v + step * d, base, along)
        return map(float, jax.jvp(cycles, (here,), (along,)))

    step = 1e-7
    (value, slope), (ahead, _), (behind, _) = at(0.0), at(step), at(-step)
    assert value > 0
    assert np.isfinite(slope)
    assert slope == pytest.approx((ahead - behind) / (2 * step), rel=1e-3)


def test_variants_are_one_program():
    work = streams.fragments(4)
    variants = [2.0, 8.0, 32.0]
    expected = [
        int(timing.run(work, with_timing(n_mode_change=n), "simulator").cycles) for n in variants
    ]
    found = jax.vmap(lambda n: timing.run(work, with_timing(n_mode_change=n), "simulator").cycles)
    assert found(np.array(variants, np.float32)).tolist() == expected
    size = engine._run._cache_size()
    for f, n in ((1, 5), (2, 6), (16, 7)):
        timing.run(streams.fragments(f), with_timing(n_mode_change=n), "simulator")
    assert engine._run._cache_size() == size


# ---------------------------------------------------------------- properties


def run_cycles(instructions, mode="device", **kw):
    return int(timing.run(stream(instructions), AIM, mode, **kw).cycles)


def test_device_mode_completes_writes():
    """W MEM; EOC: 3 cycles in the simulator, which never issues the write (gotcha 1)."""
    work = [{"op": "W_MEM", "ch": 0, "bank": 0, "row": 1}, {"op": "EOC"}]
    simulated = timing.run(stream(work), AIM, "simulator")
    assert (int(simulated.cycles), counts(simulated)) == (3, {"ACT": 1})
    real = timing.run(stream(work), AIM, "device")
    assert counts(real) == {"ACT": 1, "WR": 1}
    assert int(real.cycles) == 1 + 28 + 8 + 1  # ACT, tRCD, write latency, EOC


def test_device_mode_forwards_nothing():
    work = [{"op": "W_MEM", "ch": 0, "bank": b, "row": 1} for b in range(8)]
    work += [{"op": "R_MEM", "ch": 0, "bank": 9, "row": 5}, {"op": "EOC"}]
    assert "RD" not in counts(timing.run(stream(work), AIM, "simulator"))
    assert counts(timing.run(stream(work), AIM, "device"))["RD"] == 1


def test_device_mode_precharges_before_it_activates_all():
    one = {"mask": 1 << 31, "row": 3, "opsize": 1}
    work = [{"op": "MAC_SBK", "bank": 2, **one}, {"op": "MAC_ABK", **one}, {"op": "EOC"}]
    assert "PREA" not in counts(timing.run(stream(work), AIM, "simulator"))
    assert counts(timing.run(stream(work), AIM, "device"))["PREA"] == 1


def test_device_mode_refreshes_idle_channels_too():
    work = streams.attention(n_request=1, n_token=2048, n_query=1, ch_per_head=2, n_kv=4)
    found = timing.run(work, AIM, "device")
    assert int(found.counts["REFab"]) == 32 * (int(found.cycles) // 3333)
    assert float(found.cause["refresh"]) > 0
    plain = timing.run(work, AIM, "device", refresh=False)
    assert int(plain.cycles) < int(found.cycles) < 1.1 * int(plain.cycles)


def test_one_channel_or_all_take_the_same():
    for mask in (1 << 31, 1 << 3, 0xFFFFFFFF):
        assert int(timing.run(streams.fragments(8, mask=mask), AIM).cycles) == 904


def test_cycles_are_at_least_the_data():
    for seed in range(20):
        work = twin.random_stream(seed, 20)
        found = timing.run(stream(work), AIM, "device")
        load = isa.load(stream(work), AIM)
        assert int(found.cycles) >= AIM.timing.n_ccd * max(load.n_burst.max(), load.n_gb.max())
        assert all(float(n) >= 0 for n in found.cause.values())
        assert sum(map(float, found.cause.values())) == pytest.approx(int(found.cycles))
        assert int(found.row_activations) == 16 * int(found.counts["ACT16"]) + int(
            found.counts["ACT"]
        )
        assert 0 <= int(found.open_cycles) <= 32 * int(found.cycles)


def test_one_more_instruction_at_the_end_never_helps():
    for seed in range(20):
        work = twin.random_stream(seed, 12)
        shorter = run_cycles([*work[:-2], {"op": "EOC"}])
        assert run_cycles(work) >= shorter, seed


def test_one_more_instruction_of_a_channel_never_helps():
    """In one channel, in order; between channels a row may be opened while another is awaited."""
    rng = random.Random(5)
    aim = ("WR_BIAS", "WR_GB", "RD_MAC", "MAC_ABK", "EWMUL", "AF")
    for _ in range(40):
        one = [{"op": rng.choice(aim), "mask": 1 << 31, "row": rng.randrange(3)} for _ in range(12)]
        at = rng.randrange(12)
        fewer = [*one[:at], *one[at + 1 :]]
        assert run_cycles([*fewer, {"op": "EOC"}]) <= run_cycles([*one, {"op": "EOC"}])


def test_splitting_at_a_sync_adds_up():
    step = [
        {"op": "WR_BIAS", "mask": 1 << 31},
        {"op": "MAC_ABK", "mask": 1 << 31, "row": 1, "opsize": 8},
        {"op": "WR_SBK", "mask": 1 << 30, "bank": 1, "row": 2},
        {"op": "RD_MAC", "mask": 1 << 31},
        {"op": "SYNC"},
    ]
    total = [run_cycles([*step * n, {"op": "EOC"}], refresh=False) for n in range(4)]
    assert total[3] - total[2] == total[2] - total[1] < total[1] - total[0]


def test_bad_modes_and_unknown_parameters():
    with pytest.raises(InputError, match="did you mean 'simulator'"):
        timing.run(streams.fragments(1), AIM, "simulater")
    unknown = with_timing(n_mode_change=np.float64("nan"))
    with pytest.raises(InputError, match=r"device\.timing\.n_mode_change"):
        timing.run(streams.fragments(1), unknown)


def test_the_table_is_the_measured_one(reference):
    """golden/aim_constraints.json, number by number; nothing more but refresh and extensions."""
    rules = json.loads((reference / "golden" / "aim_constraints.json").read_text())
    table = constraints.table(AIM.timing)
    level = {"channel": table.channel, "bankgroup": table.group, "bank": table.bank}
    level = {name: np.asarray(values) for name, values in level.items()}
    seen = {name: np.zeros(values.shape, bool) for name, values in level.items()}
    for rule in rules:
        pair = constraints.CODE[rule["prev"]], constraints.CODE[rule["next"]]
        assert level[rule["level"]][pair] == rule["latency"], rule
        seen[rule["level"]][pair] = True
    others = {"REFab", *constraints.EXTENSION}
    for name, values in level.items():
        for before, after in zip(
            *np.nonzero((values > constraints.ABSENT) & ~seen[name]), strict=True
        ):
            assert others & {constraints.COMMAND[before], constraints.COMMAND[after]}
