"""A transformer layer as LLMCompass builds it, operator by operator, on the mapped fidelity.

GPT-3's shape: multi-head attention, scores to memory, a GELU FFN of four times the width, tensor
parallel over the devices with an all-reduce after each half. Operators follow one another, each
with its fixed time. This is what the mapped operators are held against (research/llmcompass.md
section 2); `step` is the model of today's transformers.
"""

from typing import Any

from jaxmem.core.design import Leaf
from jaxmem.devices.chip import Chip
from jaxmem.xpu import collectives, matmul, vector
from jaxmem.xpu.collectives import Packets


def gpt_layer_s(
    chip: Chip, link: Packets, *, width: Leaf, n_head: Leaf, n_device: Leaf, batch: Leaf,
    n_token: Leaf, context_tokens: Leaf,
) -> dict[str, Any]:  # fmt: skip
    """Seconds of one layer by operator.

    Args:
        chip: each device.
        link: between them.
        width: of the model.
        n_head: attention heads.
        n_device: devices that share the layer.
        batch: sequences.
        n_token: tokens of each that are computed: 1 in decode, all in prefill.
        context_tokens: tokens that each attends to.
    """
    rows, part = batch * n_token, width / n_device
    heads, head = batch * n_head / n_device, width / n_head

    def product(m: Leaf, k: Leaf, n: Leaf, n_batch: Leaf = 1.0) -> Leaf:
        return matmul.mapped_s(chip, m, k, n, n_batch=n_batch) + chip.matmul_s

    norm = vector.norm_s(chip, rows, width) + chip.norm_s
    reduce = collectives.packet_all_reduce_s(link, rows * width * 2.0)
    softmax = vector.softmax_s(chip, heads * n_token, context_tokens)
    return {
        "Q_K_V": 3.0 * product(rows, width, part),
        "Q_mul_K": product(n_token, head, context_tokens, heads),
        "A_mul_V": product(n_token, context_tokens, head, heads),
        "Wo_proj": product(rows, part, width),
        "W1_proj": product(rows, width, 4.0 * part),
        "W2_proj": product(rows, 4.0 * part, width),
        "Softmax": softmax + chip.softmax_s,
        "LayerNorm_MHA": norm,
        "LayerNorm_FFN": norm,
        "GeLU": vector.gelu_s(chip, rows * 4.0 * part) + chip.activation_s,
        "AllReduce_MHA": reduce,
        "AllReduce_FFN": reduce,
    }
