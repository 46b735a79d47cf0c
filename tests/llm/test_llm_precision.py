"""Formats of weights and KV by part, and the small facts of models and tables beside them."""

import numpy as np
import pytest

from jaxmem.core.errors import InputError
from jaxmem.core.units import GB, GIB
from jaxmem.llm import LLM, Parallel, kv_bytes, load, table, weight_bytes
from jaxmem.llm.hf import from_config

SMALL = {
    "model_type": "qwen3_moe", "hidden_size": 256, "num_hidden_layers": 2, "vocab_size": 100,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "intermediate_size": 512, "num_experts": 4, "num_experts_per_tok": 2,
    "moe_intermediate_size": 128, "mlp_only_layers": [0], "torch_dtype": "bfloat16",
}  # fmt: skip
HYBRID = SMALL | {
    "model_type": "qwen3_next", "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}  # fmt: skip
GPT_OSS = {k: v for k, v in SMALL.items() if k not in ("num_experts", "mlp_only_layers")}
GPT_OSS |= {"model_type": "gpt_oss", "num_local_experts": 4}
GPT_OSS.pop("moe_intermediate_size")
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def with_scheme(scheme: dict, config: dict = SMALL) -> LLM:
    return from_config(config | {"quantization_config": scheme}, name="small")


def kept(*modules: str) -> LLM:
    return with_scheme(FP8 | {"modules_to_not_convert": list(modules)})


def formats(model: LLM) -> tuple[str, str, str]:
    return model.attention_dtype, model.matrix_dtype, model.expert_dtype


def test_fp8_bytes_by_hand():
    """Attention 2 x 3 blocks wide, in FP8; norms, router, embedding and head in 16 bits."""
    model = with_scheme(FP8)
    attention = 256 * 512 + 2 * 256 * 256 + 512 * 256
    matrices = 2 * attention + 3 * 256 * 512 + 4 * 3 * 256 * 128
    rest = 2 * (2 * 256 + 2 * 128) + 256 * 4 + 2 * 100 * 256 + 256
    assert model.n_param == matrices + rest
    assert model.weight_bytes == matrices + 4 * matrices / 128**2 + 2 * rest
    assert float(weight_bytes(table(model))) == model.weight_bytes
    assert float(table(model).is_fp8) == 1


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        ((), ("fp8", "fp8", "fp8")),
        (("lm_head", "model.embed_tokens", "model.norm"), ("fp8", "fp8", "fp8")),
        (("model.layers.0.mlp.gate", "model.layers.1.input_layernorm"), ("fp8", "fp8", "fp8")),
        (("gate", "e_score_correction_bias"), ("fp8", "fp8", "fp8")),
        (("model.layers.*.self_attn",), ("bfloat16", "fp8", "fp8")),
        (("model.layers.0.self_attn", "model.layers.1.self_attn"), ("bfloat16", "fp8", "fp8")),
        (("model.layers.*.mlp",), ("fp8", "bfloat16", "bfloat16")),
        (("model.layers.*.mlp.experts.*",), ("fp8", "fp8", "bfloat16")),
        (("mlp.shared_experts",), ("fp8", "bfloat16", "fp8")),
        (("model.layers.2.mlp.experts",), ("fp8", "fp8", "fp8")),  # the MTP layer
    ],
)
def test_modules_that_are_not_converted(modules, expected):
    model = kept(*modules)
    assert formats(model) == expected
    assert float(weight_bytes(table(model))) == pytest.approx(model.weight_bytes, rel=1e-6)
    ignored = with_scheme(FP8 | {"ignored_layers": list(modules)})
    assert formats(ignored) == expected


def test_mxfp4_converts_experts_alone():
    mxfp4, names = {"quant_method": "mxfp4"}, "modules_to_not_convert"
    plain = with_scheme(mxfp4, GPT_OSS)
    assert formats(plain) == ("bfloat16", "bfloat16", "mxfp4")
    assert with_scheme(mxfp4 | {names: ["model.layers.*.self_attn"]}, GPT_OSS) == plain
    assert formats(with_scheme(mxfp4 | {names: ["mlp.experts"]}, GPT_OSS)) == ("bfloat16",) * 3


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        (["model.layers.0.self_attn"], "expected all 2, got 'attention of 1 layers'"),
        (["model.layers.0.self_attn.q_proj"], "expected a whole attention, mlp or experts module"),
        (["re:.*attn.*"], "expected a whole attention, mlp or experts module"),
        (["a\nb"], "expected a whole attention, mlp or experts module"),
        ("lm_head", "expected a list of names"),
        ([1], "expected a list of names"),
    ],
)
def test_modules_that_are_refused(modules, expected):
    with pytest.raises(InputError) as caught:
        with_scheme(FP8 | {"modules_to_not_convert": modules})
    text = str(caught.value)
    assert text.startswith("quantization_config.modules_to_not_convert: " + expected)
    assert text.isprintable()


def test_a_hybrid_keeps_both_attentions_or_none():
    both = {"modules_to_not_convert": ["self_attn", "linear_attn"]}
    assert with_scheme(FP8 | both, HYBRID).attention_dtype == "bfloat16"
    for one in both["modules_to_not_convert"]:
        with pytest.raises(InputError, match="both self_attn and linear_attn"):
            with_scheme(FP8 | {"modules_to_not_convert": [one]}, HYBRID)


@pytest.mark.parametrize("key", ["quant_algo", "quantized_layers", "config_groups", "bits", "x"])
def test_a_scheme_that_is_not_understood_is_refused(key):
    """NVFP4 checkpoints may say `fp8` and mean it of some layers only."""
    with pytest.raises(InputError, match=rf"quantization_config\.{key}: expected a key that"):
        with_scheme(FP8 | {key: 1})
    assert with_scheme(FP8 | {key: None}) == with_scheme(FP8)


def test_scale_a_tensor():
    assert formats(with_scheme({"quant_method": "fp8"})) == ("fp8-tensor",) * 3
    assert float(table(with_scheme({"quant_method": "fp8"})).is_fp8) == 1
    assert load("qwen3-8b", weight_dtype="fp8-tensor").weight_bytes < 8_190_735_360 * 1.16


def test_weight_dtype_holds_for_all_matrices():
    assert formats(load("gpt-oss-20b", weight_dtype="fp8")) == ("fp8",) * 3


def test_active_without_input_embedding():
    """Published for gpt-oss: 5.13 and 3.61 billion."""
    big, small = load("gpt-oss-120b"), load("gpt-oss-20b")
    assert round(big.n_param_active_without_input_embedding / 1e9, 2) == 5.13
    assert round(small.n_param_active_without_input_embedding / 1e9, 2) == 3.61
    tied = load("qwen3-4b")
    assert tied.n_param_active_without_input_embedding == tied.n_param


def test_kv_of_one_more_token():
    model = load("gpt-oss-20b")
    assert model.kv_bytes_token() == model.kv_bytes_token(127) == 49_152
    assert model.kv_bytes_token(128) == model.kv_bytes_token(10**6) == 24_576
    for context in (0, 127, 128, 5000):
        step = model.kv_bytes(context + 1) - model.kv_bytes(context)
        assert step == model.kv_bytes_token(context)
    assert load("mistral-7b").kv_bytes_token(4096) == 0


def test_ring_and_unified():
    model = table(load("gpt-oss-20b"))
    ring, unified = kv_bytes(model, 8192.0), kv_bytes(model, 8192.0, unified=True)
    assert 32 * float(ring) / GIB == pytest.approx(6.09, abs=0.005)
    assert 32 * float(unified) / GIB == 12.0
    assert float(kv_bytes(model, 128.0)) == float(kv_bytes(model, 128.0, unified=True))


def test_gb_and_gib():
    assert round(80 * GB / GIB, 1) == 74.5
    assert 80 * GB / GIB * GIB / GB == 80


def test_rows_asked_for():
    model = load("deepseek-v3")
    assert table(model, n_kind=5).n_layer.shape == (5,)
    np.testing.assert_array_equal(table(model, n_kind=5).n_layer[2:], 0)
    assert table(load("llama3-8b")).n_layer.shape == (1,)
    with pytest.raises(InputError, match="n_kind: expected at least 2, the kinds of deepseek-v3"):
        table(model, n_kind=1)


def test_degrees_left_to_the_rule_are_refused():
    with pytest.raises(InputError, match=r"parallel\.tp: expected a degree of at least 1"):
        table(load("llama3-8b"), Parallel.create())


def test_keys_that_would_change_a_shape_are_not_ignored():
    llama = {k: v for k, v in SMALL.items() if "expert" not in k and k != "mlp_only_layers"}
    llama.pop("moe_intermediate_size")
    for key, value in {
        "sliding_window": 8, "layer_types": ["full_attention"] * 3, "layer_scale": 1,
        "compression_config": {}, "attention_window": 4,
    }.items():  # fmt: skip
        with pytest.raises(InputError, match=f"^{key}: expected"):
            from_config(llama | {"model_type": "llama", key: value}, name="x")


def test_what_is_known_of_opt_and_gpt_oss_alone():
    opt = {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 100,
           "num_attention_heads": 4, "ffn_dim": 128, "max_position_embeddings": 32}  # fmt: skip
    for key, value in {"do_layer_norm_before": False, "_remove_final_layer_norm": True}.items():
        with pytest.raises(InputError, match=f"^{key}: expected"):
            from_config(opt | {key: value}, name="x")
    with pytest.raises(InputError, match=r"^experts_per_token: expected num_experts_per_tok, 2"):
        from_config(GPT_OSS | {"experts_per_token": 3}, name="x")


def test_composite():
    text = SMALL | {"model_type": "qwen3_5_moe_text", "torch_dtype": None} | {
        k: v for k, v in HYBRID.items() if k.startswith(("linear", "full"))
    }  # fmt: skip
    whole = {"model_type": "qwen3_5_moe", "torch_dtype": "float32", "text_config": text}
    assert from_config(whole, name="x").dtype == "float32"
    wrong = whole | {"text_config": text | {"model_type": "llama"}}
    with pytest.raises(InputError, match=r"^text_config\.model_type: expected qwen3_5_moe_text"):
        from_config(wrong, name="x")
