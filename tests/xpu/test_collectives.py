"""Collectives: the latency-bandwidth formulas, and which link a group spans."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxmem import devices
from jaxmem.llm import Parallel
from jaxmem.xpu import collectives

NVLINK, RDMA = devices.load("nvlink4"), devices.load("rdma-400g")


def test_all_reduce(x64):
    """8 GPUs, 1 MB: 1.75 MB at 0.8 x 450 GB/s, and two latencies of 6 us."""
    sent, seconds = collectives.all_reduce(NVLINK, 1e6, 8.0)
    assert float(sent) == pytest.approx(1.75e6)
    assert float(seconds) == pytest.approx(1.75e6 / 360e9 + 12e-6, rel=1e-12)


def test_all_to_all(x64):
    sent, seconds = collectives.all_to_all(RDMA, 1e6, 16.0)
    assert float(sent) == pytest.approx(15e6 / 16)
    assert float(seconds) == pytest.approx(15e6 / 16 / 40e9 + 12e-6, rel=1e-12)


@pytest.mark.parametrize("collective", [collectives.all_reduce, collectives.all_to_all])
def test_one_gpu_sends_nothing(collective):
    assert [float(x) for x in collective(NVLINK, 1e6, 1.0)] == [0.0, 0.0]


def test_a_group_beyond_the_domain_goes_out():
    node = devices.load("16xH200")
    assert float(node.n_gpu_domain) == 8
    for n_gpu in (1, 2, 8):
        assert float(collectives.link(node, n_gpu).bytes_per_s) == pytest.approx(450e9)
    for n_gpu in (9, 16):
        out = collectives.link(node, n_gpu)
        assert float(out.bytes_per_s) == pytest.approx(50e9)
        assert float(out.latency_s) == pytest.approx(12e-6)
    wide = dataclasses.replace(node, n_gpu_domain=np.float64(16))
    assert float(collectives.link(wide, 16).bytes_per_s) == pytest.approx(450e9)


def degrees(tp, dp, ep):
    return Parallel(tp=tp, dp=dp, ep=ep, spreads_weights=1)


def test_layers(x64):
    """Two reductions, or under DP one and the way to the experts and back."""
    node = devices.load("8xH200")
    x, k = 1e6, 8.0
    reduced, reduce_s = collectives.all_reduce(NVLINK, x, 8.0)
    routed, route_s = collectives.all_to_all(NVLINK, k * x, 8.0)
    sent, seconds = collectives.layer(node, degrees(8.0, 1.0, 1.0), x, 0.0, 0.0)
    assert (float(sent), float(seconds)) == pytest.approx((float(2 * reduced), float(2 * reduce_s)))
    sent, seconds = collectives.layer(node, degrees(1.0, 8.0, 8.0), x, k, 1.0)
    assert (float(sent), float(seconds)) == pytest.approx((float(2 * routed), float(2 * route_s)))
    sent, seconds = collectives.layer(
        node, degrees(8.0, 1.0, 8.0), x, k, 1.0
    )  # all hold all tokens
    assert (float(sent), float(seconds)) == pytest.approx((float(2 * reduced), float(2 * reduce_s)))
    reduced, reduce_s = collectives.all_reduce(NVLINK, x, 2.0)
    routed, route_s = collectives.all_to_all(NVLINK, k * x / 2, 8.0)
    sent, seconds = collectives.layer(node, degrees(2.0, 4.0, 8.0), x, k, 1.0)
    both = (float(reduced + 2 * routed), float(reduce_s + 2 * route_s))
    assert (float(sent), float(seconds)) == pytest.approx(both)
    assert [float(v) for v in collectives.layer(node, degrees(1.0, 1.0, 1.0), x, k, 1.0)] == [0, 0]


def test_two_levels(x64):
    """16 GPUs of two domains: 1 MB inside as `all_reduce`, an eighth of it across."""
    sent, seconds = collectives.two_level_all_reduce(NVLINK, RDMA, 1e6, 16.0, 8.0)
    assert float(sent) == pytest.approx(1.75e6 + 0.125e6)
    assert float(seconds) == pytest.approx(1.75e6 / 360e9 + 12e-6 + 0.125e6 / 40e9 + 24e-6)
    inside = collectives.two_level_all_reduce(NVLINK, RDMA, 1e6, 8.0, 8.0)
    assert float(inside[1]) == pytest.approx(float(collectives.all_reduce(NVLINK, 1e6, 8.0)[1]))
    assert float(seconds) < float(collectives.all_reduce(RDMA, 1e6, 16.0)[1])


def test_ring_and_gather(x64):
    sent, seconds = collectives.ring_all_reduce(NVLINK, 1e6, 8.0)
    assert float(seconds) == pytest.approx(1.75e6 / 360e9 + 14 * 6e-6)
    sent, seconds = collectives.all_gather(NVLINK, 1e6, 8.0)
    assert float(sent) == pytest.approx(0.875e6)
    assert float(seconds) == pytest.approx(0.875e6 / 360e9 + 6e-6)


@pytest.mark.parametrize("collective", [collectives.all_reduce, collectives.all_to_all])
def test_more_gpus_and_bytes_never_take_less(x64, collective):
    times = [float(collective(NVLINK, 1e6, float(n))[1]) for n in (1, 2, 3, 4, 8, 72)]
    assert times == sorted(times)
    sizes = [float(collective(NVLINK, float(n), 8.0)[1]) for n in (0, 1, 1e3, 1e9)]
    assert sizes == sorted(sizes)
    assert sizes[0] > 0  # the latency


def test_gradient(x64):
    slope = jax.grad(lambda n: collectives.all_reduce(NVLINK, n, 8.0)[1])(1e6)
    assert float(slope) == pytest.approx(1.75 / 360e9)
    for n_gpu in (1.0, 8.0):
        slope = jax.grad(lambda k: collectives.all_reduce(NVLINK, 1e6, k)[1])(n_gpu)
        assert np.isfinite(slope)
