"""A batch that never empties: conversations from a live pool, turn after turn, as an array machine.

Closed loop, as the PATTON paper drives vLLM (section 5.1): so many turns run at once, and so many
conversations are alive. A turn that ends gives its place to the conversation that has waited
longest; its own waits at the back of the queue with its next turn, or makes room for the traffic's
next conversation. A whole prompt is computed in the step that admits it and yields the first token;
every step after yields one more. Who finds no room in memory tries again once, then waits at the
back. Arrivals by the clock, chunked prompts and preemption as vLLM does it are `scheduler`'s.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from jaxmem.core.errors import InputError
from jaxmem.serving.conversations import Traffic

NONE = -1


class Talks(NamedTuple):
    """Conversations, one after another; begun again from the first when all have been."""

    prompt_tokens: Int[Array, " turn"]  # new in the turn
    output_tokens: Int[Array, " turn"]
    is_last: Bool[Array, " turn"]
    first: Int[Array, " conversation"]  # its first turn


class Live(NamedTuple):
    """Who runs, who waits, and where the conversations stand."""

    talk: Int[Array, " running"]  # place of the conversation in the live pool
    n_token: Int[Array, " running"]  # in the cache
    n_left: Int[Array, " running"]  # to decode yet
    is_new: Bool[Array, " running"]  # its prompt is still to compute
    n_failed: Int[Array, " running"]  # steps in a row without room
    turn: Int[Array, " place"]
    said_tokens: Int[Array, " place"]  # of earlier turns, prompts and responses
    table: Int[Array, "place held"]  # ids of the blocks that these lie in
    n_held: Int[Array, " place"]
    queue: Int[Array, " place"]
    head: Any
    n_queue: Any
    n_begun: Any  # conversations
    next_block: Any  # id


class Ask(NamedTuple):
    """What a step asks of the memory, by running turn."""

    leaves: Bool[Array, " running"]  # what ran here before is over
    fails: Bool[Array, " running"]  # or has found no room
    total_tokens: Int[Array, " running"]  # in the cache after the step
    n_hit: Int[Array, " running"]  # blocks of the prefix that are there
    n_prefix: Int[Array, " running"]  # blocks that a memory without limit would have
    n_token: Int[Array, " running"]  # to write
    table: Int[Array, "running held"]  # blocks after the step
    block: Int[Array, "running held"]  # ids of those that it begins, in order
    n_block: Int[Array, " running"]  # how many


def talks(traffic: Traffic) -> Talks:
    """Conversations of drawn traffic; shared system prompts are not followed.

    Raises:
        InputError: no turn.
    """
    if not len(traffic.turn):
        raise InputError("traffic", 0, "at least one turn")
    turn = np.asarray(traffic.turn)
    last = np.append(turn[1:] == 0, True)
    lengths = (np.asarray(x, np.int32) for x in (traffic.input_tokens, traffic.output_tokens))
    return Talks(*map(jnp.asarray, (*lengths, last, np.flatnonzero(turn == 0).astype(np.int32))))


def start(talks: Talks, *, n_running: int, n_place: int, max_held: int) -> Live:
    """Nobody runs, everybody waits.

    Raises:
        InputError: fewer conversations alive than run at once.
    """
    if n_place < n_running:
        raise InputError("n_place", n_place, f"at least {n_running}, as many as run at once")
    place = jnp.arange(n_place, dtype=jnp.int32)
    zero, none = jnp.zeros(n_running, jnp.int32), jnp.full(n_running, NONE, jnp.int32)
    return Live(
        talk=none,
        n_token=zero,
        n_left=zero,
        is_new=zero > 0,
        n_failed=zero,
        turn=talks.first[place % talks.first.shape[0]],
        said_tokens=0 * place,
        table=jnp.full((n_place, max_held), NONE, jnp.int32),
        n_held=0 * place,
        queue=place,
        head=jnp.int32(0),
        n_queue=jnp.int32(n_place),
        n_begun=jnp.int32(n_place),
        next_block=jnp.int32(0),
    )


def turn_over(live: Live, talks: Talks, cap_tokens: Any) -> tuple[Live, Any, Any]:
    """Those whose turn is over, or who found no room twice, give their places to who waits.

    Args:
        live: after the step before.
        talks: the traffic.
        cap_tokens: longest context; a conversation that would pass it is over, a first prompt cut.

    Returns:
        (live, [running] whose turn is over, [running] who found no room).
    """
    n_place, n_talk = live.queue.shape[0], talks.first.shape[0]
    runs = live.talk >= 0
    fails = runs & (live.n_failed > 1)
    over = runs & ~fails & ~live.is_new & (live.n_left <= 0)
    leaves, needs = over | fails, over | fails | ~runs
    place = jnp.maximum(live.talk, 0)
    turn = live.turn[place]
    said = live.n_token + 1  # the last token is said, not cached
    following = jnp.minimum(turn + 1, talks.is_last.shape[0] - 1)
    is_full = said + talks.prompt_tokens[following] >= cap_tokens
    ends = over & (talks.is_last[turn] | is_full)
    number = live.n_begun + jnp.cumsum(ends, dtype=jnp.int32) - 1
    follows = over & ~ends
    turn = jnp.where(ends, talks.first[number % n_talk], jnp.where(follows, following, turn))
    said = jnp.where(ends, 0, jnp.where(follows, said, live.said_tokens[place]))
    held = jnp.where(ends, 0, live.n_held[place])
    at = jnp.where(leaves, place, n_place)
    tail = (live.head + live.n_queue + jnp.cumsum(leaves, dtype=jnp.int32) - 1) % n_place
    queue = live.queue.at[jnp.where(leaves, tail, n_place)].set(place, mode="drop")
    next_ = queue[(live.head + jnp.cumsum(needs, dtype=jnp.int32) - 1) % n_place]
    n_need, n_leave = needs.sum(dtype=jnp.int32), leaves.sum(dtype=jnp.int32)
    live = live._replace(
        talk=jnp.where(needs, next_, live.talk),
        is_new=live.is_new | needs,
        n_failed=jnp.where(needs, 0, live.n_failed),
        turn=live.turn.at[at].set(turn, mode="drop"),
        said_tokens=live.said_tokens.at[at].set(said, mode="drop"),
        n_held=live.n_held.at[at].set(held, mode="drop"),
        queue=queue,
        head=(live.head + n_need) % n_place,
        n_queue=live.n_queue + n_leave - n_need,
        n_begun=live.n_begun + ends.sum(dtype=jnp.int32),
    )
    return live, over, fails


def ask(
    live: Live, talks: Talks, over: Any, fails: Any, is_cached: Any, *,
    block_tokens: Any, cap_tokens: Any, caches: Any, max_block: Any,
) -> Ask:  # fmt: skip
    """What the next step writes: a token, or what of a prompt the cache does not have.

    Args:
        live: of `turn_over`.
        talks: the traffic.
        over: of `turn_over`.
        fails: of `turn_over`.
        is_cached: [running, held] whether each block of a conversation is full and there.
        block_tokens: tokens of a block.
        cap_tokens: longest context.
        caches: whether finished turns leave their blocks.
        max_block: ids that there are; those in use are skipped by going round.
    """
    place = jnp.maximum(live.talk, 0)
    prompt = live.said_tokens[place] + talks.prompt_tokens[live.turn[place]]
    prompt = jnp.minimum(prompt, cap_tokens - 1)
    k = jnp.arange(live.table.shape[1], dtype=jnp.int32)[None]
    n_prefix = jnp.minimum(live.n_held[place], (prompt - 1) // block_tokens)
    is_prefix = (k < n_prefix[:, None]) & is_cached & (caches > 0)
    n_hit = jnp.cumprod(is_prefix, axis=1, dtype=jnp.int32).sum(1)
    n_hit = jnp.where(live.is_new, n_hit, 0)
    total = jnp.where(live.is_new, prompt, live.n_token + 1)
    n_known = jnp.where(live.is_new, n_hit, -(-live.n_token // block_tokens))
    n_all = -(-total // block_tokens)
    n_block = n_all - n_known
    before = jnp.cumsum(n_block, dtype=jnp.int32) - n_block
    first = (live.next_block + before)[:, None]
    is_begun = (k >= n_known[:, None]) & (k < n_all[:, None])
    table = jnp.where(is_begun, (first + k - n_known[:, None]) % max_block, live.table[place])
    block = jnp.where(k < n_block[:, None], (first + k) % max_block, NONE)
    n_token = jnp.where(live.is_new, total - n_hit * block_tokens, 1)
    n_prefix = jnp.where(live.is_new, n_prefix, 0)
    return Ask(over, fails, total, n_hit, n_prefix, n_token, table, block, n_block)


def settle(
    live: Live, talks: Talks, ask: Ask, ok: Any, *,
    block_tokens: Any, cap_tokens: Any, max_block: Any,
) -> Live:  # fmt: skip
    """After the step: who found room is a token further."""
    place = jnp.maximum(live.talk, 0)
    room = cap_tokens - ask.total_tokens
    response = jnp.minimum(talks.output_tokens[live.turn[place]] - 1, room)
    left = jnp.where(live.is_new, jnp.maximum(response, 0), live.n_left - 1)
    at = jnp.where(ok, place, live.queue.shape[0])
    return live._replace(
        n_token=jnp.where(ok, ask.total_tokens, live.n_token),
        n_left=jnp.where(ok, left, live.n_left),
        is_new=live.is_new & ~ok,
        n_failed=jnp.where(ok, 0, live.n_failed + 1),
        table=live.table.at[at].set(ask.table, mode="drop"),
        n_held=live.n_held.at[at].set(ask.total_tokens // block_tokens, mode="drop"),
        next_block=(live.next_block + ask.n_block.sum(dtype=jnp.int32)) % max_block,
    )
