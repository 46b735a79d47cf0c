"""The address map against its plain twin, both ways, with no cell owned twice."""

import dataclasses
import importlib.util
import random
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.pim import address, layout, occupancy
from jaxmem.pim.policy import ORDER, SPREAD

pytestmark = pytest.mark.slow


def _twin():
    path = Path(__file__).parents[1] / "reference" / "pim_address.py"
    spec = importlib.util.spec_from_file_location("reference_pim_address", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


twin = _twin()
BASE = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")


def design(
    *, n_channel=32, n_bank=16, n_row=16384, row_bytes=2048, burst_bytes=32, n_layer=32, n_kv=8,
    head_dim=128, element_bytes=2, block_tokens=16, c=4, k_order="ch_c_r", v_order="ch_c_r",
    spread="head_group", lies_as_key=False,
):  # fmt: skip
    device = dataclasses.replace(
        BASE.device, n_channel=np.float64(n_channel), n_bank=np.float64(n_bank),
        n_row=np.float64(n_row), row_bytes=np.float64(row_bytes),
        burst_bytes=np.float64(burst_bytes),
    )  # fmt: skip
    like = np.ones_like(BASE.llm.n_layer)
    llm = dataclasses.replace(
        BASE.llm, n_layer=like * n_layer, n_kv=like * n_kv, n_q=like * n_kv * 2,
        head_dim=like * head_dim, kv_element_bytes=like * element_bytes,
    )  # fmt: skip
    v_write = "commit_zone" if spread == "head_group" else "direct"
    policy = jm.pim.Policy.create(
        k_order=k_order, v_order=v_order, spread=spread,
        v_write="burst" if lies_as_key else v_write,
    )  # fmt: skip
    return dataclasses.replace(
        BASE, device=device, llm=llm, policy=policy, ch_per_head=np.float64(c),
        block_tokens=np.float64(block_tokens),
    )  # fmt: skip


def some_sizes(seed, *, others=False):
    """Sizes of a small device with a head on it that fits; with PATTON's spread, or any."""
    rng = random.Random(seed)
    while True:
        n_bank = rng.choice([8, 16])
        element_bytes = rng.choice([1, 2])
        burst_bytes = rng.choice([32, 64])
        lanes = burst_bytes // element_bytes
        n_channel = rng.choice([4, 8, 32])
        sizes = {
            "n_channel": n_channel, "n_bank": n_bank, "burst_bytes": burst_bytes,
            "row_bytes": rng.choice([1024, 2048]), "element_bytes": element_bytes,
            "head_dim": rng.choice([64, 80, 96, 128, 256]), "n_kv": rng.choice([1, 2, 3, 8]),
            "c": rng.choice([1, 2, 3, 4, 8, 16, 32]), "n_layer": rng.choice([1, 2]),
            "block_tokens": max(n_bank, lanes) * rng.choice([1, 1, 2, 4]), "n_row": 512,
            "k_order": rng.choice(list(ORDER)), "v_order": rng.choice(list(ORDER)),
        }  # fmt: skip
        if sizes["c"] > n_channel:
            continue
        if others:
            sizes |= {"spread": rng.choice(list(SPREAD)), "lies_as_key": rng.random() < 0.3}
        space = twin.Space(**sizes)
        if space.set_blocks and space.slots and space.n_set(2) > 0:
            return sizes, space


@pytest.mark.parametrize("seed", range(12))
def test_the_map_is_the_twins_and_its_inverse_leads_back(seed):
    """Every element of every block of two sets and two zone rows, or a sample of them."""
    rng = np.random.default_rng(seed)
    for case in range(5):
        sizes, space = some_sizes(100 * seed + case, others=seed % 2 > 0)
        m = address.concrete(design(**sizes))
        has_zone = sizes.get("spread", "head_group") == "head_group"
        assert int(m.set_blocks) == space.set_blocks, sizes
        assert not has_zone or int(m.row_slots) == len(space.slots)
        n_zone = 2 * has_zone
        assert int(address.n_set(m, n_zone)) == space.n_set(n_zone)
        n = 400
        layer = rng.integers(space.n_layer, size=n)
        head = rng.integers(space.n_kv, size=n)
        row_set = rng.integers(space.n_set(n_zone), size=n)
        token = rng.integers(space.block_tokens, size=n)
        element = rng.integers(space.head_dim, size=n)
        index = rng.integers(space.set_blocks, size=n)
        zone_row, slot = (
            rng.integers(max(n_zone, 1), size=n),
            rng.integers(len(space.slots), size=n),
        )
        for kind, of, there, place, which in (
            (address.KEY, address.key_cell, space.key, row_set, index),
            (address.VALUE, address.value_cell, space.value, row_set, index),
            (address.ZONE, address.zone_cell, space.zone, zone_row, slot),
        )[: 2 + has_zone]:
            given = (layer, head, place, which, token, element)
            cell = of(m, *given)
            expected = [there(*map(int, x)) for x in zip(*given, strict=True)]
            assert np.array_equal(np.stack(cell, 1), expected), (kind, sizes)
            back = address.owner(m, n_zone, cell)
            assert (back.kind == kind).all()
            assert all(np.array_equal(a, b) for a, b in zip(back[1:], given, strict=True)), sizes


@pytest.mark.parametrize("seed", range(6))
def test_no_cell_is_owned_twice(seed):
    """Every cell of a small memory has at most one owner, and the owners are all elements."""
    n_zone, n_cell = 1, 2**21
    while n_cell > 2**18:
        sizes, space = some_sizes(seed := seed + 7000)
        sizes |= {"row_bytes": 1024, "n_layer": 1, "n_channel": max(sizes["c"], 4), "n_kv": 2}
        space = twin.Space(**sizes)
        if not (space.set_blocks and space.slots):
            continue
        sizes["n_row"] = (2 * space.r + 2) * space.n_round
        space = twin.Space(**sizes)
        shape = (space.n_channel, space.n_bank, sizes["n_row"], space.row_bursts, space.lanes)
        n_cell = np.prod(shape)
    m = address.concrete(design(**sizes))
    found = address.owner(m, n_zone, address.Cell(*np.ogrid[tuple(slice(n) for n in shape)]))
    kind = np.broadcast_to(found.kind, shape)
    owned = [np.broadcast_to(x, shape)[kind >= 0] for x in found]
    numbers = np.ravel_multi_index(owned, [int(x.max()) + 1 for x in owned])
    assert len(np.unique(numbers)) == len(numbers)
    per_block = space.block_tokens * space.head_dim * space.n_kv
    assert (kind == address.KEY).sum() == per_block * space.set_blocks
    assert (kind == address.VALUE).sum() == per_block * space.set_blocks
    assert (kind == address.ZONE).sum() == per_block * len(space.slots) * n_zone


def test_patton_on_llama3():
    """Research/patton.md section 1: C = 4, r = 2, 64 blocks a set, 32 slots a zone row."""
    m = address.concrete(design())
    assert (int(m.value_rows), int(m.set_blocks), int(m.row_slots)) == (2, 64, 32)
    n = np.arange(64)
    channel, row, burst = address.key_block(m, 0, n)
    assert np.array_equal(channel, n % 4)
    assert np.array_equal(burst, n // 4 % 8 * 8)
    assert np.array_equal(row, n // 32)
    q = np.arange(8)
    channel, row, burst = address.value_subblock(m, 0, 5, q)
    assert np.array_equal(channel, q % 4)
    assert np.array_equal(row - 2, q // 4)
    assert (burst == 5).all()
    channel, row, burst = address.zone_subblock(m, 0, 3, q)
    assert np.array_equal(channel, q % 4)
    assert (row == 511).all()
    assert np.array_equal(burst, 3 * 2 + q // 4)


def test_row_order_lies_as_a_slot():
    """Case Ch, then R: a Value block is r bursts side by side in one row, as in the zone."""
    m = address.concrete(design(v_order="ch_r_c"))
    q = np.arange(8)
    channel, row, burst = address.value_subblock(m, 0, 6, q)
    zone_channel, _, zone_burst = address.zone_subblock(m, 0, 3, q)
    assert np.array_equal(channel, zone_channel)
    assert np.array_equal(burst, zone_burst)
    assert len(set(row.tolist())) == 1


@pytest.mark.parametrize("n_zone", [0, 1, 3])
def test_sets_are_the_closed_forms(n_zone):
    d = design()
    s, n_layer = layout.layers(d)
    batch = n_zone * float(s.slots_row)
    m = address.concrete(d)
    granules = occupancy.n_granule(d, s, n_layer, batch)
    assert float(granules) == int(address.n_set(m, n_zone)) * 4


def test_sizes_may_be_traced():
    stack = jax.tree.map(lambda *x: np.stack(x), *[
        jax.tree.map(np.asarray, design(c=c, k_order=o)) for c, o in ((4, "ch_c_r"), (2, "r_c_ch"))
    ])  # fmt: skip
    together = jax.jit(jax.vmap(lambda d: address.key_cell(address.map_of(d), 1, 5, 2, 33, 7, 99)))
    found = together(stack)
    for i, (c, order) in enumerate(((4, "ch_c_r"), (2, "r_c_ch"))):
        alone = twin.Space(c=c, k_order=order).key(1, 5, 2, 33, 7, 99)
        assert tuple(int(x[i]) for x in found) == alone
