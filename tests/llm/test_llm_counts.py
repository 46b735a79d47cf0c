"""Counts and bytes of the zoo against published numbers and public bug reports.

The report numbers are those of research/peers.md section 3.
"""

import functools
import json
import re
import tomllib
from importlib import resources

import jax
import numpy as np
import pytest

from jaxmem import llm
from jaxmem.core.errors import InputError
from jaxmem.llm import (
    Parallel,
    kv_bytes,
    kv_bytes_token,
    layer_table,
    names,
    published,
    shard,
    weight_bytes,
)
from jaxmem.llm import table as table_of
from jaxmem.llm.hf import from_config
from jaxmem.llm.model import KV_ELEMENT_BYTES, LLM

GIB = 2.0**30
TOKEN, SEQUENCE, SHARD = jax.jit(kv_bytes_token), jax.jit(kv_bytes), jax.jit(shard)
MILLION = 1_000_000
UNCHECKED = {"minimax-m2.5", "mixtral-8x22b", "qwen3.5-122b-a10b", "qwen3.5-397b-a17b"}
"""Models that the reference configurations lack: against their labels alone."""
OFF_LABEL = {
    "glm-4.5": "the label counts a part of the multi-token-prediction layer",
    "kimi-k2": "1.04T is the report's, from memory; the checkpoint has 1.026T",
    "llama3.1-70b": "called 70B, has 70.55B",
    "minimax-m2.5": "called 230B, has 228.7B",
    "phi-4": "called 14B, has 14.66B",
}


@functools.cache
def _zoo(what: str, **dtypes) -> LLM:
    return llm.load(what, **dtypes)


def load(what, **dtypes) -> LLM:
    """`llm.load`, once a model: the type checker of the tests makes it slow."""
    return _zoo(what, **dtypes) if isinstance(what, str) else llm.load(what, **dtypes)


def config_of(name: str) -> dict:
    text = (resources.files("jaxmem.llm") / "zoo" / f"{name}.toml").read_text(encoding="utf-8")
    return json.loads(tomllib.loads(text)["config"])


def golden_models(reference) -> dict:
    text = (reference / "golden" / "model_configs.json").read_text(encoding="utf-8")
    return json.loads(text)["models"]


def labelled(label: str) -> tuple[float, float]:
    """The most precise count in a label and half a unit of its last digit."""
    label = re.sub(r"\(whole.*|\(HF.*|\([\d.]+B non-embedding\)|/.*|A\d+B.*", "", label)
    found = max(re.findall(r"([\d.]+)([BT])", label), key=lambda f: len(f[0].replace(".", "")))
    unit = {"B": 1e9, "T": 1e12}[found[1]]
    decimals = len(found[0].partition(".")[2])
    return float(found[0]) * unit, 0.5 * unit / 10**decimals


@pytest.mark.parametrize("name", names())
def test_counts_of_the_zoo(name):
    model, entry = load(name), published(name)
    if "n_param" in entry:
        assert model.n_param == entry["n_param"]
    if "n_param_active" in entry:
        assert model.n_param_active == entry["n_param_active"]
    if all(g.n_expert == 0 for g in model.groups):
        assert model.n_param_active == model.n_param


@pytest.mark.parametrize("name", names())
def test_label(name):
    count, half_unit = labelled(published(name)["label"])
    error = abs(load(name).n_param - count)
    assert (error <= max(0.005 * count, half_unit)) != (name in OFF_LABEL)
    assert error < 0.05 * count


def test_zoo_is_complete(reference):
    golden = golden_models(reference)
    assert len(golden) == 34
    assert len(names()) == 34 + len(UNCHECKED)
    assert {published(name)["id"] for name in names() if name not in UNCHECKED} == set(golden)


@pytest.mark.parametrize("name", sorted(set(names()) - UNCHECKED))
def test_against_golden(reference, name):
    """Totals checked against transformers on the meta device, and KV bytes, in 16 bits."""
    golden = golden_models(reference)[published(name)["id"]]
    for model in (load(name), from_config(golden["config"], name=name)):
        assert model.n_param == golden["computed"]["total"]
        assert model.n_param_active == golden["computed"]["active_per_token"]
        assert model.embedding_params == golden["computed"]["breakdown"]["embed"]
        assert model.head_params == golden["computed"]["breakdown"]["lm_head"]
        kv = golden["kv_cache"]
        assert model.kv_bytes_token() == kv["bf16_bytes_per_token_all_attention_layers"]
        windowed = kv["of_which_capped_by_window"] * min(kv["window"] or 0, MILLION)
        expected = kv["growing_with_context"] * MILLION + windowed
        expected += kv.get("fixed_bytes_per_sequence", 0)
        assert model.kv_bytes(MILLION) == expected
        table = table_of(model)
        assert float(TOKEN(table)) == model.kv_bytes_token()
        np.testing.assert_allclose(float(SEQUENCE(table, 1e6)), expected, rtol=1e-6)
        head_dims = {g.head_dim for g in model.groups if g.attention == "gqa"}
        assert head_dims <= {golden["head_dim_effective"]}


@pytest.mark.parametrize("name", names())
def test_table_bytes_are_model_bytes(name, x64):
    for weight_dtype in (None, "fp8"):
        model = load(name, weight_dtype=weight_dtype)
        np.testing.assert_allclose(
            float(weight_bytes(table_of(model))), model.weight_bytes, rtol=1e-13
        )
    if published(name)["id"].endswith("FP8") or "gpt-oss" in name:
        return
    assert load(name, weight_dtype="bfloat16").weight_bytes == 2 * load(name).n_param


def test_tied_embeddings_count_once_and_multiply_always():
    assert load("qwen3-4b").n_param == 4_022_468_096
    assert load("qwen2.5-72b").n_param == 72_706_203_648
    tied = config_of("qwen3-4b")
    assert tied["tie_word_embeddings"] is True
    untied = tied | {"tie_word_embeddings": False}
    once, twice = load(tied), load(untied)
    assert twice.n_param - once.n_param == once.vocab * once.hidden
    a, b = layer_table(tied), layer_table(untied)
    assert a.head_flops_token == b.head_flops_token == 2 * once.vocab * once.hidden
    assert a.embedding_weight_bytes == 0 < b.embedding_weight_bytes


@pytest.mark.parametrize(
    ("name", "expected"),
    [("deepseek-v3", 70_272), ("deepseek-v2", 69_120), ("deepseek-v2-lite", 31_104)],
)
def test_mla_keeps_one_latent_on_every_rank(name, expected):
    model = load(name)
    assert model.kv_bytes_token() == expected == 576 * 2 * model.n_layer
    for tp in (1, 2, 8, 16):
        share = SHARD(table_of(model), Parallel(tp=tp, dp=1, ep=1))
        assert float(TOKEN(share)) == expected


@pytest.mark.parametrize(
    ("tp", "expected"),
    [(1, 327_680), (2, 163_840), (4, 81_920), (8, 40_960), (16, 40_960), (64, 40_960)],
)
def test_tp_above_the_kv_heads_replicates_them(tp, expected):
    share = table_of(load("llama3.1-70b"), Parallel(tp=tp, dp=1, ep=1))
    assert float(kv_bytes_token(share)) == expected
    assert float(share.n_kv[0]) == max(1, 8 // tp)


def test_tp_that_does_not_divide_the_kv_heads_rounds_up():
    share = table_of(load("phi-4"), Parallel(tp=4, dp=1, ep=1))
    assert float(share.n_kv[0]) == 3
    np.testing.assert_allclose(float(kv_bytes_token(share)), 204_800 * 3 / 10, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "head_dim", "quotient"),
    [
        ("mistral-small-24b", 128, 160), ("gpt-oss-20b", 64, 45), ("gemma3-12b", 256, 240),
        ("qwen3-4b", 128, 80), ("llama3.1-8b", 128, 128), ("gemma3-27b", 128, 168),
    ],
)  # fmt: skip
def test_head_dim(name, head_dim, quotient):
    """An explicit head size wins over hidden / heads; a class default too."""
    model = load(name)
    assert {g.head_dim for g in model.groups} == {head_dim}
    assert model.hidden // model.groups[0].n_q == quotient


def test_head_dim_absent_or_null():
    config = config_of("llama3.1-8b")
    config.pop("head_dim", None)
    absent, null = load(config), load(config | {"head_dim": None})
    explicit = load(config | {"head_dim": 64})
    assert absent == null
    assert absent.groups[0].head_dim == 4096 // 32
    assert explicit.kv_bytes_token() == absent.kv_bytes_token() / 2
    with pytest.raises(InputError, match="head_dim: expected a head size"):
        load(config | {"num_attention_heads": 24})


def test_gqa():
    model = load("llama3.1-8b")
    assert model.kv_bytes_token() == 2 * 32 * 8 * 128 * 2 == 131_072
    assert load("llama2-7b").kv_bytes_token() == 4 * model.kv_bytes_token()


def test_experts_all_count():
    model = load("mixtral-8x7b")
    assert round(model.n_param / 1e9, 1) == 46.7
    assert round(model.n_param_active / 1e9, 1) == 12.9


def test_windows():
    model = load("gpt-oss-120b")
    assert model.kv_bytes_token() == 73_728
    assert model.kv_bytes(128) == 128 * 73_728
    assert model.kv_bytes(129) == 128 * 73_728 + 36_864
    assert model.kv_bytes(129, unified=True) == 129 * 73_728
    small = load("gpt-oss-20b")
    assert round(32 * small.kv_bytes(8192) / GIB, 2) == 6.09
    assert 32 * small.kv_bytes(8192, unified=True) / GIB == 12.00
    assert float(32 * kv_bytes(table_of(small), 8192)) / GIB == pytest.approx(6.09, abs=0.005)


def test_eight_bit_kv():
    for name in ("llama3.1-8b", "deepseek-v3", "gpt-oss-20b"):
        model = load(name)
        assert load(name, kv_dtype="fp8").kv_bytes_token() == model.kv_bytes_token() / 2
        blocks = load(name, kv_dtype="fp8-block32").kv_bytes_token()
        assert blocks == model.kv_bytes_token() / 2 * 1.0625
    assert KV_ELEMENT_BYTES["fp8-block32"] == 1.0625


def test_kv_follows_the_model_unless_a_scheme_says_otherwise():
    config = config_of("qwen3-8b")
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    plain = load(config)
    assert load(config | {"quantization_config": fp8}).kv_bytes_token() == plain.kv_bytes_token()
    scheme = fp8 | {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}
    half = load(config | {"quantization_config": scheme})
    assert half.kv_bytes_token() == plain.kv_bytes_token() / 2
    named = fp8 | {"kv_cache_quant_algo": "FP8"}
    assert load(config | {"quantization_config": named}).kv_dtype == "fp8"
    assert load(config | {"torch_dtype": "float32"}).kv_bytes_token() == 2 * plain.kv_bytes_token()


@pytest.mark.parametrize(("name", "gib"), [("gpt-oss-120b", 60.8), ("gpt-oss-20b", 12.8)])
def test_mxfp4_checkpoint(name, gib):
    assert round(load(name).weight_bytes / GIB, 1) == gib


def test_fp8_scales():
    """One FP32 scale for 128 x 128 elements adds 0.024 %."""
    fp8, plain = load("qwen3-32b-fp8"), load("qwen3-32b")
    assert fp8.n_param == plain.n_param
    group = fp8.groups[0]
    matrices = fp8.n_layer * (group.attention_params + group.dense_params)
    assert plain.weight_bytes - fp8.weight_bytes == pytest.approx(matrices * (1 - 4 / 16384))


@pytest.mark.parametrize("what", ["Qwen/Qwen3-4B", "qwen/qwen3-4b", "QWEN3-4B", "qwen3-4b"])
def test_names(what):
    assert load(what) == load("qwen3-4b")
