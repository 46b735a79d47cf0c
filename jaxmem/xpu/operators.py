"""Single operators on a GPU by their efficiency curves: products, attention, experts, collectives.

Each operator is counted (bytes, FLOP, pieces, what follows one after another) and its `Curve` turns
the counts into seconds. Rates are the GPU's. A curve's defaults give the plain roofline.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxmem.core.design import Leaf
from jaxmem.devices.curve import Curve
from jaxmem.devices.gpu import Gpu

_CORES = 132.0  # streaming multiprocessors of Hopper; enters only through `Curve.split`
_MEGA = 1e6
_HEAD_ROWS = 16.0  # query heads of a KV head are padded to a tensor core's rows
_LATENT_ROWS = 64.0  # of MLA's


class Work(NamedTuple):
    """What an operator does.

    Attributes:
        moved: bytes at `bytes_per_s`.
        flop: at `flops`.
        bytes_per_s: of memory, or of a link.
        flops: the peak.
        chain: elements that follow one after another.
        piece: pieces of work that cores take, 0 where there are always enough.
        other: bytes of other passes, `Curve.extra` times.
    """

    moved: Leaf
    flop: Leaf
    bytes_per_s: Leaf
    flops: Leaf
    chain: Leaf = 0.0
    piece: Leaf = 0.0
    other: Leaf = 0.0


def seconds(curve: Curve, work: Work) -> Leaf:
    """Time of an operator.

    Gradient: exact. Source: the roofline, with the curve's shares and fixed times.

    Example:
        >>> from jaxmem import devices
        >>> plain = Curve.create()
        >>> round(float(gemm_s(plain, devices.load("h200"), 16.0, 4096.0, 4096.0)) * 1e6, 2)  # us
        7.05
    """
    has_piece = jnp.greater(work.piece, 0)
    busy = 1.0 / (1.0 + _CORES / (jnp.where(has_piece, work.piece, 1.0) * curve.split))
    busy = jnp.where(has_piece, busy, 1.0)
    mega = work.moved / _MEGA
    root_s = curve.root_s * mega / jnp.sqrt(jnp.maximum(mega, 1e-12))
    sides = (
        work.moved / (curve.read_share * work.bytes_per_s * busy),
        work.flop / (curve.flops_share * work.flops),
        work.piece * curve.piece_s,
    )
    most = jnp.maximum(jnp.maximum(*sides[:2]), jnp.maximum(sides[2], 1e-12))
    power = curve.sharpness
    joined = most * sum((side / most) ** power for side in sides) ** (1.0 / power)
    other_s = curve.extra * work.other / work.bytes_per_s
    return curve.fixed_s + curve.chain_s * work.chain + root_s + other_s + joined


def gemm_s(curve: Curve, gpu: Gpu, m: Leaf, n: Leaf, k: Leaf, *, is_fp8: Leaf = 0.0) -> Leaf:
    """Seconds of a matrix product [m, k] x [k, n]; results and unquantised inputs in 16 bits.

    An FP8 product also quantises its input: those bytes are read and written `Curve.extra` times.
    """
    word = jnp.where(is_fp8 > 0, 1.0, 2.0)
    peak = jnp.where(is_fp8 > 0, gpu.fp8_flops, gpu.bf16_flops)
    moved = word * (m * k + k * n) + 2.0 * m * n
    other = jnp.where(is_fp8 > 0, 3.0 * m * k, 0.0)
    return seconds(
        curve, Work(moved, 2.0 * m * n * k, gpu.hbm_bytes_per_s, peak, chain=k, other=other)
    )


def decode_attention_s(
    curve: Curve, gpu: Gpu, *, n_request: Leaf, context_tokens: Leaf, n_q: Leaf, n_kv: Leaf,
    head_dim: Leaf, kv_bytes: Leaf = 2.0, page_tokens: Leaf = 1.0,
) -> Leaf:  # fmt: skip
    """Seconds of one layer's attention of one new token a request, split over the KV cache.

    Args:
        curve: of the kernel.
        gpu: its rates.
        n_request: requests.
        context_tokens: cached tokens of each, rounded up to whole pages.
        n_q: query heads.
        n_kv: KV heads.
        head_dim: elements of a head.
        kv_bytes: of an element.
        page_tokens: of a page of the cache.
    """
    cached = jnp.ceil(context_tokens / page_tokens) * page_tokens
    work = n_request * n_kv
    moved = 2.0 * work * cached * head_dim * kv_bytes
    rows = jnp.ceil(n_q / n_kv / _HEAD_ROWS) * _HEAD_ROWS
    flop = 4.0 * work * cached * rows * head_dim
    return seconds(curve, Work(moved, flop, gpu.hbm_bytes_per_s, gpu.bf16_flops, piece=work))


def latent_attention_s(
    curve: Curve, gpu: Gpu, *, n_request: Leaf, context_tokens: Leaf, n_q: Leaf,
    kv_rank: Leaf = 512.0, rotary: Leaf = 64.0, kv_bytes: Leaf = 2.0,
) -> Leaf:  # fmt: skip
    """Seconds of one layer's MLA decode on the latent: all heads read one cache."""
    pairs = n_request * context_tokens
    moved = pairs * (kv_rank + rotary) * kv_bytes
    rows = jnp.maximum(n_q, _LATENT_ROWS)
    flop = 2.0 * pairs * rows * (2.0 * kv_rank + rotary)
    return seconds(curve, Work(moved, flop, gpu.hbm_bytes_per_s, gpu.bf16_flops, piece=n_request))


def prefill_attention_s(
    curve: Curve, gpu: Gpu, *, n_token: Leaf, cached_tokens: Leaf, n_q: Leaf, n_kv: Leaf,
    head_dim: Leaf, kv_bytes: Leaf = 2.0,
) -> Leaf:  # fmt: skip
    """Seconds of one layer's fused causal attention of a prompt over a cached context."""
    seen = cached_tokens + (n_token + 1.0) / 2.0
    flop = 4.0 * n_token * seen * n_q * head_dim
    moved = 2.0 * (cached_tokens + n_token) * n_kv * head_dim * kv_bytes
    moved += 4.0 * n_token * n_q * head_dim
    return seconds(curve, Work(moved, flop, gpu.hbm_bytes_per_s, gpu.bf16_flops))


def experts_s(
    curve: Curve, gpu: Gpu, *, n_token: Leaf, hidden: Leaf, width: Leaf, top_k: Leaf,
    n_expert: Leaf, n_gpu: Leaf, is_fp8: Leaf = 0.0, power: Leaf = 0.0, n_matrix: Leaf = 3.0,
) -> Leaf:  # fmt: skip
    """Seconds of a layer's routed experts on the busiest GPU: only those touched are read.

    Args:
        curve: of the kernels.
        gpu: its rates.
        n_token: tokens of the whole group.
        hidden: width of a token.
        width: of an expert on this GPU.
        top_k: experts that a token visits.
        n_expert: of all GPUs.
        n_gpu: GPUs that the experts are spread over.
        is_fp8: 1 where matrices are FP8.
        power: of the power law that experts' popularity follows, 0 where all get as many tokens.
        n_matrix: matrices of an expert: 3 gated, 2 not.
    """
    local = jnp.maximum(n_expert / n_gpu, 1.0)
    mean = n_token * top_k / n_gpu
    crowd = jnp.minimum(mean * (n_gpu - 1.0), curve.crowd)
    uneven = mean * n_gpu ** (curve.skew * power) + crowd
    visits = jnp.where(power > 0, uneven, mean)
    visits = jnp.clip(visits, 1.0, jnp.maximum(n_token * jnp.minimum(top_k, local), 1.0))
    even = jnp.minimum(local, visits)
    uneven = jnp.maximum(local * -jnp.expm1(-visits / local), 1.0)
    touched = jnp.where(power > 0, uneven, even)
    word = jnp.where(is_fp8 > 0, 1.0, 2.0)
    peak = jnp.where(is_fp8 > 0, gpu.fp8_flops, gpu.bf16_flops)
    one = n_matrix * hidden * width
    moved = touched * one * word + curve.passes * visits * 2.0 * (3.0 * hidden + 5.0 * width)
    flop = 2.0 * (visits + touched * curve.padding) * one
    other = 2.0 * n_token * top_k * hidden
    return seconds(curve, Work(moved, flop, gpu.hbm_bytes_per_s, peak, chain=local, other=other))


PASSES = {"all-reduce": 2.0, "all-gather": 1.0, "reduce-scatter": 1.0, "all-to-all": 1.0}
"""Times that a message passes a GPU's link, but for its own part."""


def collective_s(
    curve: Curve, bytes_per_s: Leaf, *, message_bytes: Leaf, n_gpu: Leaf, n_pass: Leaf
) -> Leaf:
    """Seconds of a collective over `n_gpu` GPUs of one domain; `n_pass` of `PASSES`."""
    moved = n_pass * (n_gpu - 1.0) / n_gpu * message_bytes
    return seconds(curve, Work(moved, 0.0, bytes_per_s, 1.0, chain=n_gpu - 1.0))


def dispatch_s(
    curve: Curve, bytes_per_s: Leaf, *, n_token: Leaf, hidden: Leaf, top_k: Leaf, n_gpu: Leaf,
    element_bytes: Leaf,
) -> Leaf:  # fmt: skip
    """Seconds that a GPU's tokens take to their experts, or back: each goes once to a GPU.

    A token's `top_k` experts lie on fewer GPUs than that: N (1 - (1 - 1/N)^k) of N on average.
    """
    places = n_gpu * -jnp.expm1(top_k * jnp.log1p(-1.0 / n_gpu))
    moved = n_token * hidden * element_bytes * places * (n_gpu - 1.0) / n_gpu
    return seconds(curve, Work(moved, 0.0, bytes_per_s, 1.0, chain=top_k))
