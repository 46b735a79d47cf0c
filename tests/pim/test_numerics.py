"""Attention computed in the banks is attention, and only on the right addresses."""

import dataclasses
import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem.core import attention
from jaxmem.core.errors import InputError
from jaxmem.pim import isa, layout, numerics

pytestmark = pytest.mark.slow

ROUNDOFF = {jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}  # of storing a weight, to nearest


def _load_module(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"numerics_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


layouts = _load_module("test_layout")
sizes_of = layouts.sizes_of


def small(rng, **fixed):
    """A small memory of any order and head size."""
    while True:
        sizes = {
            "n_channel": 4, "n_row": 192, "n_layer": 1, "row_bytes": 1024,
            "n_kv": int(rng.choice([1, 2, 3])), "c": int(rng.choice([1, 2, 4])),
            "head_dim": int(rng.choice([64, 80, 96, 128, 256])),
            "block_tokens": int(rng.choice([16, 16, 32])),
            "k_order": str(rng.choice(list(layout_orders))),
            "v_order": str(rng.choice(list(layout_orders))),
        } | fixed  # fmt: skip
        space = sizes_of.twin.Space(**sizes)
        if len(space.slots) >= 2 and space.n_set(4) * space.set_blocks >= 2 * 5:
            d = sizes_of.design(**sizes)
            policy = dataclasses.replace(
                d.policy, v_write=np.int32(rng.integers(2)), own_blocks=np.float64(4)
            )
            return dataclasses.replace(d, policy=policy)


layout_orders = sizes_of.ORDER


def drawn(d, placement, rng, dtype):
    """Queries, Keys and Values as the memory stores them."""
    m = layout_map(d)
    n_request, n_block = placement.index.shape
    n_token = n_block * int(m.block_tokens)
    shape = (n_request, n_token, int(m.n_kv), int(m.head_dim))

    def stored(x):
        return x.astype(dtype).astype(np.float32)

    query = rng.normal(size=(n_request, int(m.n_kv), 2, int(m.head_dim))) / np.sqrt(shape[-1])
    return numerics.Tokens(
        stored(query * 2), stored(rng.normal(size=shape)), stored(rng.normal(size=shape))
    )


def layout_map(d):
    return sizes_of.address.concrete(d)


@jax.jit
def both(q, k, v, n):
    mask = jnp.arange(k.shape[0]) < n
    return attention.reference(q, k, v, mask), attention.reference(q, k, jnp.abs(v), mask)


def padded(x):
    """One shape for all, so that the reference compiles once."""
    return np.pad(x, ((0, 0 if len(x) == 2 else 256 - len(x)), (0, 256 - x.shape[1])))


def errors(d, placement, tokens, found, dtype):
    """Largest error in units of what rounding the weights explains."""
    worst = 0.0
    for r in np.flatnonzero(placement.n_token > 0):
        for h in range(tokens.query.shape[1]):
            q, k, v = tokens.query[r, h], tokens.key[r, :, h], tokens.value[r, :, h]
            expected, weight = both(padded(q), padded(k), padded(v), placement.n_token[r])
            width = found.shape[-1]
            bound = ROUNDOFF[dtype] * np.asarray(weight)[:, :width] + 1e-5
            error = np.abs(found[r, h] - np.asarray(expected)[:, :width]) / bound
            worst = max(worst, float(np.nan_to_num(error, nan=np.inf).max()))
    return worst


def case(seed, **fixed):
    rng = np.random.default_rng(seed)
    d = small(rng, **fixed)
    dtype = (jnp.bfloat16, jnp.float16)[seed % 2]
    placement = layouts.scattered(d, rng, n_request=2, max_block=5)
    return d, placement, drawn(d, placement, rng, dtype), dtype


def check(seed):
    d, placement, tokens, dtype = case(seed)
    found = numerics.attend(d, placement, tokens, dtype=dtype)
    assert errors(d, placement, tokens, found, dtype) <= 1, seed


def test_attention_in_the_banks_is_attention():
    """Memory that was never written is NaN: none of it reaches an output."""
    for seed in range(8):
        check(seed)


@pytest.mark.deep
def test_attention_in_the_banks_is_attention_at_length():
    for seed in range(1000, 1500):
        check(seed)


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("MAC_ABK", "row", 1), ("MAC_ABK", "write_tag", 1), ("WR_SBK", "bank", 1),
        ("WR_SBK", "row", 1), ("RD_SBK", "bank", 1), ("RD_SBK", "write_tag", 1),
    ],
)  # fmt: skip
def test_one_wrong_address_is_noticed(name, field, change):
    """One row, burst or bank of one instruction altered: the outputs are wrong."""
    d, placement, tokens, dtype = case(3, head_dim=64, c=2, k_order="ch_c_r", v_order="ch_c_r")
    policy = dataclasses.replace(d.policy, v_write=np.int32(1))
    d = dataclasses.replace(d, policy=policy)
    size = int(layout_map(d).block_tokens)
    placement = layout.contiguous(d, [3 * size, 2 * size + 3], max_block=5)

    def alter(program):
        stream = program.stream
        at = np.flatnonzero(stream.op == isa.OP[name])[0]
        column = np.array(getattr(stream, field))
        column[at] += change if column[at] < 15 else -change
        return program._replace(stream=dataclasses.replace(stream, **{field: column}))

    right = numerics.attend(d, placement, tokens, dtype=dtype)
    assert errors(d, placement, tokens, right, dtype) <= 1
    wrong = numerics.attend(d, placement, tokens, dtype=dtype, alter=alter)
    assert errors(d, placement, tokens, wrong, dtype) > 1


def test_moving_row_sets_changes_no_bit():
    d, _, tokens, dtype = case(8, head_dim=64, c=2)
    placement = layout.contiguous(d, [70, 33], max_block=5)
    moved = dataclasses.replace(
        placement, row_set=np.where(placement.row_set >= 0, 5 - placement.row_set, -1)
    )
    one, other = (numerics.attend(d, p, tokens, dtype=dtype) for p in (placement, moved))
    assert np.array_equal(one, other)


def test_accumulators_may_be_narrow():
    d, placement, tokens, dtype = case(12, head_dim=64)
    wide = numerics.attend(d, placement, tokens, dtype=dtype)
    narrow = numerics.attend(d, placement, tokens, dtype=dtype, accumulate=jnp.bfloat16)
    is_one = placement.n_token > 0
    assert not np.array_equal(wide[is_one], narrow[is_one])
    assert np.nanmax(np.abs(wide[is_one] - narrow[is_one])) < 0.2


def test_a_whole_device_is_too_much_memory():
    with pytest.raises(InputError, match="n_row"):
        numerics.memory(layouts.LLAMA)
