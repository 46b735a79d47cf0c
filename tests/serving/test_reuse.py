"""Hit rates at every capacity from one pass, against a plain LRU cache run at each of them."""

from collections import OrderedDict

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmem.serving.blocks import Blocked, block
from jaxmem.serving.reuse import NEVER, curve, distances
from jaxmem.serving.traces import read_trace

N_REF = 32  # one shape: compiled once


def lru_hits(prompts, capacity, order):
    """Blocks found by a cache that runs request by request: look up, then use every block."""
    cache, hits = OrderedDict(), 0
    for prompt in prompts:
        for key in prompt:
            if key not in cache:
                break
            hits += 1
        for key in reversed(prompt) if order == "tail_first" else prompt:
            cache[key] = cache.pop(key, None)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


@st.composite
def prefix_trees(draw):
    """Prompts over a few chains, `N_REF` ids in all; an id stands where only its parent leads."""
    prompts, left = [], N_REF
    while left:
        size = min(draw(st.integers(1, 7)), left)
        root = draw(st.integers(0, 2))
        fork = draw(st.integers(0, size))
        leaf = draw(st.integers(0, 1))
        prompts.append([(root, i, leaf if i >= fork else None, fork if i >= fork else None)
                        for i in range(size)])  # fmt: skip
        left -= size
    return prompts


def blocked_of(prompts, id_blocks=1, cut=0):
    names = {}
    ids = np.array([names.setdefault(key, len(names)) for p in prompts for key in p])
    start = np.cumsum([0] + [len(p) for p in prompts])
    keyed = np.diff(start) * id_blocks - cut
    tokens = np.maximum(keyed, 1)
    return Blocked(tokens, tokens, ids, start, keyed, id_blocks, 1, len(names) * id_blocks)


@pytest.mark.parametrize("order", ["tail_first", "head_first"])
@given(prompts=prefix_trees())
@settings(max_examples=10)
def test_every_capacity_at_once(order, prompts):
    found = curve(blocked_of(prompts), order)
    for capacity in range(N_REF + 2):
        assert float(found.hit_tokens(capacity)) == lru_hits(prompts, capacity, order)


@given(prompts=prefix_trees())
@settings(max_examples=6)
def test_an_id_of_several_blocks_is_as_good_as_its_blocks(prompts):
    whole = curve(blocked_of(prompts, id_blocks=3))
    parts = [[(key, j) for key in p for j in range(3)] for p in prompts]
    for capacity in range(0, 3 * N_REF, 5):
        assert float(whole.hit_tokens(capacity)) == lru_hits(parts, capacity, "tail_first")


def test_a_repeated_chain_by_hand():
    """a b | c d | a b: two blocks were used since, and the tail is behind the head."""
    ids, one = np.array([0, 1, 2, 3, 0, 1]), np.ones(6, int)
    request = np.array([0, 0, 1, 1, 2, 2])
    assert distances(ids, one, request)[4:].tolist() == [2, 3]
    head = distances(ids, one, request, order="head_first")
    assert head.tolist() == [NEVER] * 4 + [3, 3]  # b is no use without a


def test_the_gradient_is_what_the_next_block_adds():
    prompts = [[0, 1], [2, 3], [0, 1], [2, 3, 4]]
    found = curve(blocked_of(prompts))
    for capacity in range(6):
        rise = found.hit_rate(capacity + 1) - found.hit_rate(capacity)
        slope = jax.grad(found.hit_rate)(float(capacity))
        np.testing.assert_allclose(slope, rise)
    assert float(found.slope(3.0)) > 0
    assert float(found.hit_rate(1e9)) == float(found.hit_rate(6))


def test_nothing_to_find():
    found = curve(blocked_of([[0], [1]]))
    assert float(found.hit_rate(100)) == 0
    empty = Blocked(*[np.ones(1, int)] * 2, np.zeros(0, int), np.array([0, 0]), np.zeros(1, int),
                    1, 16, 1)  # fmt: skip
    assert float(curve(empty).hit_rate(10)) == 0


ROW_17 = {
    "conversation": (288_500, [0.0445, 0.2112, 0.3257, 0.3546, 0.3637, 0.3664]),
    "synthetic": (121_877, [0.0825, 0.4235, 0.6242, 0.6396, 0.6396, 0.6396]),
}
"""research/peers.md, section 3, row 17: whole 512-token blocks, used in reading order."""


@pytest.mark.parametrize("name", ROW_17)
def test_mooncake(reference, name):
    trace = read_trace(reference / "traces" / f"mooncake_{name}_trace.jsonl.gz")
    whole = block(trace._replace(input_tokens=512 * np.diff(trace.start)), 512)
    n_ref, wanted = ROW_17[name]
    assert len(whole.ids) == n_ref
    found = curve(whole, "head_first")
    rates = [float(found.hit_rate(c)) for c in (1e3, 1e4, 3e4, 5e4, 1e5, 1e9)]
    np.testing.assert_array_equal(np.round(rates, 4), wanted)
    if name == "conversation":  # research/perf.md, section B
        hits = [float(curve(whole).hit_tokens(c)) / 512 for c in (1e3, 1e4, 5e4, 15e4)]
        assert hits == [12_847, 61_046, 102_290, 105_598]
        # research/vllm.md, section 2 (b): prompts alone, replayed by vLLM; no rejections
        small = curve(block(trace, 16))
        rates = [100 * float(small.hit_rate(c - 1)) for c in (2e4, 1e5, 5e5, 2e6)]
        np.testing.assert_allclose(rates, [4.3300, 7.0136, 26.7810, 36.6489], atol=1e-4)
