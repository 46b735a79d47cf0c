"""Synthetic multi-turn traffic: conversations that share system prompts, from named presets.

Lengths are log-normal with the published mean and deviation or median, turns geometric with the
published mean, conversations arrive as a Poisson process. Draws come from NumPy's PCG64, whose
stream is the same on every machine. Presets say where their numbers come from
(research/related.md, section 4); what a source does not give is assumed, and says so.
"""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxmem.core.errors import InputError
from jaxmem.serving import sessions
from jaxmem.serving.blocks import Chain
from jaxmem.serving.memory import NONE


class Length(NamedTuple):
    """A length in tokens: log-normal, by its mean and deviation."""

    mean: float
    deviation: float

    def draw(self, rng: np.random.Generator, n: int) -> Int[np.ndarray, " n"]:
        """`n` lengths, each at least 1."""
        variance = math.log1p((self.deviation / self.mean) ** 2)
        centre = math.log(self.mean) - variance / 2
        found = np.exp(centre + math.sqrt(variance) * rng.standard_normal(n))
        return np.maximum(np.round(found), 1).astype(np.int64)


class Preset(NamedTuple):
    """A kind of traffic."""

    turns: float  # mean of a conversation
    input_tokens: Length  # new in a turn
    output_tokens: Length
    system_tokens: tuple[int, ...]  # shared system prompts, equally likely
    think_s: float  # from an answer to the next turn
    source: str


def _median(mean: float, median: float) -> Length:
    """A log-normal length by its mean and median."""
    return Length(mean, mean * math.sqrt((mean / median) ** 2 - 1))


PRESETS = {
    "sharegpt": Preset(
        3.51, Length(94.46, 94.46), Length(348.45, 348.45), (0,), 10.0,
        "LMSYS-Chat-1M, table of data sets, row ShareGPT: turns, prompt and response means; "
        "deviations (as large as the mean) and thinking time assumed",
    ),
    "lmsys": Preset(
        2.01, Length(130.0, 173.5), Length(130.0, 173.5), (0,), 10.0,
        "MAGPIE table 4, LMSYS-Chat-1M: 2.01 turns of 260 +- 347 tokens; split in halves and "
        "thinking time assumed",
    ),
    "wildchat": Preset(
        2.52, Length(363.5, 409.5), Length(363.5, 409.5), (0,), 10.0,
        "MAGPIE table 4, WildChat: 2.52 turns of 727 +- 819 tokens; split in halves and thinking "
        "time assumed",
    ),
    "longproc": Preset(
        1.0, Length(8110.0, 0.0), Length(2530.0, 0.0), (0,), 0.0,
        "LongProc as FlashAccel uses it: 8.11K in, 2.53K out, one turn; deviations not given, "
        "taken as none",
    ),
    "agentic": Preset(
        8.8, _median(3490.0, 438.0), _median(388.0, 130.0), (15_000,), 1.0,
        "pi-mono session before-compaction: 8.8 model calls a user turn, new input 3,490 mean and "
        "438 median, output 388 and 130 (computed); a shared prompt of 15K from AgentTaxo as "
        "FlashAccel uses it; time of a tool call assumed",
    ),
    "recorded": Preset(
        4.6, Length(165.0, 85.0), Length(70.0, 45.0), (320, 197, 512), 0.0,
        "like the workload that vLLM's scheduler was recorded with (research/vllm.md, 2c): three "
        "system prompts, 221 turns of 48 conversations; lengths estimated",
    ),
}  # fmt: skip
"""Kinds of traffic by name."""


class Traffic(NamedTuple):
    """Drawn conversations, on the host."""

    conversation: Int[np.ndarray, " request"]
    turn: Int[np.ndarray, " request"]
    input_tokens: Int[np.ndarray, " request"]  # new in the turn
    output_tokens: Int[np.ndarray, " request"]
    system: Int[np.ndarray, " request"]  # which system prompt
    arrival_s: Any  # [conversation] of its first turn
    preset: Preset


def draw(
    preset: str | Preset,
    *,
    n_conversation: int,
    conversations_per_s: float,
    seed: int = 0,
    max_turn: int = 64,
) -> Traffic:
    """Conversations of a kind.

    Args:
        preset: a name of `PRESETS`, or one of your own.
        n_conversation: conversations.
        conversations_per_s: rate at which they begin.
        seed: equal seeds give equal traffic everywhere.
        max_turn: longest conversation.

    Raises:
        InputError: an unknown preset, or a count or rate that is not above 0.

    Example:
        >>> traffic = draw("sharegpt", n_conversation=3, conversations_per_s=1.0)
        >>> traffic.turn.tolist() == draw(PRESETS["sharegpt"], n_conversation=3,
        ...     conversations_per_s=1.0).turn.tolist()
        True
    """
    if isinstance(preset, str):
        if preset not in PRESETS:
            rule = "one of " + ", ".join(PRESETS)
            raise InputError("preset", preset, rule, known=PRESETS)
        preset = PRESETS[preset]
    for name, value in (("n_conversation", n_conversation), ("rate", conversations_per_s)):
        if not value > 0:
            raise InputError(name, value, "a number > 0")
    rng = np.random.Generator(np.random.PCG64(seed))
    arrival = np.cumsum(rng.exponential(1 / conversations_per_s, n_conversation))
    turns = np.minimum(rng.geometric(min(1 / preset.turns, 1.0), n_conversation), max_turn)
    system = rng.integers(len(preset.system_tokens), size=n_conversation)
    conversation = np.repeat(np.arange(n_conversation), turns)
    n = len(conversation)
    first = np.repeat(np.cumsum(turns) - turns, turns)
    lengths = (preset.input_tokens.draw(rng, n), preset.output_tokens.draw(rng, n))
    return Traffic(
        conversation, np.arange(n) - first, *lengths, system[conversation], arrival, preset
    )


def asked(traffic: Traffic, block_tokens: int, *, in_steps: bool = False) -> sessions.Asked:
    """Conversations as requests: each turn's prompt is all that was said before, and its own.

    Args:
        traffic: of `draw`.
        block_tokens: tokens of a block.
        in_steps: take seconds as scheduler steps, for runs without a step-time model.
    """
    unit_s = 1.0 if in_steps else sessions.TICK_S
    chain = Chain(block_tokens)
    prompt, keys, said = [], [], []
    for request, turn in enumerate(traffic.turn.tolist()):
        which = int(traffic.system[request])
        if turn == 0:
            said = [("system", which, i) for i in range(traffic.preset.system_tokens[which])]
        said += [("user", request, i) for i in range(traffic.input_tokens[request])]
        prompt.append(len(said))
        said += [("model", request, i) for i in range(traffic.output_tokens[request])]
        keys.append(np.asarray(chain.keys(said), np.int64))
    n = len(prompt)
    next_ = np.append(traffic.turn[1:], 0) > 0
    follower = np.where(next_, np.arange(1, n + 1), NONE)
    begin = np.round(traffic.arrival_s[traffic.conversation] / unit_s).astype(np.int64)
    return sessions.asked(
        prompt, traffic.output_tokens, keys, len(chain),
        np.where(traffic.turn == 0, begin, NONE), block_tokens=block_tokens, follower=follower,
        think=round(traffic.preset.think_s / unit_s),
    )  # fmt: skip
