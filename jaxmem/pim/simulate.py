"""Serving on PIM, step by step: real placements, and the time and energy of their loads.

A batch from a live pool of conversations (`serving.live`) runs on the allocator (`pool`); every
step's placement becomes loads (`loads`), and these seconds and joules (`timing`, `energy`). The
host computes projections, FFN and prompts (`xpu.step`). What a prompt costs because the runtime
lost cached blocks is the difference of two prompts, with and without them (PATTON 5.3). Traced, so
that designs, policies and traffics map (`jax.lax.map`: the allocator works in place).

Channels work apart, each through its own commands: a part of a step takes as long as its fullest
channel. Parts follow one another; `overlap` of host and PIM is the policy's. One kind of layer with
a KV cache is followed, as in the allocator.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxmem.core import relax
from jaxmem.core.metrics import LIMITS
from jaxmem.llm import Parallel
from jaxmem.pim import address, energy, granule, loads, occupancy, pool, timing
from jaxmem.pim.commands import has_single_banks
from jaxmem.pim.design import PimMetrics
from jaxmem.pim.isa import Load
from jaxmem.pim.placement import Placement
from jaxmem.pim.policy import V_WRITE, WRITE_ISSUE
from jaxmem.serving import live
from jaxmem.serving.live import Talks
from jaxmem.xpu import hbm, step

PARTS = ("k_write", "v_write", "commit", "qk", "sv", "prefill_write")
SAMPLE_STEPS = 16
"""Steps between looks at what takes time to count: runs, and where capacity goes."""
RUN_BINS = 9
"""Runs of up to 1, 2, 4, ... blocks, the last bin being open."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bounds:
    """What the arrays of a simulation hold; static.

    Attributes:
        pool: of the allocator.
        n_running: turns that run at once.
        n_place: conversations alive.
        n_step: steps.
        n_warm: of these, the first ones, which metrics leave out.
        max_local: a bound on the channels of a KV head, or of all where a request lives in one.
    """

    pool: pool.Bounds
    n_running: int
    n_place: int
    n_step: int
    n_warm: int = 0
    max_local: int = 32


class Waste(NamedTuple):
    """Where the blocks of a memory are, as shares of all row sets without a Commit Zone."""

    used: Any  # hold a block
    tail: Any  # of granules that a request fills, not yet given
    hole: Any  # of granules, left by evicted or released blocks
    free: Any  # in granules that nobody owns
    zone: Any  # row sets that the Commit Zone takes, and what granules do not divide


class History(NamedTuple):
    """A simulation, step by step: [step] each."""

    n_request: Any  # that found room, new ones included
    n_new: Any  # whose prompt was computed
    n_failed: Any  # that found no room
    n_token: Any  # written
    prompt_tokens: Any
    hit_tokens: Any
    prefix_tokens: Any  # that a memory without limit would have hit
    context_tokens: Any  # attended to in decode, all requests
    second: Any  # {part: seconds}
    joule: Any  # {part: joules}
    row_activations: Any
    balance: Any  # mean load of a channel to the fullest, in QK and SV
    n_run: Any  # [step, bin] Value runs by length; every SAMPLE_STEPS, else 0
    run_blocks: Any  # blocks in them
    waste: Waste  # the same; NaN between


def bounds(
    design: Any, *, n_running: int, n_place: int = 0, n_step: int, n_warm: int = 0,
    max_context_tokens: int = 2048,
) -> Bounds:  # fmt: skip
    """Bounds that a concrete design fits; ids for four times the blocks that fit.

    Args:
        design: a `pim.Design`.
        n_running: turns at once.
        n_place: conversations alive; by default twice as many.
        n_step: steps to simulate.
        n_warm: steps that metrics leave out.
        max_context_tokens: longest context; the policy's cap where that is less.
    """
    m = address.concrete(design)
    held = -(-max_context_tokens // int(m.block_tokens))
    of_pool = pool.bounds(design, max_request=n_running, max_held=held)
    n_id = 4 * (of_pool.max_place + n_running) + held
    return Bounds(
        pool=dataclasses.replace(of_pool, max_block=n_id),
        n_running=n_running,
        n_place=n_place or 2 * n_running,
        n_step=n_step,
        n_warm=n_warm,
        max_local=max(int(m.ch_per_head), int(m.n_home)),
    )


def simulate(design: Any, requests: Talks, bounds: Bounds) -> tuple[PimMetrics, History]:
    """A serving run of a design.

    Args:
        design: a `pim.Design`, traced or concrete; its policy's fields included.
        requests: conversations, of `serving.live.talks`.
        bounds: of `bounds`, static.

    Returns:
        (`PimMetrics` of the mean step after `n_warm`, `History`). `parts` are those of `evaluate`,
        and prefill: what the host spends on prompts, `recompute` being what lost blocks add.
        Infeasible with reason `capacity` where no request ever found room.

    Gradient: none; placements are whole numbers.
    Source: PATTON 5.1 to 5.3; research/patton.md sections 2 to 5.

    Example:
        >>> import jaxmem as jm
        >>> from jaxmem.serving import draw, live
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> talks = live.talks(draw("sharegpt", n_conversation=20, conversations_per_s=1.0))
        >>> b = bounds(d, n_running=4, n_step=40, max_context_tokens=512)
        >>> m, history = jax.jit(simulate, static_argnames="bounds")(d, talks, bounds=b)
        >>> float(m.batch)
        4.0
    """
    history = drive(design, requests, bounds, functools.partial(_look, design, bounds))
    return _metrics(design, bounds, history), history


class Step(NamedTuple):
    """What a step has done, for `drive` to look at."""

    state: pool.Pool
    all: Placement
    decode: Placement  # of the requests that decode
    prompt: Placement  # of those whose prompt is computed
    ask: live.Ask
    is_new: Any  # [running] admitted, and found room
    ok: Any  # [running] found room
    is_sample: Any


def drive(design: Any, requests: Talks, bounds: Bounds, look: Callable[[Step], Any]) -> Any:
    """A run, as what `look` sees of every step: [step] each of its leaves."""
    m = address.map_of(design)
    cap = jnp.minimum(design.policy.max_context_tokens, bounds.pool.max_held * m.block_tokens)
    given = {
        "block_tokens": m.block_tokens,
        "cap_tokens": jnp.asarray(cap, jnp.int32),
        "max_block": bounds.pool.max_block,
    }
    max_held = bounds.pool.max_held
    who = live.start(
        requests, n_running=bounds.n_running, n_place=bounds.n_place, max_held=max_held
    )

    def once(carry: Any, number: Any) -> Any:
        who, state = carry
        who, over, fails = live.turn_over(who, requests, given["cap_tokens"])
        held = who.table[jnp.maximum(who.talk, 0)]
        state, is_cached = pool.is_cached(bounds.pool, state, held, design, who.is_new.any())
        caches = design.policy.has_prefix_cache
        ask = live.ask(who, requests, over, fails, is_cached, caches=caches, **given)
        leave = jnp.where(over, pool.FINISHES, jnp.where(fails, pool.TERMINATES, pool.STAYS))
        k = jnp.arange(max_held)[None]
        events = pool.Events(
            leave=leave,
            share=jnp.where(k < ask.n_hit[:, None], ask.table, pool.NONE),
            block=ask.block,
            n_token=ask.n_token,
        )
        state, placement, ok = pool.step(bounds.pool, state, events, design)
        is_new = who.is_new & ok
        who = live.settle(who, requests, ask, ok, **given)
        seen = Step(
            state, placement, _of(placement, ok & ~is_new), _of(placement, is_new), ask, is_new,
            ok, number % SAMPLE_STEPS == 0,
        )  # fmt: skip
        return (who, state), look(seen)

    carry = (who, pool.create(bounds.pool))
    return lax.scan(once, carry, jnp.arange(bounds.n_step))[1]


# A step ------------------------------------------------------------------------------------------


def _look(design: Any, bounds: Bounds, seen: Step) -> History:
    """What a step did and took."""
    state, _, decode, prompt, ask, is_new, ok, is_sample = seen
    m, decodes = address.map_of(design), ok & ~is_new
    part = {
        name: _load(design, bounds, decode, name)
        for name in ("k_write", "v_write", "commit", "qk", "sv")
    }
    # Prompts are rare and their writes dear to count.
    part["prefill_write"] = lax.cond(
        is_new.any(),
        lambda: _load(design, bounds, prompt, "prefill"),
        lambda: jax.tree.map(jnp.zeros_like, part["qk"]),
    )
    cycle, joule = _cycles(design, part), _joules(design, part)
    _, n_layer = granule.layers(design)
    in_pim = jnp.where(design.policy.v_write == V_WRITE["host"], 0.0, 1.0)
    second = {k: in_pim * n_layer * design.device.clock_s * v.max() for k, v in cycle.items()}
    joule = {k: in_pim * n_layer * v.sum() for k, v in joule.items()}

    n_decode, n_new = decodes.sum(), is_new.sum()
    context = decode.n_token.sum()
    second |= _host(design, n_decode, context)
    mandatory = jnp.where(is_new, ask.total_tokens - ask.n_prefix * m.block_tokens, 0).sum()
    written = jnp.where(is_new, ask.n_token, 0).sum()
    cached = jnp.where(is_new, ask.n_prefix * m.block_tokens, 0).sum()
    hit = jnp.where(is_new, ask.n_hit * m.block_tokens, 0).sum()
    second |= _prompts(design, n_new, mandatory, written, cached, hit)
    pim_s, host_s = sum(second[name] for name in PARTS), second["host"]
    second["overlap"] = -design.policy.overlap * jnp.minimum(host_s, pim_s)
    total_s = sum(second.values())
    host = design.device.host
    core_w = host.tdp_w - host.hbm_bytes_per_s * host.hbm_j_per_byte
    joule |= {
        "standby": in_pim * energy.standby_j(design.device, pim_s, total_s - pim_s),
        **{name: core_w * second[name] for name in ("host", "prefill", "recompute")},
    }
    attention = cycle["qk"] + cycle["sv"]
    n_run, run_blocks, waste = lax.cond(
        is_sample,
        lambda: (*_runs(design, m, decode), _waste(bounds, state, m, design)),
        lambda: (jnp.zeros(RUN_BINS), 0.0, Waste(*[jnp.nan] * 5)),
    )
    opened = part["qk"].n_miss + part["sv"].n_miss + part["sv"].n_extra_row
    opened += part["k_write"].n_write_row + part["v_write"].n_bank_row
    opened += part["commit"].n_bank_row + part["prefill_write"].n_bank_row
    return History(
        n_request=ok.sum(),
        n_new=n_new,
        n_failed=(~ok).sum(),
        n_token=jnp.where(ok, ask.n_token, 0).sum(),
        prompt_tokens=jnp.where(is_new, ask.total_tokens, 0).sum(),
        hit_tokens=hit,
        prefix_tokens=cached,
        context_tokens=context,
        second=second,
        joule=joule,
        row_activations=in_pim * n_layer * opened.sum(),
        balance=relax.divide(attention.sum() / _n_used(design), attention.max(), jnp.nan),
        n_run=n_run,
        run_blocks=run_blocks,
        waste=waste,
    )


def _of(placement: Placement, chosen: Any) -> Placement:
    """The placement of some requests alone."""
    none = -jnp.ones((), jnp.int32)
    return dataclasses.replace(
        placement,
        n_token=jnp.where(chosen, placement.n_token, 0),
        n_write=jnp.where(chosen, placement.n_write, 0),
        zone_row=jnp.where(chosen, placement.zone_row, none),
        commit_row=jnp.where(chosen, placement.commit_row, none),
    )


def _load(design: Any, bounds: Bounds, placement: Placement, name: str) -> Load:
    return loads.load(design, placement, name, max_local=bounds.max_local)


def _n_used(design: Any) -> Any:
    """Channels that hold KV cache."""
    m = address.map_of(design)
    used = m.ch_per_head * jnp.minimum(m.n_group, m.n_kv)
    return jnp.where(m.n_home > 1, m.n_home, used)


def _cycles(design: Any, part: dict[str, Load]) -> dict[str, Any]:
    """[channel] cycles of each part of one layer."""
    device, issue = design.device, design.policy.write_issue
    # Instructions of one decoder, where every channel's data is an instruction of its own.
    is_own = issue == WRITE_ISSUE["channel_all_bank"]
    tick = jnp.where(issue == WRITE_ISSUE["mixed_decoder_gpr"], 2.0, 1.0)
    tick = jnp.where(is_own, 0.0, tick)
    written = part["v_write"]
    copied = part["commit"]
    moved = device.n_bank * copied.n_copy + copied.n_write
    commit = relax.where(copied.n_copy > 0, timing.copy_cycles(copied, device), 0.0)
    return {
        "k_write": timing.write_cycles(part["k_write"], device),
        "v_write": jnp.maximum(timing.write_cycles(written, device), tick * written.n_write.sum()),
        "commit": jnp.maximum(commit, jnp.where(is_own, 0.0, moved.sum())),
        "qk": timing.mac_cycles(part["qk"], device),
        "sv": timing.mac_cycles(part["sv"], device),
        "prefill_write": timing.write_cycles(part["prefill_write"], device),
    }


def _joules(design: Any, part: dict[str, Load]) -> dict[str, Any]:
    """[channel] joules of each part of one layer."""
    device, policy = design.device, design.policy
    has_zone = policy.v_write == V_WRITE["commit_zone"]
    single = has_single_banks(policy.write_issue, has_zone) | (policy.v_write == V_WRITE["burst"])
    written = part["v_write"]
    return {
        "k_write": energy.bank_write_j(part["k_write"], device),
        "v_write": jnp.where(
            single,
            energy.bank_write_j(written, device),
            energy.all_bank_write_j(written, device),
        ),
        "commit": energy.copy_j(part["commit"], device),
        "qk": energy.mac_j(part["qk"], device),
        "sv": energy.mac_j(part["sv"], device),
        "prefill_write": energy.bank_write_j(part["prefill_write"], device),
    }


def _host(design: Any, n_request: Any, context: Any) -> dict[str, Any]:
    """Seconds of the host's share of a decode step."""
    is_host = design.policy.v_write == V_WRITE["host"]
    batch = n_request.astype(float)
    mean = jnp.where(is_host, relax.divide(context.astype(float), batch, 0.0), 0.0)
    return {"host": jnp.where(n_request > 0, _step_s(design, batch, mean, batch), 0.0)}


def _prompts(design: Any, n_new: Any, mandatory: Any, written: Any, cached: Any, hit: Any):
    """Seconds of the host's prompts: what any cache would leave, and what lost blocks add."""

    def both() -> Any:
        n, first = n_new.astype(float), mandatory.astype(float)
        least = _step_s(design, first, cached / n, n)
        return least, _step_s(design, written.astype(float), hit / n, n) - least

    nothing = (jnp.zeros(()), jnp.zeros(()))
    least, more = lax.cond(n_new > 0, both, lambda: nothing)
    return {"prefill": least, "recompute": more}


def _step_s(design: Any, n_token: Any, context: Any, n_request: Any) -> Any:
    host = design.device.host
    alone = Parallel(tp=1.0, dp=1.0, ep=1.0, spreads_weights=0)
    time = step(design.llm, host, alone, n_token, context, n_request=n_request, memory=hbm(host))
    return jnp.asarray(sum(time.parts.values()), float)


def _runs(design: Any, m: Any, placement: Placement) -> tuple[Any, Any]:
    """Value runs by length, and blocks in them: a request's blocks side by side in a row set."""
    n_full = placement.n_token // m.block_tokens
    k = jnp.arange(placement.index.shape[1])[None]
    is_block = k < n_full[:, None]
    place = placement.row_set * (m.set_blocks + 1) + placement.index
    place = jnp.sort(jnp.where(is_block, place, 2**30), axis=1)
    follows = (place[:, 1:] == place[:, :-1] + 1) & (place[:, 1:] < 2**30)
    begins = (place < 2**30) & ~jnp.pad(follows, ((0, 0), (1, 0)))
    number = jnp.cumsum(begins, axis=1) - 1
    width = place.shape[1]
    at = jnp.where(place < 2**30, number + jnp.arange(len(place))[:, None] * width, place.size)
    length = jnp.zeros(place.size, jnp.int32).at[at.ravel()].add(1, mode="drop")
    edge = 2 ** jnp.arange(RUN_BINS - 1)
    which = jnp.searchsorted(edge, jnp.maximum(length, 1))
    n_run = jnp.zeros(RUN_BINS).at[jnp.where(length > 0, which, RUN_BINS)].add(1.0, mode="drop")
    return n_run, is_block.sum().astype(float)


def _waste(bounds: Bounds, state: pool.Pool, m: Any, design: Any) -> Waste:
    """Where the blocks of the memory are."""
    b = bounds.pool
    s = pool.sizes(design)
    words = state.memory[b.granule : b.table].reshape(-1, 4)
    owner, used, resident = (words[:, i] for i in (pool.OWNER, pool.USED, pool.RESIDENT))
    is_open, is_owned = owner >= 0, owner != pool.NONE
    # Without any zone row, and with all blocks of a set in use.
    total = address.n_set(m, 0) * m.set_blocks / 1.0
    n_held = resident.sum()
    tail = jnp.where(is_open, s.own - used, 0).sum()
    hole = jnp.where(is_owned, jnp.where(is_open, used, s.own) - resident, 0).sum()
    free = pool.n_usable(s, state.n_zone) * s.own - jnp.where(is_owned, s.own, 0).sum()
    zone = total - n_held - tail - hole - free
    return Waste(*(x / total for x in (n_held, tail, hole, free, zone)))


# A run -------------------------------------------------------------------------------------------


def _metrics(design: Any, bounds: Bounds, history: History) -> PimMetrics:
    """The mean step after the warm-up."""
    counts = jnp.arange(bounds.n_step) >= bounds.n_warm
    n = counts.sum()

    def mean(x: Any) -> Any:
        return jnp.where(counts, x, 0).sum() / n

    parts = jax.tree.map(mean, history.second)
    joule = jax.tree.map(mean, history.joule)
    latency_s, energy_j, batch = sum(parts.values()), sum(joule.values()), mean(history.n_request)
    runs = batch > 0
    shape, n_layer = granule.layers(design)
    n_run = jnp.where(counts[:, None], history.n_run, 0).sum()
    prompt = mean(history.prompt_tokens)
    return PimMetrics(
        latency_s=latency_s,
        tokens_per_s=relax.divide(batch, latency_s, jnp.nan),
        tokens_per_s_per_gpu=relax.divide(batch, latency_s, jnp.nan),
        energy_j=energy_j,
        tokens_per_j=relax.divide(batch, energy_j, jnp.nan),
        batch=batch,
        capacity_tokens=occupancy.capacity_tokens(design, shape, n_layer, batch),
        feasible=runs,
        limit=jnp.where(runs, LIMITS["none"], LIMITS["capacity"]),
        parts=parts,
        energy_parts=joule,
        row_activations=mean(history.row_activations),
        hit_rate=relax.divide(mean(history.hit_tokens), prompt, jnp.nan),
        run_blocks=relax.divide(jnp.where(counts, history.run_blocks, 0).sum(), n_run, jnp.nan),
    )
