"""Attention layers of the known model types: parameters, stored elements, arithmetic.

One function a kind; each reads the configuration's keys for layer `i`. Formulas as research
collected them from the published configurations, checked against published counts.
"""

from typing import NamedTuple

from jaxmem.llm.keys import Keys


class Attention(NamedTuple):
    """One layer's attention."""

    kind: str
    n_q: int
    n_kv: int
    head_dim: int
    params: int  # matrices
    other_params: int  # biases, norms, sinks, convolutions
    kv_elements: int  # stored a token
    context_flops: int  # a token, per token of context
    window: int = 0
    state_bytes: int = 0
    state_flops: int = 0


WINDOW_TYPES = ("full_attention", "sliding_attention")
HYBRID_TYPES = ("full_attention", "linear_attention")
STATE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def gqa(keys: Keys, i: int) -> Attention:
    """Grouped-query attention; Llama's biases are on all four projections."""
    return _gqa(keys, i, bias="qkvo" if keys.flag("attention_bias") else "")


def gqa_all_windowed(keys: Keys, i: int) -> Attention:
    """Grouped-query attention whose window, where there is one, holds in every layer."""
    default = 4096 if keys.model_type == "mistral" and "sliding_window" not in keys.config else 0
    window = keys.size("sliding_window", default=default, low=0)
    bias = "qkvo" if keys.flag("attention_bias") else ""
    return _gqa(keys, i, bias=bias, window=window)


def qwen2(keys: Keys, i: int) -> Attention:
    """Biases on q, k and v; windows only where asked for, in the last layers."""
    return _gqa(keys, i, bias="qkv", window=_late_window(keys, i))


def qwen3(keys: Keys, i: int) -> Attention:
    """Norms on q and k."""
    bias = "qkvo" if keys.flag("attention_bias") or keys.flag("qkv_bias") else ""
    keys.only("use_qk_norm", True)
    return _gqa(keys, i, bias=bias, qk_norm=True, window=_late_window(keys, i))


def minimax(keys: Keys, i: int) -> Attention:
    """Norms over the whole query and key of a layer."""
    keys.choice("qk_norm_type", ("per_layer",), default="per_layer")
    layer = _gqa(keys, i)
    if not keys.flag("use_qk_norm"):
        return layer
    return layer._replace(other_params=(layer.n_q + layer.n_kv) * layer.head_dim)


def glm(keys: Keys, i: int) -> Attention:
    """Biases on q, k and v; norms on q and k where asked for."""
    bias = "qkv" if keys.flag("attention_bias") else ""
    return _gqa(keys, i, bias=bias, qk_norm=keys.flag("use_qk_norm"))


def gemma2(keys: Keys, i: int) -> Attention:
    """Windows in even layers."""
    bias = "qkvo" if keys.flag("attention_bias") else ""
    window = keys.size("sliding_window", default=4096)
    if keys.size("sliding_window_size", default=window) != window:
        keys.fail("sliding_window_size", keys.raw("sliding_window_size"), f"the window, {window}")
    return _gqa(keys, i, bias=bias, head_dim=256, window=window if i % 2 == 0 else 0)


def gemma3(keys: Keys, i: int) -> Attention:
    """Norms on q and k; full attention in every sixth layer, windows in the others."""
    bias = "qkvo" if keys.flag("attention_bias") else ""
    window = keys.size("sliding_window", default=4096)
    pattern = keys.size("sliding_window_pattern", default=6)
    is_full = (i + 1) % pattern == 0
    window = 0 if is_full else window
    return _gqa(keys, i, bias=bias, head_dim=256, qk_norm=True, window=window)


def gpt_oss(keys: Keys, i: int) -> Attention:
    """Biases on all four projections, a learned sink a head; windows in even layers."""
    keys.only("attention_bias", True)
    window = keys.size("sliding_window", default=128)
    layer = _gqa(keys, i, bias="qkvo", window=window if i % 2 == 0 else 0)
    return layer._replace(other_params=layer.other_params + layer.n_q)


def biased(keys: Keys, i: int) -> Attention:
    """OPT and GPT-3: multi-head attention with biases everywhere."""
    keys.only("enable_bias", True)
    # OPT-350m alone norms after each block and has no final norm: not this model.
    keys.only("do_layer_norm_before", True)
    keys.only("_remove_final_layer_norm", False)
    keys.only("layer_norm_elementwise_affine", True)
    hidden = keys.size("hidden_size")
    if keys.size("word_embed_proj_dim", default=hidden) != hidden:
        keys.fail("word_embed_proj_dim", keys.raw("word_embed_proj_dim"), f"the width, {hidden}")
    return _gqa(keys, i, bias="qkvo")


def mla(keys: Keys, i: int) -> Attention:
    """Multi-head latent attention: the cache is one latent and one rotary key for all heads."""
    keys.only("attention_bias", False)
    hidden, n_q = keys.size("hidden_size"), keys.size("num_attention_heads")
    keys.size("num_key_value_heads", default=n_q)
    keys.size("head_dim", default=1)
    q_rank = keys.size("q_lora_rank", default=0, low=0)
    kv_rank, rotary = keys.size("kv_lora_rank"), keys.size("qk_rope_head_dim")
    plain, value = keys.size("qk_nope_head_dim"), keys.size("v_head_dim")
    query = n_q * (plain + rotary)
    q_params = hidden * q_rank + q_rank * query if q_rank else hidden * query
    kv_params = hidden * (kv_rank + rotary) + kv_rank * n_q * (plain + value)
    return Attention(
        kind="mla",
        n_q=n_q,
        n_kv=1,
        head_dim=kv_rank + rotary,
        params=q_params + kv_params + n_q * value * hidden,
        other_params=q_rank + kv_rank,
        kv_elements=kv_rank + rotary,
        context_flops=2 * n_q * (2 * kv_rank + rotary),
    )


def qwen_hybrid(keys: Keys, i: int) -> Attention:
    """Gated DeltaNet, with gated full attention in every fourth layer."""
    n_layer = keys.size("num_hidden_layers")
    interval = keys.size("full_attention_interval", default=4)
    types = keys.words("layer_types", HYBRID_TYPES, n_layer)
    is_full = types[i] == "full_attention" if types else (i + 1) % interval == 0
    keys.only("use_sliding_window", False)
    if is_full:
        bias = "qkvo" if keys.flag("attention_bias") else ""
        layer = _gqa(keys, i, bias=bias, qk_norm=True, use_types=False)
        is_gated = keys.flag("attn_output_gate", default=True)
        gate = is_gated * keys.size("hidden_size") * layer.n_q * layer.head_dim
        return layer._replace(params=layer.params + gate)
    hidden = keys.size("hidden_size")
    n_key, n_value = keys.size("linear_num_key_heads"), keys.size("linear_num_value_heads")
    key, value = keys.size("linear_key_head_dim"), keys.size("linear_value_head_dim")
    kernel = keys.size("linear_conv_kernel_dim")
    keys.size("num_attention_heads")
    width = keys.choice("mamba_ssm_dtype", tuple(STATE_BYTES), default="float32")
    channels = 2 * n_key * key + n_value * value
    state = n_value * key * value
    return Attention(
        kind="linear",
        n_q=n_value,
        n_kv=n_key,
        head_dim=key,
        params=hidden * (channels + n_value * value)
        + hidden * 2 * n_value
        + n_value * value * hidden,
        other_params=channels * kernel + 2 * n_value + value,
        kv_elements=0,
        context_flops=0,
        # The recurrent state and, in 16 bits, the convolution's last inputs.
        state_bytes=STATE_BYTES[width] * state + 2 * channels * (kernel - 1),
        # Decay, the key's read, the outer product's update and the query's read.
        state_flops=7 * state,
    )


def _gqa(
    keys: Keys,
    i: int,
    *,
    bias: str = "",
    qk_norm: bool = False,
    head_dim: int | None = None,
    window: int = 0,
    use_types: bool = True,
) -> Attention:
    hidden, n_q = keys.size("hidden_size"), keys.size("num_attention_heads")
    n_kv = keys.size("num_key_value_heads", default=n_q)
    if n_q % n_kv:
        keys.fail("num_key_value_heads", n_kv, f"a divisor of the {n_q} query heads")
    if head_dim is None and keys.raw("head_dim") is None and hidden % n_q:
        keys.fail("head_dim", None, f"a head size ({n_q} heads do not divide {hidden})")
    size = keys.size("head_dim", default=head_dim or hidden // n_q, high=65536)
    if use_types:
        n_layer = keys.size("num_hidden_layers")
        types = keys.words("layer_types", WINDOW_TYPES, n_layer)
        if types:
            is_windowed = types[i] == "sliding_attention"
            reach = keys.size("sliding_window", default=window or None) if is_windowed else 0
            window = reach
    q, kv = n_q * size, n_kv * size
    biases = {"q": q, "k": kv, "v": kv, "o": hidden}
    return Attention(
        kind="gqa",
        n_q=n_q,
        n_kv=n_kv,
        head_dim=size,
        params=2 * hidden * q + 2 * hidden * kv,
        other_params=sum(biases[b] for b in bias) + (2 * size if qk_norm else 0),
        kv_elements=2 * kv,
        context_flops=4 * q,
        window=window,
    )


def _late_window(keys: Keys, i: int) -> int:
    # Class defaults of Qwen2 and Qwen3: a window of 4096 from layer 28 on; null means none.
    default = 0 if "sliding_window" in keys.config else 4096
    window = keys.size("sliding_window", default=default, low=0)
    first = keys.size("max_window_layers", default=28, low=0)
    return window if keys.flag("use_sliding_window") and i >= first else 0
