"""Closures of the shipped devices against datasheets and papers, by hand arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem.core.design import get, paths
from jaxmem.core.units import GIB, KIB, MIB
from jaxmem.devices import catalog, dram, gpu, link, nand, node

ALL = catalog.names()
NODES = catalog.names("node")


def near(value, expected, rtol=1e-6):
    np.testing.assert_allclose(np.asarray(value, float), expected, rtol=rtol)


def test_flash_stack_closes():
    stack = catalog.load("hbf-flashaccel")
    near(nand.n_plane(stack), 768)
    near(nand.block_bytes(stack), MIB)
    near(nand.capacity_bytes(stack), 192 * GIB)
    near(nand.read_bytes_per_s(stack), 768e9)
    near(nand.sram_bytes(stack), 32 * MIB)
    near(nand.array_die_mm2(stack), 149, rtol=0.005)
    near(nand.circuit_die_mm2(stack, 3), 143, rtol=0.005)
    near(nand.circuit_die_mm2(stack, 96) - nand.circuit_die_mm2(stack, 3), 93 * 0.5)
    near(nand.footprint_mm2(stack, 3) / stack.dram_die_mm2, 1.23, rtol=0.005)
    assert nand.sram_bytes(stack) > 2 * nand.read_bytes_per_s(stack) * stack.read_s


def test_stack_interface_caps_both_ways():
    stack = catalog.load("hbf-flashaccel")
    capped = type(stack).create(**{**vars(stack), "link_bytes_per_s": 10e9})
    near(nand.read_bytes_per_s(capped), 10e9)
    near(nand.write_bytes_per_s(capped), 10e9)


def test_csi_and_cli():
    csi, cli = catalog.load("8xCSI"), catalog.load("8xCLI")
    near([node.n_plane(csi), node.n_plane(cli)], [4608, 3840])
    near(node.flash_read_bytes_per_s(csi), 4.608e12)
    near(node.flash_write_bytes_per_s(csi), 245.76e9)
    near(node.flash_read_bytes_per_s(cli), 3.84e12)
    near(node.flash_write_bytes_per_s(cli), 204.8e9)
    near([node.flash_bytes(csi) / GIB, node.flash_bytes(cli) / GIB], [1152, 960])
    near([node.hbm_bytes(csi), node.hbm_bytes(cli)], [141e9, 23.5e9])
    near([node.hbm_bytes_per_s(csi), node.hbm_bytes_per_s(cli)], [4.8e12, 0.8e12])
    near(node.flash_sram_bytes(csi), 192 * MIB)


@pytest.mark.parametrize("name", NODES)
def test_node_counts(name):
    x = catalog.load(name)
    if name[0].isdigit():
        near(x.n_gpu, int(name.split("x")[0]))
    assert x.n_gpu % x.n_gpu_domain == 0
    assert x.n_gpu_domain <= 8
    if x.n_stack == 0:
        assert float(node.flash_bytes(x)) == 0.0
        assert float(node.flash_read_bytes_per_s(x)) == 0.0


def test_h3_and_sandisk_close_within_what_is_stated():
    h3 = catalog.load("8xB200-H3")
    near(node.flash_read_bytes_per_s(h3), 8e12, rtol=0.001)
    near(node.flash_bytes(h3), 3e12, rtol=0.005)
    near(nand.sram_bytes(h3.flash), 2 * 1e12 * 20e-6)
    near([node.hbm_bytes(h3), node.hbm_bytes_per_s(h3)], [192e9, 8e12])
    sandisk = catalog.load("hbf-sandisk-gen1")
    near(nand.read_bytes_per_s(sandisk), 1.6e12)
    near(nand.capacity_bytes(sandisk), 512e9, rtol=0.001)
    near(sandisk.n_die, 16)


SHEET = {  # bf16, fp8, bytes, bytes/s, W
    "a100-80gb-pcie": (312e12, 312e12, 80e9, 1.935e12, 300),
    "a100-80gb-sxm": (312e12, 312e12, 80e9, 2.039e12, 400),
    "h100-sxm": (989e12, 1979e12, 80e9, 3.35e12, 700),
    "h200": (989e12, 1979e12, 141e9, 4.8e12, 700),
    "b200": (2250e12, 4500e12, 192e9, 8e12, 1000),
}


@pytest.mark.parametrize("name", catalog.names("gpu"))
def test_gpu_datasheet(name):
    x = catalog.load(name)
    near([x.bf16_flops, x.fp8_flops, x.hbm_bytes, x.hbm_bytes_per_s, x.tdp_w], SHEET[name])
    if not name.startswith("a100"):
        near(x.fp8_flops / x.bf16_flops, 2.0, rtol=0.01)
    near(gpu.ridge_flops_per_byte(x), SHEET[name][0] / SHEET[name][3])


def test_links():
    rate = {n: float(catalog.load(n).bytes_per_s) for n in catalog.names("link")}
    assert rate == {
        "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9, "rdma-400g": 50e9, "pcie4-x16": 32e9,
    }  # fmt: skip
    near(link.transfer_s(catalog.load("nvlink4"), 360e6), 6e-6 + 1e-3)


def test_aim():
    x = catalog.load("AiM-GDDR6-16GiB")
    near(dram.bank_bytes(x), 32 * MIB)
    near(dram.channel_bytes(x), 512 * MIB)
    near(dram.capacity_bytes(x), 16 * GIB)
    near(dram.row_bursts(x), 64)
    near(dram.bank_bytes_per_s(x), 32e9)
    near(dram.internal_bytes_per_s(x), 16.384e12)
    near(dram.external_bytes_per_s(x), 1.024e12)
    near(x.row_bytes, 2 * KIB)
    t = x.timing
    near(
        [t.n_rcd_mac, t.n_rp, t.n_ras, t.n_rc, t.n_faw, t.n_refi, t.n_rfc],
        [56, 32, 54, 89, 28, 3333, 210],
    )
    near(16 * x.energy.activate_bank_j, 47205.6e-12)
    near(x.energy.activate_bank_j, 66.3e-3 * 44.5e-9)
    near(x.energy.mac_all_bank_j, 3 * 438.15e-3 * 1e-9)
    near(x.energy.mac_bank_j, x.energy.mac_all_bank_j / 16)
    near(x.energy.dq_burst_j, 5.5e-12 * 256)
    near([x.energy.standby_active_w, x.energy.standby_idle_w], [0.26375, 0.18315])
    near(x.energy.refresh_j, 16 * x.energy.activate_bank_j)  # assumed: a row of every bank
    assert x.host.name == "a100-80gb-pcie"
    assert x.isa == "aim"


def test_other_pim():
    hbm, lpddr = catalog.load("hbm-pim"), catalog.load("lpddr5-pim")
    near([dram.capacity_bytes(hbm) / GIB, dram.capacity_bytes(lpddr) / GIB], [16, 16])
    near(dram.external_bytes_per_s(hbm) / 64, 16e9)
    near(dram.external_bytes_per_s(lpddr) / 8, 12.8e9)
    near(dram.internal_bytes_per_s(hbm) / dram.bank_bytes_per_s(hbm), 64 * 8)
    for x in (hbm, lpddr):
        unknown = [v for k, v in vars(x.energy).items() if k.endswith("_j")]
        assert np.isnan(unknown).all()  # not known is NaN, never 0


@pytest.mark.parametrize("name", ALL)
def test_every_row_has_a_source(name):
    found = catalog.rows(name)
    record = catalog.load(name)
    assert {r.field for r in found} == {p for p, s in paths(record) if s.kind == "leaf"}
    for r in found:
        assert r.source.strip()
        assert r.date[:4].isdigit()
        assert r.confidence in ("datasheet", "paper", "measured", "derived", "assumed", "fitted")
        assert (r.unfitted is not None) == (r.confidence == "fitted")
        np.testing.assert_equal(float(get(record, r.field)), float(r.si))
        if np.isnan(r.value):
            assert r.note
    assert catalog.summary(name)
    assert record.name == name


@pytest.mark.parametrize("name", ALL)
def test_every_field_says_what_it_is(name):
    for path, spec in paths(catalog.load(name)):
        assert spec.doc, path
        if spec.kind == "leaf":
            assert spec.source, path
            assert spec.low > -np.inf or spec.choices, path


def test_nodes_stack_and_vmap():
    pair = [catalog.load("8xH200"), catalog.load("8xCSI")]

    def quantities(x):
        return (
            node.hbm_bytes(x),
            node.hbm_bytes_per_s(x),
            node.flash_bytes(x),
            node.flash_read_bytes_per_s(x),
            node.flash_write_bytes_per_s(x),
            node.n_plane(x),
            nand.footprint_mm2(x.flash, x.n_stack),
            link.transfer_s(x.scale_up, 1e6),
        )

    trace = []

    def counted(x):
        trace.append(1)
        return quantities(x)

    batched = jax.jit(jax.vmap(counted))(catalog.stack(pair))
    jax.jit(jax.vmap(counted))(catalog.stack(pair[::-1]))
    assert len(trace) == 2  # one a jit object: the stacked records share their structure
    for i, x in enumerate(pair):
        near([b[i] for b in batched], [float(q) for q in quantities(x)])


def test_pim_devices_stack_and_vmap():
    x = catalog.load("aim-gddr6-16gib")
    both = catalog.stack([x, x])
    near(jax.vmap(dram.internal_bytes_per_s)(both), [16.384e12] * 2)
    near(jax.vmap(dram.capacity_bytes)(both), [16 * GIB] * 2)


def test_gradient_of_read_bandwidth():
    stack = jax.tree.map(jnp.float32, catalog.load("hbf-flashaccel"))
    slope = jax.grad(nand.read_bytes_per_s)(stack)
    near(slope.n_die, 96e9)
    near(slope.read_s, -768e9 / 4e-6)
    assert float(slope.link_bytes_per_s) == 0.0


def test_stack_of_leaves_is_writable_by_with_value():
    from jaxmem.core.design import with_value

    x = with_value(catalog.load("8xH200"), "gpu.hbm_bytes", 1e12)
    near(node.hbm_bytes(x), 1e12)
    x = with_value(x, "gpu", "h100-sxm")
    near(node.hbm_bytes(x), 80e9)


def test_aim_of_other_sizes_is_aim_with_other_channels():
    whole = catalog.load("aim-gddr6-16gib")
    for name, gib in (("aim-gddr6-1gib", 1), ("aim-gddr6-8gib", 8)):
        part = catalog.load(name)
        near(dram.capacity_bytes(part) / GIB, gib)
        near(part.n_channel / whole.n_channel, gib / 16)
        assert vars(part.timing) == vars(whole.timing)
