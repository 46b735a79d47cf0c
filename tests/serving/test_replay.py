"""Whole traces through one pool, against the plain twin; every policy keeps the pool whole."""

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.serving.blocks import Blocked, block, lists
from jaxmem.serving.eviction import POLICIES
from jaxmem.serving.replay import replay
from jaxmem.serving.traces import read_trace

sys.path.insert(0, str(Path(__file__).parents[1] / "reference"))
from vllm_pool import Pool

pytestmark = pytest.mark.slow

SIZE = 4


def blocked_of(prompts, lengths, outputs):
    ids, start = lists(prompts)
    lengths = np.asarray(lengths)
    keyed = np.minimum(lengths // SIZE, np.diff(start))
    return Blocked(lengths, np.asarray(outputs), ids, start, keyed, 1, SIZE, 64)


def twin(blocked, n_block, fronts_unkeyed=True):
    pool, hits, evictions = Pool(n_block, SIZE, fronts_unkeyed=fronts_unkeyed), [], []
    for i, (prompt, output) in enumerate(zip(*blocked[:2], strict=True)):
        total = prompt + max(output - 1, 0)
        if pool.n_blocks(total) > pool.n_usable:
            hits.append(-1)
            evictions.append(-1)
            continue
        keys = blocked.keys(i).tolist() + [("own", i, j) for j in range(total)]
        before = pool.evictions
        found = pool.lookup(keys, prompt)
        pool.touch(found)
        held = found + pool.take(pool.n_blocks(total) - len(found))
        for j in range(len(found), total // SIZE):
            pool.publish(held[j], keys[j])
        pool.release(held)
        hits.append(SIZE * len(found))
        evictions.append(pool.evictions - before)
    return hits, evictions, pool.free


@st.composite
def traces(draw):
    prompts, lengths, outputs = [], [], []
    for _ in range(draw(st.integers(1, 14))):
        root, n = draw(st.integers(0, 3)), draw(st.integers(0, 8))
        prompts.append([16 * root + i for i in range(n)])
        lengths.append(SIZE * n + draw(st.integers(0, 3)))
        outputs.append(draw(st.integers(0, 9)))
    return prompts, lengths, outputs


@given(raw=traces(), n_block=st.integers(2, 30), fronts=st.booleans())
@settings(max_examples=40)
def test_every_request_and_the_final_queue_are_the_twins(raw, n_block, fronts):
    blocked = blocked_of(*raw)
    found = replay(blocked, n_block, fronts_unkeyed=fronts)
    hits, evictions, queue = twin(blocked, n_block, fronts)
    assert found.hit_tokens.tolist() == hits
    assert found.evictions.tolist() == evictions
    assert found.free_queue().tolist() == queue


@pytest.mark.parametrize("policy", POLICIES)
@given(raw=traces(), n_block=st.integers(2, 30))
@settings(max_examples=12)
def test_every_policy_keeps_the_pool_whole(policy, raw, n_block):
    blocked = blocked_of(*raw)
    found = replay(blocked, n_block, policy=policy)
    assert sorted(found.free_queue().tolist()) == list(range(1, n_block))
    plain = replay(blocked, n_block)
    np.testing.assert_array_equal(found.hit_tokens < 0, plain.hit_tokens < 0)
    enough = replay(blocked, 400, policy=policy)  # with room for all, policies do not differ
    np.testing.assert_array_equal(enough.hit_tokens, replay(blocked, 400).hit_tokens)
    assert (enough.evictions == 0).all()


def a_scan_and_a_loved_prompt():
    """The prompt 0-3 comes back between ever new ones: two lives, then four strangers."""
    prompts, seen = [[0, 1, 2, 3]] * 3, 4
    for _ in range(6):
        prompts += [[seen + i for i in range(4)], [seen + 4 + i for i in range(4)]]
        seen += 8
        prompts.append([0, 1, 2, 3])
    return blocked_of(prompts, [17] * len(prompts), [1] * len(prompts))


def test_policies_differ_as_they_should():
    blocked = a_scan_and_a_loved_prompt()
    hits = {p: replay(blocked, 11, policy=p).summary()["hit_tokens"] for p in POLICIES}
    most = 16 * 8
    assert hits["lfu"] == hits["never_hit_first"] == hits["arc"] == most
    assert hits["fifo"] <= hits["lru"] < most
    assert hits["whole_request"] <= hits["lru"]


def test_a_request_that_lost_a_block_has_lost_them_all():
    """Five blocks of room: the second prompt takes the first's tail, and so all of it."""
    blocked = blocked_of([[0, 1, 2], [8, 9, 10], [0, 1, 2]], [13] * 3, [1] * 3)
    assert replay(blocked, 7).hit_tokens.tolist() == [0, 0, 8]
    assert replay(blocked, 7, policy="whole_request").hit_tokens.tolist() == [0, 0, 0]


def test_bad_input():
    blocked = a_scan_and_a_loved_prompt()
    with pytest.raises(InputError, match="did you mean 'lru'"):
        replay(blocked, 10, policy="lruu")
    with pytest.raises(InputError, match="n_block"):
        replay(blocked, 1)


def test_progress_and_the_recorded_totals(reference):
    """research/vllm.md, section 2 (b): the conversation trace's first 2,000 requests."""
    trace = read_trace(reference / "traces" / "mooncake_conversation_trace.jsonl.gz").head(2000)
    seen = []
    found = replay(block(trace, 16), 5000, advance=lambda *a: seen.append(a))
    assert seen == [(1024, 2000), (2000, 2000)]
    totals = found.summary()
    assert (totals["hit_tokens"], totals["evictions"]) == (1_026_560, 1_425_769)
    assert (totals["rejected"], totals["accepted_prompt_tokens"]) == (42, 23_248_956)
