"""Exact time of streams that every channel executes in order: one step an instruction.

The channel's commands of an instruction (TMOD, precharge, activate, then a run of equal final
commands) are placed at once, and the decoder's next tick follows from when the queue had room and
when results came back. A refresh may interrupt an instruction anywhere; then what is left of it
is placed again. Ordinary reads and writes are scheduled out of order: `jaxmem.pim.queued`.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmem.pim import channel as ch
from jaxmem.pim.channel import CLOSED, DATA, MODE, NEVER, REFRESH, ROW, Channel, Rules
from jaxmem.pim.constraints import ABSENT, CODE, Table

PREA, ACT16, TMOD, REF = (CODE[x] for x in ("PREA", "ACT16", "TMOD", "REFab"))


class Program(NamedTuple):
    """A stream as the engine takes it: [n] each, padded; `n` instructions count."""

    n: Any  # ()
    command: Any  # final DRAM command
    kind: Any  # [n, 7] bool: KIND, in order
    bank: Any
    row: Any
    n_burst: Any
    part: Any  # [n, class] which classes execute it
    size: Any  # [class] channels of each class
    source: Any  # [n, class] instruction whose request must have left before the next decode
    burst: Any  # [n, class] that request's place in its run


KIND = ("all_bank", "one_bank", "register", "blocking", "pseudo", "host", "ordinary")


class Instruction(NamedTuple):
    """One instruction of a `Program`."""

    command: Any
    all_bank: Any
    one_bank: Any
    register: Any
    blocking: Any
    pseudo: Any
    bank: Any
    row: Any
    spacing: Any


class State(NamedTuple):
    """Between two instructions."""

    channel: Channel
    decode: Any  # () tick at which the next instruction is decoded
    refresh: Any  # [class] tick of the next refresh
    left: Any  # [class] bursts of the instruction not yet issued
    leave: Any  # [class, depth + 1] ticks at which the last requests left the queue
    end: Any  # () tick of the last callback that the decoder waited for


def run(
    p: Program,
    t: Table,
    rules: Rules,
    *,
    n_bank: int,
    n_queue: int,
    window: int,
    has_refresh: bool,
) -> State:
    """The state after the whole program.

    Args:
        p: a program without ordinary reads and writes that ends in EOC.
        t: distances between commands.
        rules: switches; `refreshes` is obeyed where `has_refresh`.
        n_bank: banks of a channel.
        n_queue: requests that a channel's queue holds.
        window: instructions back to which `p.source` may point (0: no queue can fill).
        has_refresh: whether refresh is modelled at all.

    Gradient: exact, forward mode.
    """
    dtype = t.channel.dtype
    n_class = p.part.shape[1]
    stagger = 3 * jnp.maximum(t.group[CODE["ACT"], CODE["ACT"]], t.n_faw) * rules.activates_by_four
    stagger = jnp.asarray(stagger, dtype)
    refresh = jnp.where(rules.refreshes > 0, t.n_refi, NEVER).astype(dtype)
    depth = n_queue + 1 if has_refresh else window
    state = State(
        channel=ch.start(n_class, n_bank, t),
        decode=jnp.ones((), dtype),
        refresh=jnp.broadcast_to(refresh, (n_class,)),
        left=jnp.zeros(n_class, jnp.int32),
        leave=jnp.full((n_class, depth), ABSENT, dtype),
        end=jnp.zeros((), dtype),
    )

    def step(i, s: State) -> State:
        part = p.part[i]
        kind = dict(zip(KIND, p.kind[i], strict=True))
        command = p.command[i]
        ins = Instruction(
            command=command,
            bank=p.bank[i],
            row=p.row[i],
            spacing=t.spacing[command],
            **{k: kind[k] for k in Instruction._fields if k in kind},
        )
        s = s._replace(left=jnp.where(part, p.n_burst[i], 0))
        if has_refresh:
            s = jax.lax.while_loop(
                lambda s: (s.left > 0).any(),
                lambda s: _refresh(_advance(s, ins, t, rules, stagger, n_queue), t, s.left),
                s,
            )
            full = jnp.where(part, s.leave[:, 0], ABSENT)
        else:
            s = _advance(s, ins, t, rules, stagger, 0)
            full, s = _history(s, p, i, t, window)
        c = s.channel
        back = jnp.where(part & ins.blocking, c.callback, ABSENT)
        decode = jnp.maximum(s.decode + 1, jnp.maximum(full.max() + 2, back.max() + 1))
        return s._replace(decode=decode, end=jnp.maximum(s.end, back.max()))

    state = jax.lax.fori_loop(0, p.n, step, state)
    return _trailing_refresh(state, t) if has_refresh else state


def _advance(s: State, ins: Instruction, t: Table, rules: Rules, stagger: Any, n_queue: int):
    """Issue what an instruction has left, up to the next refresh of each class."""
    c = s.channel
    active = s.left > 0
    limit = s.refresh
    arrived = jnp.broadcast_to(s.decode, c.last.shape)
    if c.open_row.shape[1] == 1:
        here = c.open_row[:, 0]
        is_open, is_other = here == ins.row, (here != CLOSED) & (here != ins.row)
        is_row = ins.all_bank
    else:
        here = c.open_row[:, jnp.maximum(ins.bank, 0)]
        match = c.open_row == ins.row
        partial = match.any(1) & (rules.activates_open_banks == 0)
        other_all = ((c.open_row != CLOSED) & ~match).any(1) | partial
        is_open = jnp.where(ins.all_bank, match.all(1), here == ins.row)
        is_other = jnp.where(ins.all_bank, other_all, (here != CLOSED) & (here != ins.row))
        is_row = ins.all_bank | ins.one_bank
    closes = jnp.where(ins.all_bank, PREA, CODE["PRE"])
    opens = jnp.where(ins.all_bank, ACT16, CODE["ACT"])
    needs_open = is_row & ~is_open
    needs_close = needs_open & is_other

    # What this instruction issues; its constraints enter the table once, at the end.
    issued: tuple[Any, ...] = ()

    def ready(c, command):
        at = ch.allowed(c, t, command, ins.bank, issued)
        return jnp.maximum(jnp.maximum(c.last + 1, arrived), jnp.where(ins.pseudo, ABSENT, at))

    def waits(c, otherwise):
        return jnp.where(c.after == DATA, otherwise, c.after)

    first = jnp.where(
        needs_close,
        ready(c, closes),
        jnp.where(needs_open, ready(c, opens), ready(c, ins.command)),
    )
    one = jnp.ones_like(s.left)
    switch = active & (c.is_register != ins.register) & ~ins.pseudo
    go = active & (first < limit)
    on = switch & go
    c = ch.account(c, on, first, arrived, waits(c, jnp.where(needs_open, ROW, DATA)), MODE)
    c = ch.mark(c, TMOD, -1, 0, on, first, first, one)
    issued = (*issued, (TMOD, jnp.where(on, first, ABSENT)))
    c = c._replace(is_register=jnp.where(on, ins.register, c.is_register))
    for needs, command, extra in ((needs_close, closes, 0), (needs_open, opens, stagger)):
        at = ready(c, command)
        go &= ~needs | (at < limit)
        on = go & needs
        done = at + jnp.where(command == ACT16, extra, 0)
        c = ch.account(c, on, at, arrived, waits(c, ROW), ROW)
        c = ch.mark(c, command, ins.bank, ins.row, on, at, done, one)
        issued = (*issued, (command, jnp.where(on, done, ABSENT)))
    at = ready(c, ins.command)
    go &= at < limit
    fits = (limit - at + ins.spacing - 1) // ins.spacing
    n = jnp.where(go, jnp.minimum(s.left, jnp.maximum(fits, 1).astype(jnp.int32)), 0)
    last = at + (n - 1) * ins.spacing
    c = ch.account(c, go, at, arrived, waits(c, DATA), DATA)
    c = c._replace(cause=c.cause.at[:, DATA].add(jnp.where(go, last - at, 0)))
    is_command = go & ~ins.pseudo
    c = ch.mark(c, ins.command, ins.bank, ins.row, is_command, at, last, n)
    issued = (*issued, (ins.command, jnp.where(is_command, last, ABSENT)))
    c = ch.constrain(c, t, ins.bank, issued)
    done = last + t.latency[ins.command]
    is_reader = ins.blocking & ~ins.pseudo
    back = jnp.where(ins.pseudo, jnp.maximum(at, c.posted) + 1, done)
    called = go & ins.blocking
    c = c._replace(
        last=jnp.where(go, last, c.last),
        callback=jnp.where(called, jnp.maximum(c.callback + 1, back), c.callback),
        posted=jnp.where(is_command & ~is_reader, jnp.maximum(c.posted, done), c.posted),
    )
    leave = _pushed(s.leave, n, at, ins.spacing) if n_queue else s.leave
    return s._replace(channel=c, left=s.left - n, leave=leave)


def _pushed(leave: Any, n: Any, at: Any, spacing: Any):
    """The ticks of the last requests, after `n` more that left `spacing` apart from `at`."""
    depth = leave.shape[1]
    place = jnp.arange(depth)[None] + n[:, None]
    old = jnp.take_along_axis(leave, jnp.minimum(place, depth - 1), 1)
    return jnp.where(place < depth, old, at[:, None] + (place - depth) * spacing)


def _history(s: State, p: Program, i: Any, t: Table, window: int):
    """[class] ticks at which the queue had room again; the starts of the last runs are kept."""
    first = s.channel.last - (p.n_burst[i] - 1) * t.spacing[p.command[i]]
    if not window:
        return jnp.full(first.shape, ABSENT, first.dtype), s
    source, burst = p.source[i], p.burst[i]
    place = jnp.maximum(source, 0) % window
    then = jnp.take_along_axis(s.leave, place[:, None], 1)[:, 0]
    then = jnp.where(source == i, first, then)
    full = then + burst * t.spacing[p.command[jnp.maximum(source, 0)]]
    leave = jax.lax.dynamic_update_index_in_dim(s.leave, first, i % window, 1)
    return jnp.where(source >= 0, full, ABSENT), s._replace(leave=leave)


def _refresh(s: State, t: Table, was_left: Any) -> State:
    """Refresh the classes that could not go on before their next refresh was due."""
    on = (was_left > 0) & (s.left > 0)
    return s._replace(
        channel=_refresh_channel(s.channel, t, on, s.refresh, None),
        refresh=jnp.where(on, s.refresh + t.n_refi, s.refresh),
    )


def _refresh_channel(c: Channel, t: Table, on: Any, due: Any, end: Any) -> Channel:
    """TMOD where in register mode, PREA where a row is open, REFab; only up to `end`."""
    one = jnp.ones(on.shape, jnp.int32)
    wait = jnp.full(on.shape, REFRESH)
    is_open = (c.open_row != CLOSED).any(1)
    base = ch.first_code(c)

    def put(c, command, on, at):
        on = on & (at <= end) if end is not None else on
        c = ch.account(c, on, at, due, wait, REFRESH)
        return ch.issue(c, t, command, -1, CLOSED, on, at, at, one)

    first = jnp.where(is_open, c.earliest[:, PREA - base], c.earliest[:, REF - base])
    first = jnp.maximum(jnp.maximum(first, c.last + 1), due)
    c = put(c, TMOD, on & c.is_register, first)
    c = c._replace(is_register=c.is_register & ~on)
    at = jnp.maximum(jnp.maximum(c.earliest[:, PREA - base], c.last + 1), due)
    c = put(c, PREA, on & is_open, at)
    at = jnp.maximum(jnp.maximum(c.earliest[:, REF - base], c.last + 1), due)
    return put(c, REF, on, at)


def _trailing_refresh(s: State, t: Table) -> State:
    """Refreshes that fell due while channels waited for the end."""

    def body(s: State) -> State:
        on = s.refresh <= s.end
        c = _refresh_channel(s.channel, t, on, s.refresh, s.end)
        return s._replace(channel=c, refresh=jnp.where(on, s.refresh + t.n_refi, s.refresh))

    return jax.lax.while_loop(lambda s: (s.refresh <= s.end).any(), body, s)
