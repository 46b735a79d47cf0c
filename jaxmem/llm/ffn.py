"""Feed-forward layers of the known model types: dense, and mixtures of experts."""

from typing import NamedTuple

from jaxmem.llm.keys import Keys


class Ffn(NamedTuple):
    """One layer's feed-forward network."""

    dense_params: int = 0  # matrices of a dense FFN or of the shared experts
    n_expert: int = 0
    top_k: int = 0
    expert_params: int = 0
    expert_bias_params: int = 0
    router_params: int = 0
    other_params: int = 0


def dense(keys: Keys, i: int) -> Ffn:
    """Gated: three matrices."""
    hidden, width = keys.size("hidden_size"), keys.size("intermediate_size")
    biases = 2 * width + hidden if keys.flag("mlp_bias") else 0
    keys.indices("mlp_only_layers")
    return Ffn(dense_params=3 * hidden * width, other_params=biases)


def plain(keys: Keys, i: int) -> Ffn:
    """OPT and GPT-3: two matrices with biases."""
    hidden = keys.size("hidden_size")
    name = "ffn_dim" if keys.raw("ffn_dim") is not None else "intermediate_size"
    width = keys.size(name)
    return Ffn(dense_params=2 * hidden * width, other_params=width + hidden)


def mixtral(keys: Keys, i: int) -> Ffn:
    """Experts as wide as `intermediate_size`, none shared."""
    return _experts(keys, "num_local_experts", keys.size("intermediate_size"))


def minimax(keys: Keys, i: int) -> Ffn:
    """As `mixtral`, with a correction bias an expert where asked for; no shared expert."""
    if keys.size("shared_intermediate_size", default=0, low=0):
        keys.fail("shared_intermediate_size", keys.raw("shared_intermediate_size"), "0 (none)")
    layer = mixtral(keys, i)
    return layer._replace(other_params=layer.n_expert if keys.flag("use_routing_bias") else 0)


def qwen_moe(keys: Keys, i: int) -> Ffn:
    """Experts in every `decoder_sparse_step`-th layer; a gated shared one where it has a width."""
    step = keys.size("decoder_sparse_step", default=1)
    width = keys.size("intermediate_size", default=0, low=0)
    if i in keys.indices("mlp_only_layers") or (i + 1) % step:
        if not width:
            keys.fail("intermediate_size", None, "the width of the dense layers")
        return Ffn(dense_params=3 * keys.size("hidden_size") * width)
    hidden = keys.size("hidden_size")
    layer = _experts(keys, "num_experts", keys.size("moe_intermediate_size"))
    shared = keys.size("shared_expert_intermediate_size", default=0, low=0)
    gate = hidden if shared else 0
    return layer._replace(dense_params=3 * hidden * shared, other_params=gate)


def gpt_oss(keys: Keys, i: int) -> Ffn:
    """Experts and router with biases."""
    hidden, width = keys.size("hidden_size"), keys.size("intermediate_size")
    layer = _experts(keys, "num_local_experts", width)
    again = keys.size("experts_per_token", default=layer.top_k)
    if again != layer.top_k:
        keys.fail("experts_per_token", again, f"num_experts_per_tok, {layer.top_k}")
    return layer._replace(expert_bias_params=2 * width + hidden, other_params=layer.n_expert)


def deepseek(keys: Keys, i: int) -> Ffn:
    """The first layers dense, then experts with shared ones beside them."""
    hidden = keys.size("hidden_size")
    first = keys.size("first_k_dense_replace", default=0, low=0)
    step = keys.size("moe_layer_freq", default=1)
    width = keys.size("intermediate_size")
    expert_width = keys.size("moe_intermediate_size")
    layer = _experts(keys, "n_routed_experts", expert_width)
    shared = keys.size("n_shared_experts", default=0, low=0)
    if i < first or i % step:
        return Ffn(dense_params=3 * hidden * width)
    return layer._replace(dense_params=3 * hidden * shared * expert_width)


def deepseek_biased(keys: Keys, i: int) -> Ffn:
    """As `deepseek`, with a correction bias an expert."""
    layer = deepseek(keys, i)
    return layer._replace(other_params=layer.n_expert)


def _experts(keys: Keys, name: str, width: int) -> Ffn:
    hidden = keys.size("hidden_size")
    n_expert = keys.size(name, high=65536)
    top_k = keys.size("num_experts_per_tok", high=65536)
    if top_k > n_expert:
        keys.fail("num_experts_per_tok", top_k, f"at most the {n_expert} experts")
    return Ffn(
        n_expert=n_expert,
        top_k=top_k,
        expert_params=3 * hidden * width,
        router_params=hidden * n_expert,
    )
