"""Streams and loads of placements: one truth, counted twice, timed twice."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.pim import address, isa, layout, timing
from jaxmem.pim.policy import V_WRITE, WRITE_ISSUE

pytestmark = pytest.mark.slow

COUNTS = (
    "n_gb", "n_step", "n_burst", "n_miss", "n_extra_row", "n_write", "n_write_row",
    "n_bank_row", "n_copy", "n_copy_row",
)  # fmt: skip


def _load_module(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"pim_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


sizes_of = _load_module("test_address")
jitted = jax.jit(layout.load, static_argnames=("step", "max_channel", "max_bank", "max_subblock"))


def scattered(d, rng, *, n_request=4, max_block=7, prefills=False, prefer_row=None):
    """Random tokens; blocks and slots anywhere, none twice."""
    m = address.concrete(d)
    size, per_set = int(m.block_tokens), int(m.set_blocks)
    has_zone = int(d.policy.v_write) == 1
    n_zone = -(-2 * n_request // int(m.row_slots))
    n_home = int(m.n_home)  # where requests live in one channel, each has its own row sets
    n_place = int(address.n_set(m, n_zone)) // n_home * per_set
    tokens = rng.integers(1, max_block * size + 1, n_request)
    tokens[rng.random(n_request) < 0.3] = size * rng.integers(1, max_block + 1)
    tokens[rng.random(n_request) < 0.1] = 0
    writes = np.ones(n_request, int)
    if prefills:
        writes = np.minimum(rng.integers(0, 3 * size, n_request), tokens)
        writes[writes == 1] = 0
    near = min(n_place, n_request * max_block * 2)
    place = rng.permutation(near if rng.random() < 0.7 else n_place)
    block = np.arange(max_block)[None]
    is_block = block < -(-tokens // size)[:, None]
    chosen = np.resize(place, (n_request, max_block))
    if rng.random() < 0.5:
        chosen = np.sort(chosen, axis=1)
    slots = rng.permutation(n_zone * int(m.row_slots))[: 2 * n_request]
    stays = has_zone & (tokens % size > 0)
    before = tokens - writes
    leaves = has_zone & (before % size > 0) & (before // size < tokens // size) & (writes > 0)

    def where(condition, value):
        return np.where(condition, value, -1).astype(np.int32)

    per_row = int(m.row_slots)
    stay, leave = slots[:n_request], slots[n_request:]
    return layout.Placement(
        row_set=where(is_block, chosen // per_set), index=where(is_block, chosen % per_set),
        zone_row=where(stays, stay // per_row), zone_slot=where(stays, stay % per_row),
        commit_row=where(leaves, leave // per_row), commit_slot=where(leaves, leave % per_row),
        n_token=tokens.astype(np.int32), n_write=writes.astype(np.int32),
    )  # fmt: skip


def some_design(rng, seed):
    """A small design of any order, head size and issue whose scattered batch fits."""
    while True:
        sizes, space = sizes_of.some_sizes(int(rng.integers(2**31)))
        if len(space.slots) * 2 < 8 or space.n_set(2) * space.set_blocks < 8 * 7:
            continue
        d = sizes_of.design(**sizes)
        policy = dataclasses.replace(
            d.policy,
            write_issue=np.int32(rng.integers(len(WRITE_ISSUE))),
            v_write=np.int32(rng.integers(2)),
            merges_adjacent=np.int32(rng.integers(2)),
            own_blocks=np.float64(rng.choice([2, 4, 16])),
            run_max_blocks=np.float64(rng.choice([1, 3, 1e9])),
            gb_piece_bursts=np.float64(rng.choice([3, 32, 64])),
        )
        return dataclasses.replace(d, policy=policy)


def check(d, placement, step):
    expected = isa.load(layout.stream(d, placement, step), d.device)
    found = jitted(d, placement, step)
    n = int(d.device.n_channel)
    for name in COUNTS:
        a, b = np.asarray(getattr(found, name))[:n], getattr(expected, name)
        assert np.array_equal(a, b), (step, name, a.tolist(), b.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_the_load_of_the_stream_is_the_load(seed):
    rng = np.random.default_rng(seed)
    for _ in range(2):
        d = some_design(rng, seed)
        placement = scattered(d, rng)
        for step in ("k_write", "v_write", "commit", "qk", "sv"):
            check(d, placement, step)
        check(d, scattered(d, rng, prefills=True), "prefill")
    check(d, placement, layout.DECODE)


def any_policy(rng):
    """A small design of another spread or another way to write Values."""
    while True:
        sizes, space = sizes_of.some_sizes(int(rng.integers(2**31)), others=True)
        if space.n_set(0) // space.n_home * space.set_blocks >= 8 * 7:
            break
    d = sizes_of.design(**sizes)
    is_bulk = sizes["spread"] == "head_group" and rng.random() < 0.3
    policy = dataclasses.replace(
        d.policy,
        v_write=np.int32(
            V_WRITE["burst" if sizes["lies_as_key"] else "bulk" if is_bulk else "direct"]
        ),
        is_lockstep=np.int32(is_bulk),
        write_issue=np.int32(rng.integers(len(WRITE_ISSUE))),
        merges_adjacent=np.int32(rng.integers(2)),
        own_blocks=np.float64(rng.choice([2, 4, 16])),
        run_max_blocks=np.float64(rng.choice([1, 3, 1e9])),
    )
    return dataclasses.replace(d, policy=policy), sizes


def in_homes(placement, rng, n_home):
    """Each request's row sets in one channel."""
    home = rng.integers(0, n_home, len(placement.row_set))[:, None]
    at = np.where(placement.row_set >= 0, placement.row_set * n_home + home, -1)
    return dataclasses.replace(placement, row_set=at.astype(np.int32))


def check_policy(rng):
    d, sizes = any_policy(rng)
    plain, prompts = scattered(d, rng), scattered(d, rng, prefills=True)
    if sizes["spread"] == "request":
        plain, prompts = (in_homes(p, rng, sizes["n_channel"]) for p in (plain, prompts))
    for step in ("k_write", "v_write", "qk", "sv"):
        check(d, plain, step)
    check(d, prompts, "prefill")


@pytest.mark.parametrize("seed", range(6))
def test_the_load_of_every_policys_stream_is_its_load(seed):
    check_policy(np.random.default_rng(seed))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_the_load_of_every_policys_stream_is_its_load_at_length(seed):
    check_policy(np.random.default_rng(seed))


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(1000, 1040))
def test_the_load_of_the_stream_is_the_load_at_length(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        d = some_design(rng, seed)
        placement = scattered(d, rng, n_request=6)
        for step in ("k_write", "v_write", "commit", "qk", "sv"):
            check(d, placement, step)
        check(d, placement, layout.DECODE)
        check(d, scattered(d, rng, n_request=6, prefills=True), "prefill")


LLAMA = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
OPT = jm.pim.Design.create(device="aim-gddr6-16gib", llm="opt-6.7b")


def fullest(d, placement, step):
    """Cycles of the fullest channel, from the load."""
    return float(np.max(timing.cycles(jitted(d, placement, step), d.device)))


def shared_buffer(stream):
    """The stream with one WRGB for the channels of all heads, where each has its own."""
    op = np.asarray(stream.op)
    is_gb = op == isa.OP["WR_GB"]
    names = ("op", "n_burst", "write_tag", "register")
    same = np.logical_and.reduce([
        np.asarray(getattr(stream, n))[1:] == np.asarray(getattr(stream, n))[:-1] for n in names
    ])  # fmt: skip
    repeats = np.concatenate([[False], same & is_gb[1:]])
    group = np.cumsum(~repeats) - 1
    mask = np.zeros(group[-1] + 1, np.uint32)
    np.bitwise_or.at(mask, group, np.asarray(stream.channel_mask))
    kept = jax.tree.map(lambda x: np.asarray(x)[~repeats], stream)
    return dataclasses.replace(kept, channel_mask=mask)


def test_anchor_of_a_contiguous_batch():
    """592,896 cycles counted; 0.3 % more with a WRGB a head issued by one decoder."""
    assert fullest(LLAMA, layout.contiguous(LLAMA, [2048] * 32), ("qk", "sv")) == 592_896
    stream = layout.stream(LLAMA, layout.contiguous(LLAMA, [2048]), ("qk", "sv"))
    exact = int(timing.run(stream, LLAMA.device, "simulator").cycles)
    assert exact == pytest.approx(592_896 / 32, rel=0.005)


def granular(d, rng, n_token, granule=16):
    """Granules anywhere, their blocks in order, as an allocator leaves them."""
    placement = layout.contiguous(d, n_token)
    block = np.arange(placement.index.shape[1])
    n_granule = -(-block.size // granule)
    place = rng.permutation(2 * len(n_token) * n_granule)[: len(n_token) * n_granule]
    at = place.reshape(len(n_token), n_granule)[:, block // granule]
    is_block = placement.index >= 0
    per_set = 64 // granule
    return dataclasses.replace(
        placement,
        row_set=np.where(is_block, at // per_set, -1).astype(np.int32),
        index=np.where(is_block, at % per_set * granule + block % granule, -1).astype(np.int32),
    )


@pytest.mark.parametrize("seed", range(1))
def test_read_path_takes_what_its_load_takes(seed):
    """With one WRGB for all heads. Each head its own stalls the decoder, for 3 % at most."""
    rng = np.random.default_rng(seed)
    for d in (LLAMA, OPT):
        placement = granular(d, rng, 16 * rng.integers(1, 9, 4) * 4 + [0, 5, 0, 9])
        for step in ("qk", "sv"):
            stream = layout.stream(d, placement, step)
            counted = fullest(d, placement, step)
            one = int(timing.run(shared_buffer(stream), d.device, "simulator").cycles)
            assert counted == pytest.approx(one, rel=0.005)
            each = int(timing.run(stream, d.device, "simulator").cycles)
            assert one <= each <= 1.03 * one


def test_blocks_scattered_singly_wait_for_one_another():
    """The decoder waits for each RDMAC, so channels whose steps lie apart do not overlap: the
    fullest channel is no bound for Key blocks that share no row and column."""
    placement = layout.contiguous(LLAMA, [256])
    apart = np.arange(16)
    placement = dataclasses.replace(
        placement, index=(apart % 4 + apart // 4 * 8 + apart % 4 * 4)[None].astype(np.int32)
    )
    exact = int(timing.run(layout.stream(LLAMA, placement, "qk"), LLAMA.device).cycles)
    assert exact > 1.3 * fullest(LLAMA, placement, "qk")


@pytest.mark.parametrize(("d", "batch"), [(LLAMA, 32), (OPT, 8)])
def test_write_path_takes_what_its_load_takes(d, batch):
    """But for the recovery and precharge of the last row, 63 cycles, which the next step pays."""
    placement = layout.contiguous(d, [40] * batch)
    t = d.device.timing
    tail = t.n_wr + t.n_rp - t.n_bl
    direct = dataclasses.replace(d, policy=jm.pim.Policy.create("patton-wo-cz"))
    for point, p in ((d, placement), (direct, layout.contiguous(direct, [40] * batch))):
        exact = int(timing.run(layout.stream(point, p, "v_write"), d.device, "simulator").cycles)
        assert fullest(point, p, "v_write") == pytest.approx(exact + tail, rel=0.02)


def exactly(d, placement, step):
    """Cycles of the engine, a round of heads."""
    exact = timing.run(layout.stream(d, placement, step), d.device, refresh=False)
    return int(exact.cycles)


@pytest.mark.parametrize("batch", [5, 20, 32])
def test_keys_are_written_while_other_banks_change_their_rows(batch):
    """A head in one channel, as the decoder serves it: within 5 % of the load, never below it."""
    d = dataclasses.replace(LLAMA, ch_per_head=np.float64(1))
    t = d.device.timing
    tail = t.n_wr + t.n_rp - t.n_bl
    rng = np.random.default_rng(batch)
    for _ in range(2):
        placement = layout.contiguous(d, rng.integers(16, 200, batch))
        counted = fullest(d, placement, "k_write")
        assert counted <= exactly(d, placement, "k_write") + tail <= 1.05 * counted


@pytest.mark.parametrize(("d", "c"), [(LLAMA, 4), (OPT, 2), (OPT, 1)])
@pytest.mark.parametrize("batch", [1, 3])
def test_commits_take_what_their_load_takes(d, c, batch):
    d = dataclasses.replace(d, ch_per_head=np.float64(c))
    placement = layout.contiguous(d, [16] * batch)
    n_round = int(address.concrete(d).n_round)
    one = exactly(d, placement, "commit") / n_round
    assert fullest(d, placement, "commit") / n_round == pytest.approx(one, rel=0.02)


@pytest.mark.parametrize(("d", "n_token"), [(LLAMA, 64), (LLAMA, 1000), (OPT, 64)])
def test_prefill_takes_what_its_load_takes(d, n_token):
    """But for the recovery and precharge of the last row."""
    t, placement = d.device.timing, layout.contiguous(d, [n_token], [n_token])
    tail = t.n_wr + t.n_rp - t.n_bl
    exact = exactly(d, placement, "prefill") + tail
    assert fullest(d, placement, "prefill") == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("d", "c", "batch"), [(LLAMA, 4, 32), (OPT, 1, 8)])
def test_commit_zone_saves_row_activations_in_the_streams(d, c, batch):
    """128 all-bank activations a block without the zone; 12.8 times fewer with it."""

    def activations(point):
        total = 0.0
        for token in range(1, 17):
            placement = layout.contiguous(point, [token] * batch)
            single = jitted(point, placement, "commit").n_bank_row
            total += (jitted(point, placement, "v_write").n_write_row + single)[:c].sum()
        return float(total) / batch

    direct = activations(dataclasses.replace(d, policy=jm.pim.Policy.create("patton-wo-cz")))
    assert direct == 128
    assert direct / activations(d) == pytest.approx(12.8)


def test_scrambling_the_same_blocks_changes_sv():
    straight = layout.contiguous(LLAMA, [960])
    order = np.random.default_rng(0).permutation(60)
    mixed = dataclasses.replace(straight, index=straight.index[:, order])
    assert fullest(LLAMA, mixed, "sv") == fullest(LLAMA, straight, "sv")  # one run all the same
    apart = dataclasses.replace(straight, index=np.where(order < 30, order, order + 1)[None])
    assert fullest(LLAMA, apart, "sv") > fullest(LLAMA, straight, "sv")
    far = dataclasses.replace(straight, row_set=order[None].astype(np.int32))
    assert fullest(LLAMA, far, "sv") > 5 * fullest(LLAMA, straight, "sv")


def test_runs_end_at_granules_where_a_policy_does_not_merge():
    placement = layout.contiguous(LLAMA, [1024])
    policy = jm.pim.Policy.create(merges_adjacent=False)
    alone = jitted(dataclasses.replace(LLAMA, policy=policy), placement, "sv")
    merged = jitted(LLAMA, placement, "sv")
    assert alone.n_step[0] == 4 * merged.n_step[0]
    assert alone.n_burst[0] == merged.n_burst[0]


def test_loads_of_many_designs_compile_once():
    designs = [
        dataclasses.replace(LLAMA, ch_per_head=np.float64(c), policy=jm.pim.Policy.create(
            v_order=order, own_blocks=own))
        for c, order, own in ((4, "ch_c_r", 16), (2, "ch_r_c", 4), (8, "r_c_ch", 32))
    ]  # fmt: skip
    placements = [layout.contiguous(d, [300, 40], max_block=20) for d in designs]
    stack = jax.tree.map(lambda *x: np.stack(x), *zip(designs, placements, strict=True))
    together = jax.jit(jax.vmap(layout.load))
    found = together(*stack)
    for i, (d, p) in enumerate(zip(designs, placements, strict=True)):
        expected = isa.load(layout.stream(d, p), d.device)
        for name in COUNTS:
            assert np.array_equal(getattr(found, name)[i], getattr(expected, name)), name
    assert together._cache_size() == 1
