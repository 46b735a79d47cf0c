"""Which number format each part of a model is stored in, from its `quantization_config`.

Formats are those of `model.ELEMENT_BYTES` and `model.KV_ELEMENT_BYTES`. A scheme that is not fully
understood is refused: a wrong width would quietly halve or double a model. Embeddings, head, norms,
biases and router keep the unquantised width, as published FP8 and MXFP4 checkpoints have them.
"""

import re
from typing import Any, NamedTuple

from jaxmem.llm.keys import Keys
from jaxmem.llm.model import KV_ELEMENT_BYTES

METHODS = ("fp8", "mxfp4")
DTYPES = ("bfloat16", "float16", "float32")
SCHEME_KEYS = {
    "quant_method", "weight_block_size", "modules_to_not_convert", "ignored_layers",
    "kv_cache_scheme", "kv_cache_quant_algo", "activation_scheme", "fmt", "scale_fmt",
    "dequantize",
}  # fmt: skip
"""Keys of a scheme that are read, or that change no width (those of activations)."""

_MODULE = re.compile(r"^(?:(?:model|language_model)\.)*(?:layers\.(\d+|\*)\.)?(.*?)(?:\.\*)?$")
_NEVER_CONVERTED = re.compile(
    r"norm|embed|lm_head|router|(^|[._])gate$|bias|vision|visual|projector|(^|\.)mtp|conv1d"
)
_PARTS = {
    "self_attn": ("attention",),
    "linear_attn": ("linear",),
    "mlp": ("matrix", "expert"),
    "mlp.experts": ("expert",),
    "mlp.shared_expert": ("matrix",),
    "mlp.shared_experts": ("matrix",),
}


class Formats(NamedTuple):
    """Number formats by part."""

    dtype: str  # activations, embeddings, head, norms, router
    attention: str  # attention's matrices
    matrix: str  # matrices of dense FFNs and shared experts
    expert: str  # matrices of routed experts
    kv: str  # KV cache


def formats(keys: Keys, n_layer: int) -> Formats:
    """The formats that a configuration asks for; an absent dtype means bfloat16.

    Args:
        keys: the configuration.
        n_layer: layers of the model, to tell its modules from those of an MTP layer.

    Raises:
        InputError: an unknown method, key or module, or one that singles out some layers.
    """
    dtype = keys.choice("torch_dtype", DTYPES, default=keys.choice("dtype", DTYPES, "bfloat16"))
    scheme = keys.table("quantization_config")
    if scheme is None:
        return Formats(dtype, dtype, dtype, dtype, dtype)
    method = scheme.choice("quant_method", METHODS)
    for key, value in scheme.config.items():
        if not isinstance(key, str):
            scheme.fail("keys", key, "text")
        if key not in SCHEME_KEYS and value is not None:
            scheme.fail(key[:80], value, "a key that jaxmem understands")
    if method == "fp8":
        block = scheme.raw("weight_block_size")
        if block not in (None, [128, 128]):
            scheme.fail("weight_block_size", block, "[128, 128]")
        wide = "fp8" if block else "fp8-tensor"
        found = Formats(dtype, wide, wide, wide, _kv(scheme, dtype))
    elif keys.model_type == "gpt_oss":
        found = Formats(dtype, dtype, dtype, "mxfp4", _kv(scheme, dtype))
    else:
        scheme.fail("quant_method", method, "fp8 (mxfp4 is read for gpt_oss alone)")
    is_hybrid = keys.raw("linear_num_key_heads") is not None
    kept = _unconverted(scheme, n_layer, is_hybrid)
    return found._replace(**dict.fromkeys(kept, dtype))


def _unconverted(scheme: Keys, n_layer: int, is_hybrid: bool) -> set[str]:
    """Parts that the scheme leaves in the model's own format, in every layer."""
    layers: dict[str, set[int]] = {}
    for key in ("modules_to_not_convert", "ignored_layers"):
        for name in scheme.texts(key):
            match = _MODULE.match(name)
            number, module = match.groups() if match else (None, name)
            if _NEVER_CONVERTED.search(name):
                continue
            is_one = number is not None and number != "*"
            if is_one and (len(number) > 6 or int(number) >= n_layer):
                continue  # the MTP layer, which is not modelled
            if module not in _PARTS:
                scheme.fail(key, name, "a whole attention, mlp or experts module", _PARTS)
            of = {int(number)} if is_one else set(range(n_layer))
            for part in _PARTS[module]:
                layers.setdefault(part, set()).update(of)
    # One format a part is all that a table holds: a part is left alone everywhere or nowhere.
    for part, of in layers.items():
        if len(of) != n_layer:
            scheme.fail("modules_to_not_convert", f"{part} of {len(of)} layers", f"all {n_layer}")
    if is_hybrid and ("attention" in layers) != ("linear" in layers):
        given = "linear_attn" if "linear" in layers else "self_attn"
        scheme.fail("modules_to_not_convert", given, "both self_attn and linear_attn, or neither")
    return set(layers) - {"linear"}


def _kv(scheme: Keys, dtype: str) -> str:
    for key in ("kv_cache_scheme", "kv_cache_quant_algo"):
        value: Any = scheme.raw(key)
        if value is None:
            continue
        if isinstance(value, dict):
            if value.get("num_bits") != 8 or value.get("type", "float") != "float":
                scheme.fail(key, value, "8-bit floats")
            return "fp8"
        if not isinstance(value, str) or value.lower() not in KV_ELEMENT_BYTES:
            scheme.fail(key, value, "one of " + ", ".join(KV_ELEMENT_BYTES))
        return value.lower()
    return dtype
