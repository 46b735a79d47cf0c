"""A Hugging Face config.json becomes an `LLM`, or one clear line about the key that does not fit.

Every model type that is understood has an entry in `FAMILIES` with its class defaults; what looks
as if it changed a shape and is not known is refused rather than ignored.
"""

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxmem.core.errors import InputError
from jaxmem.llm import attention, ffn, precision
from jaxmem.llm.keys import Keys
from jaxmem.llm.model import LLM, LayerGroup

MAX_LAYERS = 4096


@dataclasses.dataclass(frozen=True)
class Family:
    """What a model type implies beyond its keys."""

    attention: Callable[[Keys, int], attention.Attention]  # of layer i
    ffn: Callable[[Keys, int], ffn.Ffn]
    is_tied: bool = False
    norms: int = 2  # vectors of `hidden` a layer
    final_norms: int = 1
    positions: Callable[[Keys], int] = lambda keys: 0  # rows of a learned position table


FAMILIES = {
    "llama": Family(attention.gqa, ffn.dense),
    "mistral": Family(attention.gqa_all_windowed, ffn.dense),
    "phi3": Family(attention.gqa_all_windowed, ffn.dense),
    "mixtral": Family(attention.gqa_all_windowed, ffn.mixtral),
    "qwen2": Family(attention.qwen2, ffn.dense),
    "qwen3": Family(attention.qwen3, ffn.dense),
    "qwen3_moe": Family(attention.qwen3, ffn.qwen_moe),
    "qwen3_next": Family(attention.qwen_hybrid, ffn.qwen_moe),
    "qwen3_5_text": Family(attention.qwen_hybrid, ffn.dense),
    "qwen3_5_moe_text": Family(attention.qwen_hybrid, ffn.qwen_moe),
    "gemma2": Family(attention.gemma2, ffn.dense, is_tied=True, norms=4),
    "gemma3_text": Family(attention.gemma3, ffn.dense, is_tied=True, norms=4),
    "gpt_oss": Family(attention.gpt_oss, ffn.gpt_oss),
    "deepseek_v2": Family(attention.mla, ffn.deepseek),
    "deepseek_v3": Family(attention.mla, ffn.deepseek_biased),
    "kimi_k2": Family(attention.mla, ffn.deepseek_biased),
    "minimax_m2": Family(attention.minimax, ffn.minimax),
    "glm4_moe": Family(attention.glm, ffn.deepseek_biased),
    "opt": Family(
        attention.biased, ffn.plain, is_tied=True, norms=4, final_norms=2,
        positions=lambda keys: keys.size("max_position_embeddings") + 2,
    ),
    "gpt3": Family(
        attention.biased, ffn.plain, is_tied=True, norms=4, final_norms=2,
        positions=lambda keys: keys.size("max_position_embeddings"),
    ),
}  # fmt: skip

COMPOSITE = {
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
"""Types whose language model lies under `text_config`, and its type there."""

SHAPELY = re.compile(
    r"^(num_|n_)|(_size|_dim|_rank|_layers?|_heads?|_experts?|_interval|_freq|_width|_ratio|_blocks?)$"
    r"|quant|compress|expert|window|^(ffn|mlp|moe|attention|attn|kv|mamba|ssm|conv|linear|layer)_"
)
HARMLESS = {
    "attention_dropout", "attention_probs_dropout_prob", "attn_logit_softcapping", "attn_pdrop",
    "final_logit_softcapping", "attn_implementation", "_attn_implementation", "mlp_dropout",
    "n_group", "topk_group", "num_nextn_predict_layers", "mtp_num_hidden_layers",
    "mtp_transformer_layers", "num_mtp_modules",
    "max_window_layers", "num_return_sequences", "num_beams",
    "num_beam_groups", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "chunk_size_feed_forward", "router_aux_loss_coef", "ep_size",
    "output_router_logits", "query_pre_attn_scalar", "mtp_use_dedicated_embeddings",
    "swiglu_limit", "image_size", "vision_feature_layer", "mm_tokens_per_image",
    "rope_local_base_freq", "attention_multiplier", "linear_dropout",
    "moe_router_dtype", "num_labels", "use_sliding_window", "layer_norm_eps", "layer_norm_epsilon",
    "rotary_dim",
}  # fmt: skip
"""Keys that look as if they shaped a model and do not (or are covered by the type's formulas)."""


def read(path: str | Path) -> LLM:
    """The model of a config.json file.

    Raises:
        InputError: the file is missing, is no JSON object, or says what is not understood.
    """
    name = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        config = json.loads(text)
    except UnicodeDecodeError:
        raise InputError("config.json", name, "a UTF-8 text file") from None
    except json.JSONDecodeError as error:
        where = f"{name} line {error.lineno}"
        raise InputError("config.json", error.msg, "valid JSON", where=where) from None
    except RecursionError:
        raise InputError("config.json", name, "JSON that is not nested this deeply") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError("config.json", name, f"a readable file ({reason})") from None
    return from_config(config, name=Path(path).stem, where=name)


def from_config(config: Any, *, name: str, source: str = "", where: str = "") -> LLM:
    """The model that a Hugging Face configuration describes.

    Args:
        config: the parsed config.json.
        name: how the model shall be called.
        source: where the configuration comes from.
        where: file, for errors.

    Raises:
        InputError: a key is missing, of a wrong type, out of range, or not understood.

    Example:
        >>> llama = {"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        ...          "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        ...          "intermediate_size": 14336, "torch_dtype": "bfloat16"}
        >>> from_config(llama, name="mine").n_param
        8030261248
    """
    keys, family = _open(config, where)
    n_layer = keys.size("num_hidden_layers", high=MAX_LAYERS)
    hidden, vocab = keys.size("hidden_size"), keys.size("vocab_size", default=_vocab(keys))
    is_tied = keys.flag("tie_word_embeddings", default=family.is_tied)
    layers = [_layer(keys, family, i, hidden) for i in range(n_layer)]
    groups = tuple(
        dataclasses.replace(layer, n_layer=layers.count(layer)) for layer in dict.fromkeys(layers)
    )
    other = family.final_norms * hidden + family.positions(keys) * hidden
    form = precision.formats(keys, n_layer)
    max_context = keys.size("max_position_embeddings", default=0, low=0)
    keys.refuse_unknown(SHAPELY, HARMLESS)
    return LLM(
        name=name, source=source, hidden=hidden, vocab=vocab, is_tied=is_tied, groups=groups,
        other_params=other, max_context=max_context, dtype=form.dtype,
        attention_dtype=form.attention, matrix_dtype=form.matrix, expert_dtype=form.expert,
        kv_dtype=form.kv,
    )  # fmt: skip


def _open(config: Any, where: str) -> tuple[Keys, Family]:
    if not isinstance(config, dict):
        raise InputError("config.json", config, "a JSON object", where=where)
    model_type = config.get("model_type")
    known = [*FAMILIES, *COMPOSITE]
    if not isinstance(model_type, str) or model_type not in known:
        Keys(config, where).fail("model_type", model_type, "a known model type", known)
    if model_type in COMPOSITE:
        text = config.get("text_config")
        if not isinstance(text, dict):
            Keys(config, where).fail("text_config", text, "the language model's settings")
        outer = ("tie_word_embeddings", "torch_dtype", "dtype", "quantization_config")
        expected = COMPOSITE[model_type]
        if text.get("model_type") not in (None, expected):
            Keys(text, where, "text_config.").fail("model_type", text["model_type"], expected)
        # A null inside does not hide what the outer file says.
        given = {k: config[k] for k in outer if text.get(k) is None and k in config}
        config = text | given | {"model_type": expected}
    return Keys(config, where), FAMILIES[config["model_type"]]


def _vocab(keys: Keys) -> int | None:
    # Gemma 3's file leaves out what its configuration class defaults to.
    return 262208 if keys.model_type == "gemma3_text" else None


def _layer(keys: Keys, family: Family, i: int, hidden: int) -> LayerGroup:
    a, f = family.attention(keys, i), family.ffn(keys, i)
    return LayerGroup(
        n_layer=1,
        attention=a.kind,
        n_q=a.n_q,
        n_kv=a.n_kv,
        head_dim=a.head_dim,
        window=a.window,
        kv_elements=a.kv_elements,
        state_bytes=a.state_bytes,
        attention_params=a.params,
        attention_context_flops=a.context_flops,
        state_flops=a.state_flops,
        dense_params=f.dense_params,
        n_expert=f.n_expert,
        top_k=f.top_k,
        expert_params=f.expert_params,
        expert_bias_params=f.expert_bias_params,
        router_params=f.router_params,
        other_params=a.other_params + f.other_params + family.norms * hidden,
    )
