"""The prefix cache and the scheduler: exact replay, the curve of all capacities, designs at once.

Against vLLM's own figures (research/vllm.md section 3: 0.33.0, process time on two shared cores).
The traffic is drawn here, so that nothing but the package is needed; where `JAXMEM_REFERENCE` holds
the Mooncake conversation trace, it is measured too.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxmem.cli.bench import Row, best_s
from jaxmem.serving import conversations, designs, reuse
from jaxmem.serving.blocks import Blocked, block, lists
from jaxmem.serving.replay import replay
from jaxmem.serving.scheduler import Config
from jaxmem.serving.traces import read_trace

VLLM_REQUESTS_PER_S = 681.0  # lookup, allocate, free; whole prompts of about 864 blocks
VLLM_STEPS_PER_S = 840.0  # schedule and update, multi-turn, the best of its runs
N_DESIGN = 64
_TRACE = "mooncake_conversation_trace.jsonl.gz"
_ITS = "vLLM 0.33.0's own figure, research/vllm.md section 3"


def rows() -> Iterator[Row]:
    """What `jaxmem bench serving` measures."""
    blocked, note = _trace()
    n = len(blocked.input_tokens)
    second = best_s(lambda: replay(blocked, 100_000), 3)
    note = f"{note}, blocks of 16, 100,000 of them, responses included"
    yield Row("exact replay at one capacity", n / second, "requests/s", "6,000", note)
    yield Row("  ratio to vLLM", n / second / VLLM_REQUESTS_PER_S, "x", "", _ITS)
    second = best_s(lambda: np.asarray(reuse.curve(blocked).hit_blocks), 3)
    yield Row("hit rate at every capacity", second, "s", "< 5 s", note)
    yield from _scheduler()


def _scheduler() -> Iterator[Row]:
    traffic = conversations.draw("recorded", n_conversation=48, conversations_per_s=1 / 3, seed=1)
    todo = conversations.asked(traffic, 16, in_steps=True)
    sizes = {"block_tokens": 16, "max_running": 32, "max_tokens": 2048}
    configs = [Config.create(n_block=int(n), **sizes) for n in np.linspace(800, 4000, N_DESIGN)]
    one = [configs[0]]
    n_step = int(designs.run_designs(todo, one).n_step.sum())
    second = best_s(lambda: designs.run_designs(todo, one), 3)
    note = f"{len(todo.row)} turns of 48 conversations, 800 blocks, 32 at once; {_ITS}"
    yield Row("scheduler, one design", n_step / second, "steps/s", "8,400", note)
    yield Row("  ratio to vLLM", n_step / second / VLLM_STEPS_PER_S, "x", "10 x", _ITS)
    n_thread = os.cpu_count() or 1
    n_step = int(designs.run_designs(todo, configs, n_thread=n_thread).n_step.sum())
    second = best_s(lambda: designs.run_designs(todo, configs, n_thread=n_thread), 2)
    note = f"{N_DESIGN} capacities, {n_thread} threads"
    yield Row("scheduler, 64 designs", n_step / second, "design-steps/s", "84,000", note)
    yield Row("  ratio to vLLM", n_step / second / VLLM_STEPS_PER_S, "x", "100 x", _ITS)


def _trace() -> tuple[Blocked, str]:
    file = Path(os.environ.get("JAXMEM_REFERENCE", "")) / "traces" / _TRACE
    if file.is_file():
        return block(read_trace(file), 16), "Mooncake conversation trace, 12,031 requests"
    rng = np.random.Generator(np.random.PCG64(1))
    n, length = 4000, 24  # ids of 512 tokens: a shared first one, then mostly new ones
    prompts = [[0, *range(1 + i * length, (i + 1) * length)] for i in range(n)]
    for i in range(1, n):
        if rng.random() < 0.3:
            again = rng.integers(i)
            prompts[i] = prompts[again][: rng.integers(1, length)] + prompts[i][-4:]
    ids, start = lists(prompts)
    tokens = 512 * np.diff(start)
    keyed = tokens // 16
    return Blocked(
        tokens, np.full(n, 343), ids, start, keyed, 32, 16, 32 * (int(ids.max()) + 1)
    ), "4,000 drawn requests"
