"""config.json: what is refused, in one line that names the key, and what passes."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.llm import hf, load

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 100, "intermediate_size": 128, "torch_dtype": "bfloat16",
}  # fmt: skip
MIXTRAL = LLAMA | {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
QWEN = LLAMA | {"model_type": "qwen3", "head_dim": 16}
MLA = LLAMA | {
    "model_type": "deepseek_v3", "kv_lora_rank": 32, "q_lora_rank": None, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 8, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
HYBRID = QWEN | {
    "model_type": "qwen3_5_text", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
GPT_OSS = MIXTRAL | {"model_type": "gpt_oss", "head_dim": 16}
OPT = {
    "model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "vocab_size": 100, "ffn_dim": 128, "max_position_embeddings": 32,
}  # fmt: skip
GEMMA = LLAMA | {"model_type": "gemma2", "head_dim": 16}
GEMMA3 = {"model_type": "gemma3", "text_config": GEMMA | {"model_type": "gemma3_text"}}


def kind(value) -> str:
    """A test's name; some values cannot be printed."""
    return type(value).__name__


def refusal(config) -> str:
    with pytest.raises(InputError) as caught:
        hf.from_config(config, name="mine", where="config.json")
    text = str(caught.value)
    assert text.isprintable()
    assert text.startswith("config.json: ")
    assert ": expected " in text
    return text.removeprefix("config.json: ")


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, QWEN, MLA, HYBRID, GPT_OSS, OPT, GEMMA, GEMMA3])
def test_the_bases_pass(config):
    assert load(config).n_param > 0


@pytest.mark.parametrize(
    ("given", "hint"),
    [("qwen3_mo", "qwen3_moe"), ("lama", "llama"), ("Llama", "llama"), ("deepseek_v32", "deep")],
)
def test_unknown_model_type(given, hint):
    text = refusal(LLAMA | {"model_type": given})
    assert text.startswith(f"model_type: expected a known model type, got {given!r}")
    assert f"did you mean '{hint}" in text


@pytest.mark.parametrize(
    "value", [None, 3, True, ["llama"], {"a": 1}, 10**5000, math.nan], ids=kind
)
def test_model_type_that_is_no_word(value):
    assert refusal(LLAMA | {"model_type": value}).startswith("model_type: expected a known model")


def test_model_type_missing():
    config = {k: v for k, v in LLAMA.items() if k != "model_type"}
    assert refusal(config) == "model_type: expected a known model type, got None"


@pytest.mark.parametrize("config", [[], "llama", None, 3, [LLAMA], 10**5000], ids=kind)
def test_no_object(config):
    assert refusal(config).startswith("config.json: expected a JSON object, got ")


@pytest.mark.parametrize("config", [LLAMA, MIXTRAL, MLA, HYBRID, OPT])
def test_missing_keys(config):
    optional = {
        "architectures", "num_key_value_heads", "torch_dtype", "q_lora_rank", "head_dim",
        "n_shared_experts", "first_k_dense_replace", "layer_types",
    }  # fmt: skip
    for key in set(config) - optional:
        text = refusal({k: v for k, v in config.items() if k != key})
        if key == "ffn_dim":
            key = "intermediate_size"
        assert text.startswith(f"{key}: expected ")
        assert text.endswith(", got None")


JUNK = [
    "64", "", True, False, math.nan, math.inf, -math.inf, -1, -4096, 0.5, 1e300, 10**30, 10**5000,
    [], [64], {}, {"value": 64}, [[[[]]]],
]  # fmt: skip


@pytest.mark.parametrize(
    "key",
    ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
     "vocab_size", "intermediate_size", "head_dim", "num_local_experts", "num_experts_per_tok",
     "sliding_window", "max_position_embeddings"],
)  # fmt: skip
def test_sizes_that_are_none(key):
    zero_is_none = key in ("sliding_window", "max_position_embeddings")
    for value in JUNK if zero_is_none else [*JUNK, 0]:
        text = refusal(MIXTRAL | {key: value})
        assert text.startswith(f"{key}: expected a whole number from {0 if zero_is_none else 1} to")
        shown = repr(value) if value != 10**5000 else "an int too long to print"
        assert text.endswith(f", got {shown}")


def test_whole_floats_are_whole_numbers():
    assert load(LLAMA | {"hidden_size": 64.0}) == load(LLAMA)


def test_more_layers_than_are_believed():
    assert refusal(LLAMA | {"num_hidden_layers": 4097}).endswith("from 1 to 4096, got 4097")


CASES = {
    "heads": (LLAMA, "num_key_value_heads", 3, "a divisor of the 4 query heads"),
    "more KV heads": (LLAMA, "num_key_value_heads", 8, "a divisor of the 4 query heads"),
    "top_k": (MIXTRAL, "num_experts_per_tok", 5, "at most the 4 experts"),
    "top_k of MLA": (MLA, "num_experts_per_tok", 5, "at most the 4 experts"),
    "tied": (LLAMA, "tie_word_embeddings", "false", "true or false"),
    "bias": (LLAMA, "attention_bias", 1, "true or false"),
    "dtype": (LLAMA, "torch_dtype", "float8", "one of bfloat16"),
    "dtype no word": (LLAMA, "torch_dtype", 16, "one of bfloat16"),
    "types short": (QWEN, "layer_types", ["full_attention"], "a list of 2 (one a layer)"),
    "types word": (QWEN, "layer_types", "full_attention", "a list of 2 (one a layer)"),
    "types flag": (QWEN, "layer_types", True, "a list of 2 (one a layer)"),
    "scheme": (LLAMA, "quantization_config", "fp8", "an object"),
    "dense layers": (QWEN, "mlp_only_layers", [0.5], "a list of layer numbers"),
    "dense layers flag": (QWEN, "mlp_only_layers", [True], "a list of layer numbers"),
    "biased MLA": (MLA, "attention_bias", True, "false (nothing else is known"),
    "unbiased OPT": (OPT, "enable_bias", False, "true (nothing else is known"),
    "unbiased gpt-oss": (GPT_OSS, "attention_bias", False, "true (nothing else is known"),
    "projected OPT": (OPT, "word_embed_proj_dim", 32, "the width, 64"),
    "two windows": (GEMMA, "sliding_window_size", 128, "the window, 4096"),
    "text": (GEMMA3, "text_config", None, "the language model's settings"),
    "text list": (GEMMA3, "text_config", [1], "the language model's settings"),
    "state": (HYBRID, "mamba_ssm_dtype", "int8", "one of float32"),
}


@pytest.mark.parametrize("case", CASES)
def test_refused(case):
    config, key, value, expected = CASES[case]
    text = refusal(config | {key: value})
    assert text.startswith(f"{key}: expected {expected}")
    assert f", got {value!r}" in text


@pytest.mark.parametrize("word", ["full", "linear_attention", 3, None, ["full_attention"], {}])
def test_layer_type(word):
    text = refusal(QWEN | {"layer_types": ["full_attention", word]})
    assert text.startswith("layer_types: expected one of full_attention, sliding_attention, got ")


def test_layer_type_of_a_hybrid():
    """A window is not taken for a linear layer."""
    text = refusal(HYBRID | {"layer_types": ["sliding_attention", "full_attention"]})
    assert text.startswith("layer_types: expected one of full_attention, linear_attention, got ")


def test_windowed_layer_without_a_window():
    config = LLAMA | {"layer_types": ["full_attention", "sliding_attention"]}
    assert refusal(config).startswith("sliding_window: expected a whole number")
    assert [g.window for g in load(config | {"sliding_window": 8}).groups] == [0, 8]


@pytest.mark.parametrize(
    ("scheme", "start"),
    [
        ({}, "quantization_config.quant_method: expected one of fp8, mxfp4, got None"),
        ({"quant_method": "mxfp4"}, "quantization_config.quant_method: expected fp8 (mxfp4 is"),
        ({"quant_method": "awq"}, "quantization_config.quant_method: expected one of fp8, mxfp4"),
        ({"quant_method": "fp9"}, "quantization_config.quant_method: expected one of fp8, mxfp4"),
        ({"quant_method": ["fp8"]}, "quantization_config.quant_method: expected one of fp8"),
        (
            {"quant_method": "fp8", "weight_block_size": [64, 64]},
            "quantization_config.weight_block_size: expected [128, 128], got [64, 64]",
        ),
        (
            {"quant_method": "fp8", "kv_cache_scheme": {"num_bits": 4}},
            "quantization_config.kv_cache_scheme: expected 8-bit floats, got {'num_bits': 4}",
        ),
        (
            {"quant_method": "fp8", "kv_cache_quant_algo": "NVFP4"},
            "quantization_config.kv_cache_quant_algo: expected one of float32",
        ),
        (
            {"quant_method": "fp8", "kv_cache_scheme": 0},
            "quantization_config.kv_cache_scheme: expected one of float32",
        ),
    ],
)
def test_quantisation(scheme, start):
    assert refusal(LLAMA | {"quantization_config": scheme}).startswith(start)


@pytest.mark.parametrize(
    "key",
    ["num_kv_shared_layers", "num_kv_heads", "n_layers", "moe_width", "mlp_ratio", "q_rank",
     "attention_chunk_size", "num_mem_blocks", "kv_share", "expert_bias", "conv_kernel",
     "hidden_dim", "cross_attention_interval", "quantisation"],
)  # fmt: skip
def test_unknown_key_that_looks_like_a_shape(key):
    text = refusal(LLAMA | {key: 7})
    assert text.startswith(f"{key}: expected a key that jaxmem understands")
    assert text.endswith(", got 7")
    assert load(LLAMA | {key: None}) == load(LLAMA)


def test_unknown_key_names_the_nearest():
    text = refusal(LLAMA | {"num_attention_head": 4})
    assert "(nearest known: num_attention_heads)" in text


def test_harmless_keys_pass():
    harmless = {
        "rope_theta": 1e6, "rope_scaling": {"type": "yarn", "factor": 4.0}, "use_cache": True,
        "bos_token_id": 1, "eos_token_id": [2, 3], "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "initializer_range": 0.02, "transformers_version": "4.51.0", "attention_dropout": 0.0,
        "_name_or_path": "me/mine", "auto_map": {"AutoModel": "x.y"}, "pretraining_tp": 1,
        "num_labels": 2, "id2label": {"0": "a"}, "unsloth_fixed": True, "note": "num_heads",
    }  # fmt: skip
    assert hf.from_config(LLAMA | harmless, name="x") == hf.from_config(LLAMA, name="x")
    assert load(LLAMA | harmless).name == "me/mine"
    assert load(GEMMA | {"sliding_window_size": 4096}) == load(GEMMA)


def test_biases_count():
    qkvo = 2 * (64 + 32 + 32 + 64)
    for config in (LLAMA, QWEN, GEMMA):
        biased = load(config | {"attention_bias": True})
        assert biased.n_param - load(config).n_param == qkvo
    assert load(LLAMA | {"mlp_bias": True}).n_param - load(LLAMA).n_param == 2 * (2 * 128 + 64)


def test_late_windows():
    """Qwen: only where asked for, and then with the class's defaults."""
    asked = QWEN | {"num_hidden_layers": 30, "use_sliding_window": True}
    assert [(g.n_layer, g.window) for g in load(asked).groups] == [(28, 0), (2, 4096)]
    assert [g.window for g in load(asked | {"sliding_window": None}).groups] == [0]
    assert [g.window for g in load(asked | {"use_sliding_window": False}).groups] == [0]
    early = asked | {"max_window_layers": 0, "sliding_window": 16}
    assert [g.window for g in load(early).groups] == [16]


def test_hybrid_state_and_gate():
    group = load(HYBRID).groups[0]
    assert group.state_bytes == 4 * (4 * 16 * 16) + 2 * (2 * 2 * 16 + 4 * 16) * 3
    half = load(HYBRID | {"mamba_ssm_dtype": "bfloat16"}).groups[0]
    assert group.state_bytes - half.state_bytes == 2 * (4 * 16 * 16)
    plain = load(HYBRID | {"attn_output_gate": False})
    assert load(HYBRID).n_param - plain.n_param == 64 * 4 * 16


def test_composite_reads_the_outer_flags():
    untied = GEMMA3 | {"tie_word_embeddings": False}
    assert load(GEMMA3).is_tied
    assert not load(untied).is_tied


def test_read(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    assert load(path) == load(tmp_path) == load(str(path))
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert hf.read(path).n_param == load(LLAMA).n_param
    path.write_text(json.dumps(LLAMA | {"vocab_size": "100"}))
    with pytest.raises(InputError, match=r"config\.json: vocab_size: expected a whole number"):
        load(path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "valid JSON"),
        (b'{"model_type": "llama",\n "hidden_size": }', "line 2"),
        (b"\xff\xfe{}", "a UTF-8 text file"),
        (b"[1]", "a JSON object"),
        (b"[" * 200_000, "not nested this deeply"),
        (b'{"model_type": ' + b"[" * 700 + b"]" * 700 + b"}", "a known model type"),
        (b'{"model_type": ' + b"9" * 5000 + b"}", "a readable file"),
        (b'{"model_type": "\\ud800\\u0000\\n"}', "a known model type"),
        (b"NaN", "a JSON object"),
    ],
)
def test_bad_files(tmp_path, content, expected):
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as caught:
        hf.read(path)
    assert str(caught.value).isprintable()
    assert "config.json" in str(caught.value)


@pytest.mark.parametrize(
    "what", [None, 3, 10**5000, [LLAMA], b"qwen3-4b", "", "\0", "a" * 5000, "a\nb", "x/" * 3000,
             "\ud800", "no-such.json", "\0.json", "b" * 5000 + ".json"], ids=kind,
)  # fmt: skip
def test_what_load_does_not_take(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        load(what)
    assert str(caught.value).isprintable()


def test_load_suggests_a_name():
    with pytest.raises(InputError, match=r"did you mean 'qwen3-4b'\?"):
        load("qwen34b")
    with pytest.raises(InputError, match="kv_dtype: expected one of float32"):
        load("qwen3-4b", kv_dtype="int4")
    with pytest.raises(InputError, match=r"weight_dtype.*did you mean 'fp8'\?"):
        load("qwen3-4b", weight_dtype="fp88")
    assert load({**LLAMA, "_name_or_path": 10**5000}).name == "config"


@settings(max_examples=25)
@given(st.text())
def test_model_types_of_any_text(text):
    if text not in hf.FAMILIES and text not in hf.COMPOSITE:
        refusal(LLAMA | {"model_type": text})
