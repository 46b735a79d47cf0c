"""Blocks are numbered by their content and all before them, at any block size."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.serving.blocks import Chain, block, chain_ids, lists
from jaxmem.serving.traces import Trace, read_trace


def trace_of(prompts, id_tokens, lengths):
    ids, start = lists(prompts)
    n = len(prompts)
    zero = np.zeros(n)
    return Trace(zero, np.asarray(lengths), np.ones(n, int), np.arange(n), ids, start, id_tokens,
                 "test", 0)  # fmt: skip


def classes(keys):
    """Keys as the partition that they make."""
    seen = {}
    return [seen.setdefault(k, len(seen)) for k in keys]


@given(
    prompts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=6),
    cut=st.integers(0, 11),
    block_tokens=st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 13, 24]),
)
def test_keys_are_equal_where_prefixes_are(prompts, cut, block_tokens):
    """Against tokens written out: id i at place p stands for twelve tokens of its own."""
    lengths = [max(12 * len(p) - cut, 1) for p in prompts]
    blocked = block(trace_of(prompts, 12, lengths), block_tokens)
    chain = Chain(block_tokens)
    found, wanted = [], []
    for request, (ids, length) in enumerate(zip(prompts, lengths, strict=True)):
        tokens = [(i, t) for i in ids for t in range(12)][:length]
        wanted += chain.keys(tokens)
        keys = blocked.keys(request)
        assert len(keys) == length // block_tokens
        found += keys.tolist()
    assert classes(found) == classes(wanted)
    assert all(0 <= key < blocked.n_key for key in found)


def test_ids_that_are_no_chains_are_chained():
    ids, start = lists([[1, 2], [3, 2], [1, 2, 2]])
    dense, n = chain_ids(ids, start)
    assert dense.tolist() == [0, 1, 2, 3, 0, 1, 4]
    assert n == 5


def test_a_salt_keeps_blocks_apart():
    chain = Chain(2)
    assert chain.keys([1, 2, 3, 4]) == [0, 1]
    assert chain.keys([1, 2, 3, 4], salt="u") == [2, 3]
    assert chain.keys([1, 2, 3, 4], salt="u") == [2, 3]


def test_a_trace_without_content_never_repeats():
    blocked = block(trace_of([[], []], 0, [100, 100]), 16)
    assert blocked.keyed_blocks.tolist() == [0, 0]


@pytest.mark.parametrize("size", [0, -1])
def test_block_size(size):
    with pytest.raises(InputError, match="block_tokens"):
        block(trace_of([[1]], 16, [16]), size)


def test_mooncake(reference):
    trace = read_trace(reference / "traces" / "mooncake_conversation_trace.jsonl.gz")
    blocked = block(trace, 16)
    assert trace.input_tokens.sum() == 144_793_823
    assert (blocked.id_blocks, blocked.n_key) == (32, 182_790 * 32)
    np.testing.assert_array_equal(blocked.ids, trace.ids)  # already dense, in order of appearance
