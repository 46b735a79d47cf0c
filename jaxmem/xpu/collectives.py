"""Collectives of a transformer layer on a node: all-reduce under TP, dispatch and combine under EP.

Bandwidth and latency, each on the link that the group spans: the scale-up network inside a domain,
the scale-out network beyond it, flat (research/flashaccel.md section 3) or in two levels. Left out:
contention between groups, and overlap with computation.
"""

from typing import NamedTuple

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.devices.link import Link
from jaxmem.devices.node import Node
from jaxmem.llm.parallel import Parallel


class Packets(NamedTuple):
    """Links that carry packets, as LLMCompass describes an interconnect.

    Attributes:
        n_device: devices.
        bytes_per_s: all links of a device, one direction.
        latency_s: of a hop.
        header_bytes: of a packet, whole flits.
        payload_bytes: most of a packet.
        internal_bytes_per_s: of a device's own buffers, infinite if they do not matter.
        is_ring: a ring; else every device is connected with every other.
    """

    n_device: Leaf
    bytes_per_s: Leaf
    latency_s: Leaf
    header_bytes: Leaf
    payload_bytes: Leaf
    internal_bytes_per_s: Leaf
    is_ring: Leaf


def packet_all_reduce_s(link: Packets, n_byte: Leaf) -> Leaf:
    """Seconds of an all-reduce of `n_byte` a device: a ring's, or a ring and a broadcast.

    Gradient: exact but for whole packets. Source: research/llmcompass.md section 2.
    """
    others = link.n_device - 1.0
    share = n_byte / link.n_device
    sent = link.header_bytes * (1.0 + relax.ceil(share / link.payload_bytes)) + share
    one = link.bytes_per_s / others
    whole = others * (link.latency_s + sent / (2.0 * one)) + sent / one
    ring = 2.0 * others * (link.latency_s + sent / link.bytes_per_s)
    return jnp.where(link.is_ring > 0, ring, whole) + n_byte / link.internal_bytes_per_s


def layer(
    node: Node, parallel: Parallel, message_bytes: Leaf, top_k: Leaf, has_expert: Leaf
) -> tuple[Leaf, Leaf]:
    """Bytes that a GPU sends in one layer, and the seconds that takes.

    A layer all-reduces over the TP group after attention and after its FFN or experts. Where DP
    replicas hold different tokens, a layer with experts instead sends every token to its experts
    and back, each GPU of a TP group its share of the replica's tokens.

    Flat: a group beyond one domain works at its slowest link (research/flashaccel.md section 3).

    Args:
        node: GPUs and links.
        parallel: resolved degrees.
        message_bytes: activations of the tokens of one GPU.
        top_k: experts that a token visits.
        has_expert: 1 for a layer with experts, 0 without.
    """
    is_routed = has_expert * jnp.sign(parallel.dp - 1.0)
    reduced, reduce_s = all_reduce(link(node, parallel.tp), message_bytes, parallel.tp)
    share = top_k * message_bytes / parallel.tp
    routed, route_s = all_to_all(link(node, parallel.ep), share, parallel.ep)
    return (
        (2 - is_routed) * reduced + 2 * is_routed * routed,
        (2 - is_routed) * reduce_s + 2 * is_routed * route_s,
    )


def two_level_all_reduce(
    up: Link, out: Link, message_bytes: Leaf, n_gpu: Leaf, n_gpu_domain: Leaf
) -> tuple[Leaf, Leaf]:
    """Bytes sent and seconds: reduce-scatter in each domain, all-reduce across, all-gather.

    Inside one domain it is `all_reduce`. Gradient: exact but for the number of domains.
    Source: counted; a step charges the flat one (`layer`).
    """
    inside = relax.minimum(n_gpu, n_gpu_domain)
    across = relax.ceil(n_gpu / n_gpu_domain)
    near, near_s = all_reduce(up, message_bytes, inside)
    far, far_s = all_reduce(out, message_bytes / inside, across)
    return near + far, near_s + far_s


def all_reduce(on: Link, message_bytes: Leaf, n_gpu: Leaf) -> tuple[Leaf, Leaf]:
    """Bytes sent by each of `n_gpu` GPUs, and seconds: 2 (k-1)/k X / bandwidth + 2 latencies.

    One latency for the reduce-scatter and one for the all-gather; one GPU sends nothing.
    """
    sent = 2 * (n_gpu - 1) / n_gpu * message_bytes
    return sent, sent / (on.efficiency * on.bytes_per_s) + 2 * _latency_s(on, n_gpu)


def all_gather(on: Link, message_bytes: Leaf, n_gpu: Leaf) -> tuple[Leaf, Leaf]:
    """Bytes sent by each of `n_gpu` GPUs, and seconds, to give each the whole `message_bytes`.

    (k-1)/k X / bandwidth + latency; a reduce-scatter of `message_bytes` takes the same.
    """
    return _share(on, message_bytes, n_gpu)


reduce_scatter = all_gather
"""As `all_gather`: the same bytes the other way."""


def ring_all_reduce(on: Link, message_bytes: Leaf, n_gpu: Leaf) -> tuple[Leaf, Leaf]:
    """As `all_reduce`, round a ring: a latency for each of its 2 (k-1) hops."""
    sent = 2 * (n_gpu - 1) / n_gpu * message_bytes
    return sent, sent / (on.efficiency * on.bytes_per_s) + 2 * (n_gpu - 1) * on.latency_s


def all_to_all(on: Link, message_bytes: Leaf, n_gpu: Leaf) -> tuple[Leaf, Leaf]:
    """Bytes sent by each of `n_gpu` GPUs, and seconds: (k-1)/k X / bandwidth + latency."""
    return _share(on, message_bytes, n_gpu)


def _share(on: Link, message_bytes: Leaf, n_gpu: Leaf) -> tuple[Leaf, Leaf]:
    sent = (n_gpu - 1) / n_gpu * message_bytes
    return sent, sent / (on.efficiency * on.bytes_per_s) + _latency_s(on, n_gpu)


def link(node: Node, n_gpu: Leaf) -> Link:
    """The link that a group of `n_gpu` neighbouring GPUs communicates over."""
    inside = jnp.less_equal(n_gpu, node.n_gpu_domain)
    up, out = node.scale_up, node.scale_out
    return Link(
        name="",
        bytes_per_s=relax.where(inside, up.bytes_per_s, out.bytes_per_s),
        latency_s=relax.where(inside, up.latency_s, out.latency_s),
        efficiency=relax.where(inside, up.efficiency, out.efficiency),
    )


def _latency_s(on: Link, n_gpu: Leaf) -> Leaf:
    return relax.where(jnp.greater(n_gpu, 1), on.latency_s, 0.0)
