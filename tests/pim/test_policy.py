"""Named runtimes: what Table 1 of the PATTON paper says of them, and what cannot be built."""

import dataclasses

import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core import program
from jaxmem.core.design import put
from jaxmem.core.errors import InputError
from jaxmem.core.metrics import LIMITS
from jaxmem.pim import policy

pytestmark = pytest.mark.slow

TABLE = {  # year, dynamic, PagedAttention, explicit mapping, single-token write, processing unit
    "neupims": ("2024", "yes", "partly", "no", "not considered", "unmodified"),
    "attacc": ("2024", "no", "no", "no", "not considered", "unmodified"),
    "cent": ("2025", "no", "no", "no", "not considered", "unmodified"),
    "blockpim": ("2025", "yes", "yes", "no", "not considered", "unmodified"),
    "paise": ("2025", "no", "no", "yes", "not considered", "unmodified"),
    "attenpim": ("2025", "no", "no", "yes", "whole bursts", "modified"),
    "l3": ("2025", "no", "no", "yes", "whole bursts", "modified"),
    "pimphony": ("2026", "yes", "no", "no", "not considered", "unmodified"),
    "patton": ("2026", "yes", "yes", "yes", "efficient", "unmodified"),
}


@pytest.mark.parametrize("name", TABLE)
def test_table_1_follows_from_the_fields(name):
    assert tuple(policy.support(name).values()) == TABLE[name]


def test_every_field_of_every_policy_has_a_source():
    for name in policy.names():
        policy.load(name)
        for field, row in policy.sources(name).items():
            assert row["source"], (name, field)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"spread": "request"}, "v_write"),
        ({"v_write": "bulk"}, "is_lockstep"),
        ({"v_write": "direct", "is_static": True, "max_context_tokens": 2048}, "has_prefix_cache"),
        ({"v_write": "direct", "spread": "block"}, "own_blocks"),
        ({"is_static": True, "has_prefix_cache": False}, "max_context_tokens"),
    ],
)
def test_what_contradicts_itself_names_both_fields(change, says):
    with pytest.raises(InputError, match=says):
        policy.load(policy.Policy.create("patton", **change))


@pytest.mark.parametrize("name", policy.names())
def test_every_policy_is_a_point(name):
    d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b", policy=name)
    m = jm.pim.evaluate(d, jm.Decode.create(batch=32, context_tokens=1800))
    assert bool(m.feasible)
    seconds = [float(x) for x in m.parts.values()]
    assert np.isclose(sum(seconds), float(m.latency_s))
    is_host = int(d.policy.v_write) == policy.V_WRITE["host"]
    assert (float(m.parts["qk"]) > 0) != is_host


def test_a_hybrid_sweep_is_one_compile_and_names_what_cannot_be():
    """15,360 mixes of fields for four models."""
    models = ["llama3-8b", "qwen3-8b", "opt-6.7b", "qwen1.5-7b"]
    d = jm.pim.Design.create(
        device="aim-gddr6-16gib",
        llm=models[0],
        policy=policy.Policy.create(max_context_tokens=2048),
    )
    space = {
        "llm": models, "policy.spread": list(policy.SPREAD), "policy.v_write": list(policy.V_WRITE),
        "policy.own_blocks": [1, 4, 8, 16, 32, 64], "policy.is_lockstep": [0, 1],
        "policy.merges_adjacent": [0, 1], "policy.shares_rowset": [0, 1],
        "policy.is_static": [0, 1], "policy.has_prefix_cache": [0, 1],
    }  # fmt: skip
    workload = jm.Decode.create(batch=8, context_tokens=500)
    jm.sweep(jm.pim.evaluate, d, workload, {"policy.own_blocks": list(range(1, 80))})
    before = dict(program.TRACES)
    ds = jm.sweep(jm.pim.evaluate, d, workload, space)
    assert ds.limit.size == 15_360
    traced = sum(program.TRACES.values()) - sum(before.values())
    assert traced <= 1  # once for four models, whose tables are padded alike
    reason = {number: text for text, number in LIMITS.items()}
    limit = ds.limit.sel(llm="llama3-8b")
    for at in np.ndindex(*limit.shape):
        point = limit[at]
        p = d.policy
        for path, codes in (("spread", policy.SPREAD), ("v_write", policy.V_WRITE)):
            p = put(p, path, np.float64(codes[str(point[f"policy.{path}"].values)]))
        for path in ("own_blocks", "is_lockstep", "is_static", "has_prefix_cache"):
            p = put(p, path, np.float64(point[f"policy.{path}"].values))
        is_bad = any(met for *_, met in policy.conflicts(p))
        assert (reason[int(point)] == "invalid") == is_bad, point.coords


def test_values_in_one_channel_need_all_rows_there():
    """Where a block, or a request, keeps to one channel, so does its Value, with g rows."""
    from jaxmem.pim import address

    for name in ("blockpim", "pimphony", "neupims"):
        d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b", policy=name)
        m = address.concrete(d)
        assert int(m.value_rows) == 8
        for index in range(int(m.set_blocks)):
            key = int(address.key_block(m, 5, index)[0])
            values = {int(address.value_subblock(m, 5, index, q)[0]) for q in range(8)}
            assert values == {key}
    patton = address.concrete(dataclasses.replace(d, policy=policy.load("patton")))
    assert len({int(address.value_subblock(patton, 0, 0, q)[0]) for q in range(8)}) == 4
