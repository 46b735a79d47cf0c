"""PIM `evaluate` against hand-worked numbers (research/patton.md, research/aim.md)."""

import dataclasses
import math

import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core.metrics import LIMITS
from jaxmem.llm import kind_of
from jaxmem.pim import layout, occupancy, timing
from jaxmem.pim.policy import V_WRITE, WRITE_ISSUE

CYCLE_S = 0.5e-9


def design(llm="llama3-8b", policy="patton", **fields):
    return jm.pim.Design.create(device="aim-gddr6-16gib", llm=llm, policy=policy, **fields)


def cycles(metrics, part, n_layer=32):
    return float(metrics.parts[part]) / n_layer / CYCLE_S


def test_anchor_llama3_contiguous():
    """592,896 cycles a layer: Llama-3-8B, batch 32, context 2048, C = 4, one WRGB a head."""
    d = design(expected_run_blocks=64, ch_per_head=4)
    m = jm.pim.evaluate(d, jm.Decode.create(batch=32, context_tokens=2048))
    assert cycles(m, "qk") == pytest.approx(32 * 4 * (2 * 64 + 86 * 32 + 88 * 4), rel=1e-12)
    assert cycles(m, "sv") == pytest.approx(
        32 * 4 * 2 * (2 * 64 + 2 * (70 + 88 + 2 * 64)), rel=1e-12
    )
    total = float(m.parts["qk"] + m.parts["sv"])
    assert total == pytest.approx(592_896 * 32 * CYCLE_S, rel=1e-12)


def test_automatic_ch_per_head_is_channels_over_heads():
    for llm, c in (("llama3-8b", 4), ("opt-6.7b", 1), ("qwen3-235b-a22b", 8)):
        d = design(llm)
        assert float(layout.shape(d, kind_of(d.llm, 0)).ch_per_head) == c


@pytest.mark.parametrize(
    ("fragment", "expected"), [(1, 414), (2, 484), (4, 624), (8, 904), (16, 1464), (32, 2584)]
)
def test_fragmented_row(fragment, expected):
    """Eight fragments of a 2 KB row against one: 904/414 = 2.184 (PATTON 3.2.2)."""
    load = layout.Load(n_gb=64, n_step=fragment, n_burst=64, n_miss=1)
    assert timing.mac_cycles(load, design().device) == expected


def test_row_write_costs_101_cycles():
    assert timing.row_write_cycles(design().device) == 101


@pytest.mark.parametrize(
    ("llm", "tokens"),
    [("llama3-8b", 130_048), ("qwen3-8b", 115_712), ("opt-6.7b", 31_744), ("qwen1.5-7b", 31_744)],
)
def test_capacity(llm, tokens):
    """The capacity table of research/patton.md section 2, with one Commit Zone row."""
    m = jm.pim.evaluate(design(llm), jm.Decode.create(batch=8, context_tokens=512))
    assert float(m.capacity_tokens) == tokens


@pytest.mark.parametrize(("llm", "c", "batch"), [("llama3-8b", 4, 32), ("opt-6.7b", 1, 8)])
def test_commit_zone_saves_row_activations(llm, c, batch):
    """12.8 times fewer all-bank activations for Value writes (paper: 12.6)."""
    d = design(llm)
    s = layout.shape(d, kind_of(d.llm, 0))
    direct = dataclasses.replace(d, policy=jm.pim.Policy.create("patton-wo-cz"))
    per_channel = (
        layout.value_write(d, s, batch).n_write_row + layout.commit(d, s, batch).n_bank_row
    )
    without = layout.value_write(direct, s, batch).n_write_row
    assert float(without * c / (per_channel * c)) == pytest.approx(12.8)


def test_value_write_speedup_under_the_mixed_decoder():
    """5.33x in closed form: 16*128 / (16*8 + 128 + 128), of the decoder's ticks."""
    d = design("opt-6.7b", block_tokens=16)
    s, device = layout.shape(d, kind_of(d.llm, 0)), d.device
    direct = dataclasses.replace(d, policy=jm.pim.Policy.create("patton-wo-cz"))
    issue = WRITE_ISSUE["mixed_decoder"]
    decoder, batch = 32, 8
    without = timing.value_write_cycles(
        layout.value_write(direct, s, batch), device, issue, 0, decoder
    )
    staged = timing.value_write_cycles(layout.value_write(d, s, batch), device, issue, 1, decoder)
    commit = timing.commit_cycles(layout.commit(d, s, batch), device, issue, decoder)
    assert float(without) == 128 * 32 * batch
    assert float(staged + commit) == pytest.approx(float(without) / 5.333, rel=0.01)


def test_stock_writes_gain_nothing_from_the_zone():
    """Stock single-bank writes are bound by the decoder: 4,096 ticks a token on OPT either way."""
    for issue, expected in (("stock_single_bank", 4096), ("stock_all_bank", 808)):
        for name in ("patton", "patton-wo-cz"):
            policy = jm.pim.Policy.create(name, write_issue=issue)
            d = dataclasses.replace(design("opt-6.7b"), policy=policy)
            s = layout.shape(d, kind_of(d.llm, 0))
            has_zone = policy.v_write == V_WRITE["commit_zone"]
            load = layout.value_write(d, s, 1.0)
            got = timing.value_write_cycles(load, d.device, policy.write_issue, has_zone, 32)
            assert float(got) == expected


def test_partial_block_runs_in_the_zone():
    """One token past a full block adds r fragments on one row: 2 r + 88 + r (70 + 2)."""
    d, work = design(expected_run_blocks=16), jm.Decode.create(batch=1, context_tokens=2048)
    full = jm.pim.evaluate(d, work)
    more = jm.pim.evaluate(d, jm.Decode.create(batch=1, context_tokens=2049))
    added = cycles(more, "sv") - cycles(full, "sv")
    assert added == pytest.approx(4 * (2 * 2 + 88 + 2 * 72))


@pytest.mark.parametrize("n_kv", [1, 2, 3])
def test_few_heads_follow_the_rules_for_what_the_paper_leaves_open(n_kv):
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_attention_heads": 6, "head_dim": 128,
        "num_key_value_heads": n_kv, "num_hidden_layers": 4, "intermediate_size": 8192,
        "vocab_size": 1000, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
    }  # fmt: skip
    d = design(config)
    s = layout.shape(d, kind_of(d.llm, 0))
    c = 32 // n_kv
    assert float(s.ch_per_head) == c
    assert float(s.value_rows) == math.ceil(8 / min(c, 8))
    assert float(s.n_interleave) == max(c // 8, 1)
    assert bool(jm.pim.evaluate(d, jm.Decode.create(batch=1, context_tokens=100)).feasible)


def test_heads_share_groups_in_turn():
    d = design(ch_per_head=8)
    s = layout.shape(d, kind_of(d.llm, 0))
    assert float(s.n_round) == 2
    capacity = float(occupancy.capacity_tokens(d, s, 32.0, 32.0))
    assert capacity == (512 // 2 - 1) // 2 * 64 * 16


def test_serve_finds_the_largest_batch():
    d = design()
    for slo_s in (0.02, 0.03, 0.05, np.inf):
        work = jm.Serve.create(input_tokens=1155, output_tokens=211, slo_s=slo_s)
        m = jm.pim.evaluate(d, work)
        assert float(m.latency_s) <= slo_s
        more = jm.Decode.create(batch=float(m.batch) + 1, context_tokens=1366)
        beyond = jm.pim.evaluate(d, more)
        if int(m.limit) == LIMITS["slo"]:
            assert float(beyond.latency_s + m.parts["prefill_write"]) > slo_s
        else:
            assert int(m.limit) == LIMITS["capacity"]
            assert not bool(beyond.feasible)


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"llm": "deepseek-v2-lite"}, "layout"),
        ({"block_tokens": 24}, "layout"),
        ({"ch_per_head": 64}, "layout"),
        ({"policy": jm.pim.Policy.create(max_context_tokens=100)}, "context_cap"),
        ({"policy": jm.pim.Policy.create(v_order="c_ch_r")}, "invalid"),
        ({"policy": "neupims", "llm": "opt-6.7b"}, "context_cap"),
        ({"llm": "llama3.1-70b"}, "capacity"),
    ],
)
def test_infeasible_points_say_why(change, limit):
    context = 2064 if change.get("policy") == "neupims" else 1024
    m = jm.pim.evaluate(design(**change), jm.Decode.create(batch=4, context_tokens=context))
    assert not bool(m.feasible)
    assert int(m.limit) == LIMITS[limit]
    assert math.isnan(float(m.latency_s))


def test_parts_add_up():
    m = jm.pim.evaluate(design(), jm.Serve.create(slo_s=0.05))
    assert sum(map(float, m.parts.values())) == pytest.approx(float(m.latency_s))
    assert sum(map(float, m.energy_parts.values())) == pytest.approx(float(m.energy_j))
    assert float(m.tokens_per_s) == pytest.approx(float(m.batch / m.latency_s))
