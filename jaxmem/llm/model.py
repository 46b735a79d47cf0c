"""What a transformer is, as far as memory and arithmetic are concerned: counts and bytes.

A model is groups of like layers. Counts are exact, by the closed formulas that `hf.py` applies to a
Hugging Face configuration; multi-token-prediction layers and vision towers are left out.
"""

import dataclasses
import math

ELEMENT_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    # One FP32 scale a block of 128 x 128; blocks cut off at edges (under 1e-5) are not rounded up.
    "fp8": 1.0 + 4.0 / (128 * 128),
    "fp8-tensor": 1.0,  # one scale a tensor: nothing
    "mxfp4": 4.25 / 8,  # blocks of 32 elements share an 8-bit scale
}
"""Bytes a weight element takes in each format, scales included."""

KV_ELEMENT_BYTES = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,  # one scale a tensor: nothing
    "fp8-block32": 1.0 + 2.0 / 32,  # a 16-bit scale a block of 32
}
"""Bytes a KV cache element takes in each format, scales included."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerGroup:
    """Layers of one kind; every count is per layer, before any parallelism."""

    n_layer: int
    attention: str  # gqa, mla or linear
    n_q: int  # query heads
    n_kv: int  # KV heads; 1 for the shared latent of MLA
    head_dim: int  # elements of one stored Key; the whole latent for MLA
    window: int = 0  # tokens that attention reaches back, 0 = all
    kv_elements: int  # elements stored a token, Keys and Values together
    state_bytes: int = 0  # fixed state a sequence (linear attention)
    attention_params: int  # matrices of attention
    attention_context_flops: int  # a new token, per token of context
    state_flops: int = 0  # a new token, on the fixed state
    dense_params: int = 0  # matrices of a dense FFN or of the shared experts
    n_expert: int = 0
    top_k: int = 0
    expert_params: int = 0  # matrices of one expert
    expert_bias_params: int = 0
    router_params: int = 0
    other_params: int = 0  # norms, biases, convolutions

    @property
    def n_param(self) -> int:
        """Parameters of a layer."""
        experts = self.n_expert * (self.expert_params + self.expert_bias_params)
        return (
            self.attention_params
            + self.dense_params
            + self.router_params
            + self.other_params
            + experts
        )

    @property
    def n_param_active(self) -> int:
        """Parameters of a layer that one token uses."""
        idle = self.n_expert - self.top_k
        return self.n_param - idle * (self.expert_params + self.expert_bias_params)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LLM:
    """A decoder-only model: static facts."""

    name: str
    source: str = ""
    hidden: int
    vocab: int
    is_tied: bool
    groups: tuple[LayerGroup, ...]
    other_params: int = 0  # final norm, learned positions
    max_context: int = 0
    dtype: str = "bfloat16"  # of activations and unquantised weights
    attention_dtype: str = "bfloat16"  # of attention's matrices
    matrix_dtype: str = "bfloat16"  # of matrices of dense FFNs and shared experts
    expert_dtype: str = "bfloat16"  # of expert matrices
    kv_dtype: str = "bfloat16"

    @property
    def n_layer(self) -> int:
        """Layers of all kinds."""
        return sum(g.n_layer for g in self.groups)

    @property
    def embedding_params(self) -> int:
        """Parameters of the input embedding."""
        return self.vocab * self.hidden

    @property
    def head_params(self) -> int:
        """Parameters of the output head, 0 where it is the embedding."""
        return 0 if self.is_tied else self.vocab * self.hidden

    @property
    def n_param(self) -> int:
        """Parameters in all; tied embeddings count once.

        Example:
            >>> from jaxmem.llm import load
            >>> load("qwen3-4b").n_param
            4022468096
        """
        layers = sum(g.n_layer * g.n_param for g in self.groups)
        return layers + self.embedding_params + self.head_params + self.other_params

    @property
    def n_param_active(self) -> int:
        """Parameters that one token uses, embedding and head included."""
        idle = sum(g.n_layer * (g.n_param - g.n_param_active) for g in self.groups)
        return self.n_param - idle

    @property
    def n_param_active_without_input_embedding(self) -> int:
        """Parameters that one token multiplies with: a look-up is no product, a tied head is one.

        Example:
            >>> from jaxmem.llm import load
            >>> load("gpt-oss-120b").n_param_active_without_input_embedding  # published: 5.13B
            5132849472
        """
        return self.n_param_active - (0 if self.is_tied else self.embedding_params)

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights, in the formats that they are stored in.

        Example:
            >>> from jaxmem.llm import load
            >>> round(load("gpt-oss-120b").weight_bytes / 2**30, 1)  # GiB, as published
            60.8
        """
        dtype, matrix = ELEMENT_BYTES[self.dtype], ELEMENT_BYTES[self.matrix_dtype]
        attention, expert = ELEMENT_BYTES[self.attention_dtype], ELEMENT_BYTES[self.expert_dtype]
        total = dtype * (self.embedding_params + self.head_params + self.other_params)
        for g in self.groups:
            rest = g.router_params + g.other_params + g.n_expert * g.expert_bias_params
            matrices = attention * g.attention_params + matrix * g.dense_params
            total += g.n_layer * (matrices + expert * g.n_expert * g.expert_params + dtype * rest)
        return total

    def kv_bytes_token(self, context: int | None = None) -> float:
        """KV cache bytes that a token adds over all layers; not divided by TP.

        Args:
            context: tokens already there: layers whose window is full only replace theirs and add
                nothing. None: before any window is full.

        Example:
            >>> from jaxmem.llm import load
            >>> load("deepseek-v3").kv_bytes_token()
            70272.0
            >>> load("gpt-oss-20b").kv_bytes_token(), load("gpt-oss-20b").kv_bytes_token(128)
            (49152.0, 24576.0)
        """
        is_full = [context is not None and 0 < g.window <= context for g in self.groups]
        rows = zip(self.groups, is_full, strict=True)
        return float(sum(g.n_layer * self._layer_kv_bytes(g) for g, full in rows if not full))

    def kv_bytes(self, context: int, *, unified: bool = False) -> float:
        """KV cache bytes of one sequence of `context` tokens.

        Args:
            context: tokens.
            unified: whether layers with a window keep pages for the whole context (one pool for
                all layers) or, by default, only a ring of their window.

        Example:
            >>> from jaxmem.llm import load
            >>> model = load("gpt-oss-20b")
            >>> [32 * model.kv_bytes(8192, unified=u) / 2**30 for u in (False, True)]  # GiB
            [6.09375, 12.0]
        """
        total = 0.0
        for g in self.groups:
            reach = context if unified or not g.window else min(context, g.window)
            total += g.n_layer * (self._layer_kv_bytes(g) * reach + g.state_bytes)
        return total

    def _layer_kv_bytes(self, g: LayerGroup) -> float:
        return g.kv_elements * KV_ELEMENT_BYTES[self.kv_dtype]


def window_tokens(group: LayerGroup) -> float:
    """Tokens that a layer's attention reaches back: infinite without a window."""
    return float(group.window) if group.window else math.inf
