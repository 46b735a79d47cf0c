"""The mapped operators: peaks, monotony, gradients, and a plain search of a small grid."""

import dataclasses
import math

import jax
import numpy as np
import pytest

from jaxmem.devices.chip import Chip, peak_array_flops
from jaxmem.xpu import collectives, matmul, vector
from jaxmem.xpu.collectives import Packets

pytestmark = pytest.mark.slow

A100 = Chip.create(
    n_core=108, clock_hz=1.41e9, l2_bytes=40 * 2**20, l2_bytes_per_cycle=5120, l1_bytes=192 * 1024,
    n_array=4, array_rows=16, array_columns=16, mac_per_cycle=1, vector_flops_per_cycle=512,
    n_vector=4, vector_width=32, lane_flops_per_cycle=4, flops_per_exp=35,
    memory_bytes_per_s=2.039e12, matmul_s=21e-6, softmax_s=12e-6, norm_s=45e-6, activation_s=45e-6,
)  # fmt: skip
SHAPES = [(1, 4096, 14336), (8, 4096, 4096), (64, 8192, 3584), (512, 4096, 1536), (4096, 128, 4096)]


def changed(**factors):
    return dataclasses.replace(
        A100, **{name: getattr(A100, name) * factor for name, factor in factors.items()}
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_no_product_beats_the_peaks(x64, shape):
    m, k, n = map(float, shape)
    found = float(matmul.mapped(A100, m, k, n))
    assert found >= 2 * (m * k + k * n + m * n) / float(A100.memory_bytes_per_s) * (1 - 1e-9)
    assert found >= 2 * m * k * n / float(peak_array_flops(A100))
    assert found >= float(matmul.roofline_s(A100, m, k, n)) * (1 - 1e-9)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "field", ["memory_bytes_per_s", "clock_hz", "n_core", "l2_bytes_per_cycle"]
)
def test_more_is_never_slower(x64, shape, field):
    before = float(matmul.mapped(A100, *map(float, shape)))
    for factor in (1.25, 2.0, 3.0):
        after = float(matmul.mapped(changed(**{field: factor}), *map(float, shape)))
        assert after <= before * 1.002
        before = after


def test_a_vector_product_is_memory_alone(x64):
    found = float(matmul.mapped(A100, 1.0, 4096.0, 14336.0))
    assert found == pytest.approx(2 * (4096 + 4096 * 14336 + 14336) / 2.039e12)


def test_joined_products_are_no_slower_than_one_after_another(x64):
    one = float(matmul.mapped(A100, 4.0, 128.0, 1024.0))
    assert float(matmul.mapped(A100, 4.0, 128.0, 1024.0, n_batch=64.0)) < 64 * one


def test_gradient_in_bandwidth_is_the_secant(x64):
    def second(bandwidth):
        chip = dataclasses.replace(A100, memory_bytes_per_s=bandwidth)
        return matmul.mapped_s(chip, 64.0, 8192.0, 8192.0)

    slope = float(jax.grad(second)(2.039e12))
    secant = float(second(2.05e12) - second(2.03e12)) / 0.02e12
    assert slope == pytest.approx(secant, rel=0.05)


def test_a_systolic_array_fills_works_and_drains(x64):
    small = float(matmul._array_cycles(A100, 16.0, 16.0, 64.0))
    assert small == 1 * 1 * (64 + 16 + 16 - 2) - 1
    large = float(matmul._array_cycles(A100, 128.0, 128.0, 256.0))
    assert large == math.ceil(128 * 128 * 256 / (256 * 0.99))


@pytest.mark.parametrize("n", [128.0, 4096.0, 32768.0])
def test_rows_take_at_least_their_memory_time(x64, n):
    for operator in (vector.softmax_s, vector.norm_s):
        found = float(operator(A100, 4096.0, n))
        assert found >= 2 * 2 * 4096 * n / 2.039e12
        twice = float(operator(A100, 8192.0, n))
        assert found < twice <= 2.1 * found


def test_gelu_in_whole_lanes(x64):
    lanes = 108 * 32 * 4
    few, more = (float(vector.gelu_s(A100, float(n))) for n in (1, lanes))
    assert few == more
    moved = 2 * lanes * 2
    assert few == pytest.approx(moved / 2.039e12 + moved / (5120 * 1.41e9))


def test_all_reduce_in_packets():
    """Worked by hand: four devices, 32 bytes: three hops of 8.92 us and 40 bytes each."""
    link = Packets(4.0, 300e9, 8.92e-6, 16.0, 256.0, np.inf, 0.0)
    assert float(collectives.packet_all_reduce_s(link, 32.0)) == pytest.approx(
        3 * (8.92e-6 + 40 / 2e11) + 40 / 1e11
    )
    ring = link._replace(is_ring=1.0)
    assert float(collectives.packet_all_reduce_s(ring, 32.0)) == pytest.approx(
        6 * (8.92e-6 + 40 / 3e11)
    )
