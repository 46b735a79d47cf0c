"""Synthetic traffic: equal everywhere for equal seeds, and with the published statistics."""

import hashlib

import jax.numpy as jnp
import numpy as np
import pytest

from jaxmem.core.errors import InputError
from jaxmem.serving import conversations, sessions
from jaxmem.serving.conversations import PRESETS, draw
from jaxmem.serving.scheduler import Config

DIGEST = "afd244e2921d603f"
"""Of the traffic below, taken on x86-64 with NumPy 2.5."""


def test_a_seed_is_the_same_traffic_on_every_machine():
    traffic = draw("sharegpt", n_conversation=50, conversations_per_s=2.0, seed=7)
    whole = np.concatenate([traffic.turn, traffic.input_tokens, traffic.output_tokens])
    digest = hashlib.sha256(whole.astype("<i8").tobytes()).hexdigest()
    assert digest.startswith(DIGEST)
    other = draw("sharegpt", n_conversation=50, conversations_per_s=2.0, seed=8)
    assert other.input_tokens.tolist() != traffic.input_tokens.tolist()


@pytest.mark.parametrize("name", PRESETS)
def test_means_are_the_sources(name):
    preset = PRESETS[name]
    traffic = draw(name, n_conversation=20_000, conversations_per_s=4.0, max_turn=10_000)
    n = len(traffic.turn)
    assert n / 20_000 == pytest.approx(preset.turns, rel=0.03)
    assert traffic.input_tokens.mean() == pytest.approx(preset.input_tokens.mean, rel=0.06)
    assert traffic.output_tokens.mean() == pytest.approx(preset.output_tokens.mean, rel=0.06)
    assert 20_000 / traffic.arrival_s[-1] == pytest.approx(4.0, rel=0.03)
    assert preset.source


def test_agentic_medians():
    traffic = draw("agentic", n_conversation=5000, conversations_per_s=1.0)
    assert np.median(traffic.input_tokens) == pytest.approx(438, rel=0.06)
    assert np.median(traffic.output_tokens) == pytest.approx(130, rel=0.06)


def test_a_turn_says_all_before_it():
    traffic = draw("recorded", n_conversation=6, conversations_per_s=1.0, seed=1)
    todo = conversations.asked(traffic, 16)
    said = np.zeros(6, int)
    for i, talk in enumerate(traffic.conversation):
        if traffic.turn[i] == 0:
            said[talk] = traffic.preset.system_tokens[traffic.system[i]]
        said[talk] += traffic.input_tokens[i]
        assert todo.prompt_tokens[i] == said[talk]
        said[talk] += traffic.output_tokens[i]
        if traffic.turn[i]:
            assert todo.follower[i - 1] == i
            shared = said[talk] - traffic.output_tokens[i] - traffic.input_tokens[i]
            n = shared // 16
            assert n > 0
            a, b = todo.row[i - 1], todo.row[i]
            np.testing.assert_array_equal(todo.key[a : a + n], todo.key[b : b + n])
        else:
            assert todo.arrival[i] >= 0


def step_s(batch):
    """10 ms a step, and 10 us a token."""
    return 0.01 + 1e-5 * jnp.maximum(batch.n_token, 0).sum()


def test_latency_and_goodput():
    """Two requests, one after the other: a prompt in one step, then a token every 10.01 ms."""
    keys = [np.arange(4), np.arange(4, 8)]
    todo = sessions.asked([64, 64], [5, 1], keys, 8, [0, 100_000], block_tokens=16)
    config = Config.create(n_block=32, block_tokens=16, max_running=8, max_tokens=64)
    history = sessions.run(todo, config, step_s=step_s)
    seen = sessions.latency(todo, history)
    np.testing.assert_allclose(seen.ttft_s, [0.01064, 0.01064], atol=2e-5)
    np.testing.assert_allclose(seen.tpot_s, [0.01001, np.nan], atol=2e-5)
    assert seen.span_s == pytest.approx(1.0, rel=0.02)
    assert seen.goodput(ttft_s=0.02) == pytest.approx(2 / seen.span_s)
    assert seen.goodput(tpot_s=0.01) == pytest.approx(1 / seen.span_s)
    assert history.n_step <= 8  # time passes to the next arrival


def test_a_preset_runs_to_its_end():
    traffic = draw("recorded", n_conversation=8, conversations_per_s=50.0, seed=3)
    todo = conversations.asked(traffic, 16)
    config = Config.create(n_block=512, max_running=8, max_tokens=512)
    history = sessions.run(todo, config, step_s=step_s)
    assert history.is_complete
    seen = sessions.latency(todo, history)
    assert (seen.ttft_s > 0).all()
    later = traffic.turn > 0
    assert int(history.tally.hit_tokens) > 0
    assert np.nanmean(seen.ttft_s[later]) > 0


def test_bad_input():
    with pytest.raises(InputError, match="did you mean 'sharegpt'"):
        draw("sharegtp", n_conversation=1, conversations_per_s=1.0)
    with pytest.raises(InputError, match="n_conversation"):
        draw("lmsys", n_conversation=0, conversations_per_s=1.0)
