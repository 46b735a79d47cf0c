"""A slow twin of `jaxmem.xpu.step`: plain Python floats, one operator and one layer at a time.

Written from research/flashaccel.md section 3 and Hugging Face configurations; imports nothing of
jaxmem. Weights and KV cache lie in HBM, all of whose stacks are kept.
"""

import math

H200 = {
    "bf16": 989e12, "fp8": 1979e12, "bandwidth": 4.8e12,
    "eta_w": 0.95, "eta_m": 0.95, "eta_g": 0.7, "eta_a": 0.6, "t_op": 1e-6, "t_fixed": 300e-6,
}  # fmt: skip
NVLINK = {"bandwidth": 450e9, "alpha": 6e-6, "eta": 0.8}
RDMA = {"bandwidth": 50e9, "alpha": 12e-6, "eta": 0.8}

FP8 = 1 + 4 / 128**2

LLAMA_405B = {
    "hidden": 16384, "vocab": 128256, "matrix": 2.0, "is_fp8": False,
    "layers": [{"n": 126, "kind": "gqa", "q": 128, "kv": 8, "d": 128, "ffn": 53248}],
}  # fmt: skip
QWEN3_235B = {
    "hidden": 4096, "vocab": 151936, "matrix": 2.0, "is_fp8": False,
    "layers": [
        {"n": 94, "kind": "gqa", "q": 64, "kv": 4, "d": 128, "norms": 256,
         "experts": 128, "top": 8, "width": 1536},
    ],
}  # fmt: skip
_MLA = {
    "kind": "mla", "q": 128, "q_rank": 1536, "kv_rank": 512, "rope": 64, "nope": 128, "v": 128,
    "norms": 2048,
}  # fmt: skip
DEEPSEEK_V3 = {
    "hidden": 7168, "vocab": 129280, "matrix": FP8, "is_fp8": True,
    "layers": [
        {"n": 3, **_MLA, "ffn": 18432},
        {"n": 58, **_MLA, "experts": 256, "top": 8, "width": 2048, "ffn": 2048, "bias": 256},
    ],
}  # fmt: skip
GEMMA3_12B = {
    "hidden": 3840, "vocab": 262208, "matrix": 2.0, "is_fp8": False,
    "layers": [
        {"n": 40, "kind": "gqa", "q": 16, "kv": 8, "d": 256, "ffn": 15360, "norms": 512 + 7680,
         "window": 1024},
        {"n": 8, "kind": "gqa", "q": 16, "kv": 8, "d": 256, "ffn": 15360, "norms": 512 + 7680},
    ],
}  # fmt: skip


def attention(model, layer):
    """Of a whole layer: matrix elements, KV elements a token, FLOP a token and context token."""
    h, q = model["hidden"], layer["q"]
    if layer["kind"] == "mla":
        latent, rope = layer["kv_rank"], layer["rope"]
        params = h * layer["q_rank"] + layer["q_rank"] * q * (layer["nope"] + rope)
        params += h * (latent + rope) + latent * q * (layer["nope"] + layer["v"])
        params += q * layer["v"] * h
        return params, latent + rope, 2 * q * (2 * latent + rope)
    d, kv = layer["d"], layer["kv"]
    return 2 * h * q * d + 2 * h * kv * d, 2 * kv * d, 4 * q * d


def step(model, n_gpu, tp, dp, ep, n_token, n_request, context, domain=8, reads_touched=False):
    """(seconds by cause, weight bytes, KV bytes, link bytes) of a GPU."""
    h, gpu = model["hidden"], H200
    peak = gpu["eta_g"] * (gpu["fp8"] if model["is_fp8"] else gpu["bf16"])
    local, requests = n_token / dp, n_request / dp
    fresh = n_token / n_request
    parts = dict.fromkeys(
        ("attention", "kv", "ffn", "expert", "collective", "overhead", "head"), 0.0
    )
    weights = kv_total = sent_total = 0.0

    def operator(n_bytes, flops):
        return max(n_bytes / (gpu["eta_w"] * gpu["bandwidth"]), flops / peak)

    def on(k):
        return NVLINK if k <= domain else RDMA

    for layer in model["layers"]:
        params, kv_elements, context_flops = attention(model, layer)
        experts, top = layer.get("experts", 0), layer.get("top", 0)
        router = experts * h
        plain = 2 * h + layer.get("norms", 0) + layer.get("bias", 0)
        window = layer.get("window", math.inf)
        for _ in range(layer["n"]):
            a_bytes = (params * model["matrix"] + (router + plain) * 2) / tp
            parts["attention"] += operator(a_bytes, local * 2 * (params + router) / tp)
            is_mla = layer["kind"] == "mla"
            held = 1.0 if is_mla else math.ceil(layer["kv"] / tp) / layer["kv"]
            kv = requests * kv_elements * 2 * held * min(context, window)
            seen = min(context + (fresh - 1) / 2, window)
            parts["kv"] += max(
                kv / (gpu["eta_m"] * gpu["bandwidth"]),
                local * context_flops / tp * seen / (gpu["eta_a"] * gpu["bf16"]),
            )
            f = 3 * h * layer.get("ffn", 0) / tp
            parts["ffn"] += operator(f * model["matrix"], local * 2 * f)
            weights += a_bytes + f * model["matrix"]
            message = local * h * 2
            k, link = tp, on(tp)
            is_routed = bool(experts) and dp > 1
            n_reduce = 1 if is_routed else 2
            sent = n_reduce * 2 * (k - 1) / k * message
            seconds = sent / (link["eta"] * link["bandwidth"])
            seconds += n_reduce * 2 * link["alpha"] if k > 1 else 0
            if experts:
                shared = max(tp // ep, 1)  # GPUs that share each expert
                one = 3 * h * layer["width"] / shared
                tokens = n_token * ep * shared / (tp * dp)
                read = experts
                if reads_touched:
                    read = experts * (1 - (1 - top / experts) ** tokens)
                e_bytes = read / ep * one * model["matrix"]
                parts["expert"] += operator(e_bytes, tokens * top / ep * 2 * one)
                weights += e_bytes
                if is_routed:
                    link = on(ep)
                    routed = 2 * message / tp * top * (ep - 1) / ep
                    seconds += routed / (link["eta"] * link["bandwidth"])
                    seconds += 2 * link["alpha"] if ep > 1 else 0
                    sent += routed
            parts["collective"] += seconds
            parts["overhead"] += (14 if experts else 10) * gpu["t_op"]
            kv_total += kv
            sent_total += sent
    head = h * model["vocab"] / tp
    parts["head"] = operator(head * 2, requests * 2 * head)
    parts["overhead"] += gpu["t_fixed"]
    return parts, weights + head * 2, kv_total, sent_total
