"""Continuous batching as vLLM's synchronous scheduler does it: one call, one scheduler step.

A step spends a budget of tokens: on running requests first, in the order of their admission, then
on waiting ones while they fit. A running request that gets no block preempts the one admitted last.
Semantics: research/vllm.md sections 1.9, 1.10 and 1.12 to 1.16; first come, first served. Left out:
the asynchronous scheduler, priorities, speculative decoding, encoder inputs, connectors.

What a request does is kept in `words`, apart from the pool's memory: each is written in place, at
the start of a turn, and neither is read after the other's writes of the same turn.
"""

from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from jaxmem.core.design import Leaf, build, count, design, flag, leaf, part
from jaxmem.serving import memory
from jaxmem.serving import pool as blocks
from jaxmem.serving.memory import NONE, Layout, Pool, Words
from jaxmem.serving.pool import Rule

COMPUTED, TOKENS, HELD, PUBLISHED, NEXT_WAITING, SCHEDULED, STARTED, OUTCOME = range(8)
"""Words of a request: tokens with keys and values, tokens it has, blocks it holds, of these
findable, who waits behind it, tokens of this step, step + 1 of its first token; step + 1 of its
last token, or REJECTED, or ADMITTED, or 0 before that."""
REQUEST_WORDS = 8
BATCH_WORDS = 4  # request, tokens, context before the step, admission

REJECTED, ADMITTED = -1, -2
DECODE, NEW, RESUMED = range(3)
"""How a request came into a batch: it was running; admitted; admitted again after preemption."""


@design
class Config:
    """A scheduler's limits and its pool's rules; every leaf may be swept."""

    n_block: Leaf = count("blocks of the pool, with the null block", low=2, high=2.0**28)
    block_tokens: Leaf = count("tokens of a block", unit="tokens", default=16)
    max_running: Leaf = count("most requests at once (max_num_seqs)", default=128)
    max_tokens: Leaf = count(
        "most tokens of a step (max_num_batched_tokens)", unit="tokens", default=8192
    )
    long_prefill_tokens: Leaf = count(
        "most prompt tokens of one request in a step; 0 for no limit",
        unit="tokens",
        low=0,
        default=0,
    )
    watermark: Leaf = leaf(
        "share of the blocks that admissions leave free, once something runs",
        low=0,
        high=1,
        default=0,
    )
    reserves_full: Leaf = flag("a request is admitted only if its whole sequence fits", default=1)
    rule: Any = part("eviction and caching", parse=lambda r: r, default=None)

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked `Config`; `policy`, `is_caching` and `fronts_unkeyed` go to its `Rule`.

        Raises:
            InputError: a field is unknown, missing or out of bounds.

        Example:
            >>> int(Config.create(n_block=800, policy="lfu").rule.policy)
            2
        """
        names = ("policy", "is_caching", "fronts_unkeyed")
        rule = build(Rule, {k: values.pop(k) for k in names if k in values})
        return build(cls, {**values, "rule": rule})


class Requests(NamedTuple):
    """What is asked, in order of arrival; constant during a run."""

    prompt_tokens: Int[Array, " request"]
    output_tokens: Int[Array, " request"]
    row: Int[Array, " request"]  # of its first block, in `key` and in the table of held blocks
    key: Int[Array, " block"]  # dense ids of all blocks of all requests, responses included


class Bounds(NamedTuple):
    """Static sizes of a scheduler's arrays."""

    layout: Layout
    max_running: int

    @property
    def running_base(self) -> int:
        return REQUEST_WORDS * self.layout.n_request

    @property
    def batch_base(self) -> int:
        return self.running_base + self.max_running

    @property
    def preempted_base(self) -> int:
        return self.batch_base + BATCH_WORDS * self.max_running

    @property
    def finished_base(self) -> int:
        return self.preempted_base + self.max_running

    @property
    def trash(self) -> int:
        return self.finished_base + self.max_running

    @property
    def n_word(self) -> int:
        return self.trash + REQUEST_WORDS


class Tally(NamedTuple):
    """Scalars of a scheduler: queue ends, and totals since the start."""

    step: Any
    n_running: Any
    n_waiting: Any
    wait_head: Any
    wait_tail: Any
    n_finished: Any
    n_rejected: Any
    n_preempted: Any
    query_tokens: Any  # of first admissions
    hit_tokens: Any
    resumed_query_tokens: Any  # of admissions after a preemption, counted apart
    resumed_hit_tokens: Any
    computed_tokens: Any


class State(NamedTuple):
    """A scheduler between two steps."""

    pool: Pool
    words: Int[Array, " word"]
    tally: Tally


class StepBatch(NamedTuple):
    """What one step runs, in order; unused rows are NONE."""

    request: Int[Array, " running"]
    n_token: Int[Array, " running"]
    context_tokens: Int[Array, " running"]  # before the step, found blocks included
    admission: Int[Array, " running"]  # DECODE, NEW or RESUMED
    preempted: Int[Array, " running"]
    finished: Int[Array, " running"]
    n_running: Int[Array, ""]  # when the batch is made up
    n_waiting: Int[Array, ""]
    n_free: Int[Array, ""]
    n_free_after: Int[Array, ""]  # when finished requests have left
    n_evicted: Int[Array, ""]  # since the start


class Events(NamedTuple):
    """What happened to which block in one step; bits are `pool.ALLOCATED` and its neighbours."""

    row: Int[Array, "event 4"]  # request, index in its sequence, block, bits
    n_event: Int[Array, ""]  # may exceed the rows: then some are missing


class _Now(NamedTuple):
    """Scalars of a step in progress."""

    index: Any
    budget: Any
    n_batch: Any
    n_preempted: Any
    n_finished: Any
    n_kept: Any
    is_stopped: Any


def create(bounds: Bounds, config: Config) -> State:
    """A scheduler with nothing to do."""
    words = jnp.zeros(bounds.n_word, jnp.int32).at[bounds.running_base :].set(NONE)
    zero = jnp.int32(0)
    tally = Tally(*[zero] * len(Tally._fields))._replace(wait_head=NONE, wait_tail=NONE)
    tally = Tally(*(jnp.asarray(v, jnp.int32) for v in tally))
    return State(memory.create(bounds.layout, _i32(config.n_block)), words, tally)


def step(bounds: Bounds, requests: Requests, state: State, arrivals, config: Config):
    """One scheduler step, from new arrivals to the responses' tokens.

    Args:
        bounds: static sizes.
        requests: everything that may arrive.
        state: before the step.
        arrivals: [arrival] requests that join the queue now, in order; NONE where there are fewer.
        config: limits and rules.

    Returns:
        (state, `Events`, `StepBatch`).

    Gradient: none; everything is a whole number.
    """
    config = jax.tree.map(lambda v: jnp.asarray(v), config)
    limits = _Limits(bounds, requests, config)
    state = State(
        state.pool._replace(count=state.pool.count._replace(n_event=jnp.int32(0))),
        lax.dynamic_update_slice(
            state.words,
            jnp.full(bounds.trash - bounds.batch_base, NONE, jnp.int32),
            (bounds.batch_base,),
        ),
        state.tally,
    )
    zero = jnp.int32(0)
    now = _Now(zero, limits.max_tokens, *[zero] * 5)
    state, _ = _turns(bounds, state, now, limits.has_arrival(arrivals), limits.arrive(arrivals))
    state, now = _turns(bounds, state, now, limits.has_running, limits.run)
    state, now = _turns(bounds, state, now, limits.may_admit, limits.admit)
    made = state.pool.count.n_free
    n_running, n_waiting = state.tally.n_running, state.tally.n_waiting
    now = now._replace(index=zero)
    state, now = _turns(bounds, state, now, limits.has_update, limits.update)
    tally = state.tally._replace(n_running=now.n_kept, step=state.tally.step + 1)
    state = state._replace(tally=tally)

    width = bounds.max_running
    batch = state.words[bounds.batch_base : bounds.preempted_base].reshape(width, BATCH_WORDS)
    lists = state.words[bounds.preempted_base : bounds.trash].reshape(2, width)
    evicted = state.pool.count.n_evicted
    report = StepBatch(
        *batch.T, *lists, n_running, n_waiting, made, state.pool.count.n_free, evicted
    )
    return state, Events(state.pool.event, state.pool.count.n_event), report


class _Limits:
    """The turns of a step, with the limits that they obey."""

    def __init__(self, bounds: Bounds, requests: Requests, config: Config):
        self.bounds, self.requests, self.layout = bounds, requests, bounds.layout
        self.rule = config.rule
        self.block_tokens = _i32(config.block_tokens)
        self.max_running = jnp.minimum(_i32(config.max_running), bounds.max_running)
        self.max_tokens = _i32(config.max_tokens)
        self.long_prefill = _i32(config.long_prefill_tokens)
        self.watermark = _i32(jnp.floor(config.watermark * config.n_block))
        self.reserves_full = config.reserves_full == 1

    # ---- requests that arrive

    def has_arrival(self, arrivals):
        return lambda tally, now: now.index < arrivals.shape[0]

    def arrive(self, arrivals):
        """One request joins the queue, or is rejected: no pool of this size could ever hold it."""

        def turn(words: _Requests, pool: Pool, tally: Tally, now: _Now):
            request = arrivals[now.index]
            prompt = self.requests.prompt_tokens[request]
            total = prompt + self.requests.output_tokens[request] - 1
            is_one = request >= 0
            fits = self._blocks(jnp.maximum(total, prompt)) <= pool.count.n_block
            joins = is_one & fits
            words.put(request, COMPUTED, 0, prompt, 0, 0, NONE, 0, 0, 0, where=joins)
            words.put(request, OUTCOME, REJECTED, where=is_one & ~fits)
            tally = words.join_back(tally, request, joins)
            tally = tally._replace(n_rejected=tally.n_rejected + (is_one & ~fits))
            return pool, tally, now._replace(index=now.index + 1)

        return turn

    # ---- requests that run

    def has_running(self, tally: Tally, now: _Now):
        has_more = (now.index < tally.n_running) & (now.budget > 0)
        return has_more & (now.is_stopped == 0)

    def run(self, words: "_Requests", pool: Pool, tally: Tally, now: _Now):
        """One running request gets its tokens, or the one admitted last is preempted for it."""
        request = words.running(now.index)
        computed, tokens = words.get(request, COMPUTED), words.get(request, TOKENS)
        held, published = words.get(request, HELD), words.get(request, PUBLISHED)
        n_token = self._share(tokens - computed, tally, now)
        row, key = self._row(request)
        pool, fits, held, published = blocks.extend(
            self.layout, self.rule, pool, request, row, tokens, computed, n_token, held, published,
            key, block_tokens=self.block_tokens,
        )  # fmt: skip
        words.put(request, HELD, held, published, where=fits)
        words.put(request, SCHEDULED, n_token, where=fits)
        words.batch(now, request, n_token, computed, DECODE, where=fits)

        victim = words.running(tally.n_running - 1)
        victim_row = self.requests.row[victim]
        victim_held = jnp.where(fits, 0, words.get(victim, HELD))
        pool = blocks.release(self.layout, self.rule, pool, victim, victim_row, victim_held)
        words.put(victim, COMPUTED, 0, where=~fits)
        words.put(victim, HELD, 0, 0, tally.wait_head, where=~fits)
        words.write(self.bounds.preempted_base + now.n_preempted, victim, where=~fits)

        is_alone = tally.n_waiting == 0
        tally = tally._replace(
            n_running=tally.n_running - ~fits,
            n_preempted=tally.n_preempted + ~fits,
            n_waiting=tally.n_waiting + ~fits,
            wait_head=jnp.where(fits, tally.wait_head, victim),
            wait_tail=jnp.where(~fits & is_alone, victim, tally.wait_tail),
        )
        now = now._replace(
            index=now.index + fits,
            budget=now.budget - jnp.where(fits, n_token, 0),
            n_batch=now.n_batch + fits,
            n_preempted=now.n_preempted + ~fits,
            is_stopped=(~fits & (victim == request)).astype(jnp.int32),
        )
        return pool, tally, now

    # ---- requests that wait

    def may_admit(self, tally: Tally, now: _Now):
        has_room = (now.budget > 0) & (tally.n_running < self.max_running)
        is_open = (now.n_preempted == 0) & (now.is_stopped == 0)
        return is_open & has_room & (tally.n_waiting > 0)

    def admit(self, words: "_Requests", pool: Pool, tally: Tally, now: _Now):
        """The first waiting request is admitted, or ends the step's admissions."""
        request = tally.wait_head
        tokens = words.get(request, TOKENS)
        row, key = self._row(request)
        pool, got = blocks.admit(
            self.layout, self.rule, pool, request, row, tokens,
            lambda lacks: self._share(lacks, tally, now), key,
            block_tokens=self.block_tokens,
            spare=jnp.where(tally.n_running > 0, self.watermark, 0),
            needs_whole=self.reserves_full,
        )  # fmt: skip
        fits, context, n_token = got.fits, got.context_tokens, got.n_token
        admission = jnp.where(words.get(request, OUTCOME) == ADMITTED, RESUMED, NEW)
        next_ = words.get(request, NEXT_WAITING)
        words.put(request, COMPUTED, context, where=fits)
        words.put(request, HELD, got.held, got.published, NONE, n_token, where=fits)
        words.put(request, OUTCOME, ADMITTED, where=fits)
        words.write(self.bounds.running_base + tally.n_running, request, where=fits)
        words.batch(now, request, n_token, context, admission, where=fits)

        first, again = fits & (admission == NEW), fits & (admission == RESUMED)
        tally = tally._replace(
            n_running=tally.n_running + fits,
            n_waiting=tally.n_waiting - fits,
            wait_head=jnp.where(fits, next_, tally.wait_head),
            wait_tail=jnp.where(fits & (next_ < 0), NONE, tally.wait_tail),
            query_tokens=tally.query_tokens + jnp.where(first, tokens, 0),
            hit_tokens=tally.hit_tokens + jnp.where(first, context, 0),
            resumed_query_tokens=tally.resumed_query_tokens + jnp.where(again, tokens, 0),
            resumed_hit_tokens=tally.resumed_hit_tokens + jnp.where(again, context, 0),
        )
        now = now._replace(
            budget=now.budget - jnp.where(fits, n_token, 0),
            n_batch=now.n_batch + fits,
            is_stopped=(~fits).astype(jnp.int32),
        )
        return pool, tally, now

    # ---- the step has run

    def has_update(self, tally: Tally, now: _Now):
        return now.index < tally.n_running

    def update(self, words: "_Requests", pool: Pool, tally: Tally, now: _Now):
        """One request's tokens are computed; where they were its last known ones, it gets one more.

        The last token that a request asks for ends it: its keys and values are never computed.
        """
        request = words.running(now.index)
        n_token = words.get(request, SCHEDULED)
        computed = words.get(request, COMPUTED) + n_token
        tokens = words.get(request, TOKENS)
        prompt = self.requests.prompt_tokens[request]
        samples = (n_token > 0) & (computed == tokens)
        tokens = tokens + samples
        ends = samples & (tokens - prompt >= self.requests.output_tokens[request])
        held = jnp.where(ends, words.get(request, HELD), 0)
        pool = blocks.release(
            self.layout, self.rule, pool, request, self.requests.row[request], held
        )
        words.put(request, COMPUTED, computed, tokens)
        words.put(request, SCHEDULED, 0)
        is_first = samples & (words.get(request, STARTED) == 0)
        words.put(request, STARTED, tally.step + 1, where=is_first)
        words.put(request, OUTCOME, tally.step + 1, where=ends)
        words.write(self.bounds.finished_base + now.n_finished, request, where=ends)
        words.write(self.bounds.running_base + now.n_kept, request, where=~ends)
        tally = tally._replace(
            n_finished=tally.n_finished + ends,
            computed_tokens=tally.computed_tokens + n_token,
        )
        now = now._replace(
            index=now.index + 1, n_finished=now.n_finished + ends, n_kept=now.n_kept + ~ends
        )
        return pool, tally, now

    # ---- shared

    def _blocks(self, tokens):
        return (tokens + self.block_tokens - 1) // self.block_tokens

    def _share(self, n_token, tally: Tally, now: _Now):
        """Tokens that a request gets of the `n_token` that it lacks."""
        is_alone = tally.n_running + tally.n_waiting <= 1
        is_long = (self.long_prefill > 0) & (n_token > self.long_prefill) & ~is_alone
        n_token = jnp.where(is_long, self.long_prefill, n_token)
        return jnp.minimum(n_token, now.budget)

    def _row(self, request):
        row = self.requests.row[request]
        return row, lambda index: self.requests.key[row + index]


class _Requests(Words):
    """A turn's view of the words of requests."""

    def __init__(self, bounds: Bounds, words):
        super().__init__(words, bounds.trash)
        self.bounds = bounds

    def get(self, request, field: int):
        return self.word(REQUEST_WORDS * request + field)

    def put(self, request, field: int, *values, where=True) -> None:
        self.write(REQUEST_WORDS * request + field, *values, where=where)

    def running(self, index):
        return self.word(self.bounds.running_base + index)

    def batch(self, now: _Now, *values, where) -> None:
        self.write(self.bounds.batch_base + BATCH_WORDS * now.n_batch, *values, where=where)

    def join_back(self, tally: Tally, request, where) -> Tally:
        """`request` waits behind all others."""
        self.put(tally.wait_tail, NEXT_WAITING, request, where=where & (tally.n_waiting > 0))
        is_first = where & (tally.n_waiting == 0)
        return tally._replace(
            n_waiting=tally.n_waiting + where,
            wait_head=jnp.where(is_first, request, tally.wait_head),
            wait_tail=jnp.where(where, request, tally.wait_tail),
        )


def _turns(bounds: Bounds, state: State, now: _Now, goes_on, turn):
    """Turns while `goes_on(tally, now)`; writes to `words` wait for the next turn."""

    def once(words, pool, tally, now):
        view = _Requests(bounds, words)
        pool, tally, now = turn(view, pool, tally, now)
        tally, now = (type(t)(*(_i32(v) for v in t)) for t in (tally, now))
        return view.pending, pool, tally, now

    shapes = jax.eval_shape(once, state.words, state.pool, state.tally, now)[0]
    pending = [(jnp.int32(bounds.trash), jnp.zeros(v.shape, jnp.int32)) for _, v in shapes]

    def body(carry):
        words, pending, pool, tally, now = carry
        words = memory.commit(words, pending)
        return words, *once(words, pool, tally, now)

    carry = (state.words, pending, state.pool, state.tally, now)
    carry = lax.while_loop(lambda c: goes_on(c[3], c[4]), body, carry)
    words, pending, pool, tally, now = carry
    return State(pool, memory.commit(words, pending), tally), now


def _i32(value):
    return jnp.asarray(value, jnp.int32)
