"""Exact time of streams with ordinary reads and writes: one step an event.

The decoder fills each channel's queues; a channel serves what has its row open already, then its
refresh, then the head of its AiM queue or the oldest ready of its reads or writes. Time jumps from
event to event; all classes of channels move together. What every channel executes in order takes
the faster path of `jaxmem.pim.inorder`. Rules: research/aim.md section 2.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmem.pim import channel as ch
from jaxmem.pim.channel import (
    CLOSED,
    DATA,
    MODE,
    N_BANK_COMMAND,
    NEVER,
    REFRESH,
    ROW,
    Channel,
    Rules,
)
from jaxmem.pim.constraints import CODE, Table
from jaxmem.pim.inorder import KIND, Program

ACT, PRE, RD, WR, ACT16, PREA, TMOD, REF = (
    CODE[x] for x in ("ACT", "PRE", "RD", "WR", "ACT16", "PREA", "TMOD", "REFab")
)
ALL_BANK, ONE_BANK, REGISTER, BLOCKING, PSEUDO, HOST, ORDINARY = range(len(KIND))
# More writes than this begin write mode, fewer end it: 0.8 and 0.2 of the queue's nominal 32.
WRITE_HIGH, WRITE_LOW = 25.6, 6.4
NOTHING = -1


class Requests(NamedTuple):
    """Ordinary reads and writes of each class, oldest first: [class, slot]."""

    n: Any  # [class]
    is_write: Any
    is_active: Any  # has issued its own ACT
    bank: Any
    row: Any


class State(NamedTuple):
    """All classes at the start of tick `now`."""

    now: Any
    channel: Channel
    requests: Requests
    # The decoder.
    at: Any  # () next instruction
    decode: Any  # () tick from which the decoder may act
    is_draining: Any  # () some requests of the last instruction found no room
    waiting: Any  # [class] has yet to call a blocking instruction back
    end: Any  # () tick of the last callback
    # The AiM queue: requests come in order, so a place in the program is enough.
    head: Any  # [class] instruction at its head
    left: Any  # [class] bursts of it not yet issued
    n_aim: Any  # [class] requests queued, overflow included
    refused: Any  # [class] instruction that has not been let in, or NOTHING
    sync: Any  # [class] SYNC or EOC has left the queue and waits to be called back
    back: Any  # [class] tick of the callback, where it is known
    n_behind: Any  # [class] reads issued since SYNC or EOC left, which come back after it
    is_write_mode: Any  # [class]
    n_refresh: Any  # [class] refreshes due
    refresh: Any  # () tick of the next
    arrived: Any  # [class] tick since which there has been something to do


def run(
    p: Program, t: Table, rules: Rules, *, n_bank: int, n_queue: int, n_slot: int
) -> tuple[Channel, Any]:
    """The channels after the whole program, and its last tick.

    Args:
        p: any program that ends in EOC.
        t: distances between commands.
        rules: switches.
        n_bank: banks of a channel.
        n_queue: requests that each of a channel's three queues holds.
        n_slot: ordinary requests that a channel may have at once, in both queues and active.

    Gradient: exact, forward mode.
    """
    dtype = t.channel.dtype
    n_class = p.part.shape[1]
    zero = jnp.zeros(n_class, jnp.int32)
    tick = jnp.zeros(n_class, dtype)
    no = jnp.zeros(n_class, bool)
    slots = jnp.zeros((n_class, n_slot), jnp.int32)
    after = _following(p)
    refresh = jnp.where(rules.refreshes > 0, t.n_refi, NEVER).astype(dtype)
    stagger = 3 * jnp.maximum(t.group[ACT, ACT], t.n_faw) * rules.activates_by_four
    state = State(
        now=jnp.ones((), dtype),
        channel=ch.start(n_class, n_bank, t),
        requests=Requests(zero, slots > 0, slots > 0, slots, slots),
        at=jnp.int32(0), decode=jnp.ones((), dtype), is_draining=jnp.zeros((), bool),
        waiting=no, end=jnp.zeros((), dtype), head=zero, left=zero, n_aim=zero,
        refused=zero + NOTHING, sync=no, back=tick + NEVER, n_behind=zero, is_write_mode=no,
        n_refresh=zero, refresh=refresh, arrived=tick,
    )  # fmt: skip

    def is_running(s: State):
        return (s.at < p.n) | s.is_draining | s.waiting.any()

    def event(s: State) -> State:
        return _event(s, p, t, rules, after, n_queue, stagger.astype(dtype))

    state = jax.lax.while_loop(is_running, event, state)
    return state.channel, state.end


def _following(p: Program):
    """[n, class] the next AiM instruction of the class after each one."""
    n = p.part.shape[0]
    is_aim = p.part & ~p.kind[:, ORDINARY, None]
    index = jnp.where(is_aim, jnp.arange(n)[:, None], n)
    later = jax.lax.cummin(index, axis=0, reverse=True)
    return jnp.concatenate([later[1:], jnp.full((1, later.shape[1]), n)]).astype(jnp.int32)


def _event(s, p, t, rules, after, n_queue, stagger) -> State:
    choice = _choose(s, p, rules)
    can_let_in = _room(s, p, n_queue) & (s.refused != NOTHING)
    is_clear = (~can_let_in | _fits(s, p, n_queue)) & ((s.refused == NOTHING) | can_let_in)
    is_clear &= (s.n_aim <= n_queue) | (s.refused != NOTHING)
    never = jnp.asarray(NEVER, s.now.dtype)
    may_decode = ~s.is_draining & ~s.waiting.any() & (s.at < p.n)
    may_drain = s.is_draining & (can_let_in.any() | is_clear.all())
    decoder = jnp.where(may_decode | may_drain, jnp.maximum(s.now, s.decode), never)
    back = jnp.where(s.sync, jnp.maximum(s.back, s.channel.posted + 1), s.back)
    # Where parameters are not whole, an event may fall between two ticks: the next one sees it.
    back = jnp.where(s.waiting, jnp.maximum(back, s.now), never)
    refresh = jnp.maximum(s.refresh, s.now)
    controller = jnp.minimum(jnp.maximum(choice.at, s.now), back).min()
    controller = jnp.maximum(controller, s.now)
    now = jnp.minimum(jnp.minimum(decoder, refresh), controller)
    is_early = (decoder == now) | (refresh == now)  # before the controllers of this tick
    # Ticks on which nothing was chosen have looked at the queues too.
    looked = (now > s.now) & (s.n_refresh == 0)
    s = s._replace(
        now=now,
        is_write_mode=jnp.where(looked, choice.write_mode, s.is_write_mode),
    )

    def early(s: State) -> State:
        is_due = refresh == now
        s = s._replace(
            n_refresh=s.n_refresh + is_due,
            refresh=jnp.where(is_due, s.refresh + t.n_refi, s.refresh),
        )
        decoded = _let_in(s, p, rules, n_queue, may_drain, can_let_in)
        return _select(decoder == now, decoded, s)

    def late(s: State) -> State:
        return _control(s, p, t, rules, after, choice, back, stagger)

    return jax.lax.cond(is_early, early, late, s)


class Choice(NamedTuple):
    """What each class's controller does next."""

    at: Any  # [class] tick
    slot: Any  # [class] ordinary request, or NOTHING
    is_refresh: Any
    command: Any  # the command, before a change of mode takes its place
    final: Any
    bank: Any
    row: Any
    register: Any
    is_aim: Any
    pseudo: Any
    write_mode: Any
    is_active: Any  # the request had issued its ACT before


def _choose(s: State, p: Program, rules: Rules) -> Choice:
    c, q = s.channel, s.requests
    n_class, n_slot = q.bank.shape
    dtype = s.now.dtype
    never = jnp.asarray(NEVER, dtype)
    lane = jnp.arange(n_class)

    n_write = ((jnp.arange(n_slot)[None] < q.n[:, None]) & q.is_write & ~q.is_active).sum(1)
    n_read = ((jnp.arange(n_slot)[None] < q.n[:, None]) & ~q.is_write & ~q.is_active).sum(1)
    begins = (n_write > WRITE_HIGH) | (n_read == 0)
    ends = (n_write < WRITE_LOW) & (n_read > 0)
    mode = jnp.where(s.is_write_mode, ~ends, begins)

    # Ordinary requests: what each needs, and from when.
    here = jnp.take_along_axis(c.open_row, q.bank, 1)
    is_hit = here == q.row
    command = jnp.where(is_hit, jnp.where(q.is_write, WR, RD), jnp.where(here == CLOSED, ACT, PRE))
    both = jnp.maximum(c.earliest_bank[:, :4], c.earliest[:, :4, None])
    both = both.reshape(n_class, -1)
    at = jnp.take_along_axis(both, command * c.open_row.shape[1] + q.bank, 1)
    at = jnp.maximum(at, s.now)
    exists = jnp.arange(n_slot)[None] < q.n[:, None]
    is_active = exists & q.is_active
    is_queued = exists & ~q.is_active & (q.is_write == mode[:, None])
    is_queued &= (s.n_refresh == 0)[:, None]
    at_active = jnp.where(is_active, at, never)
    at_queued = jnp.where(is_queued, at, never)
    # A precharge of a bank with an active request is suppressed, and hides what is behind it.
    busy = jnp.zeros(c.open_row.shape, bool).at[lane[:, None], q.bank].max(is_active)
    held = (command == PRE) & jnp.take_along_axis(busy, q.bank, 1)

    # The refresh, or else the head of the AiM queue.
    is_refresh = s.n_refresh > 0
    i = jnp.minimum(s.head, p.command.shape[0] - 1)
    kind = p.kind[i]
    has_aim = (s.n_aim > 0) & ~is_refresh
    bank, row = p.bank[i], p.row[i]
    match = c.open_row == row[:, None]
    at_bank = jnp.maximum(bank, 0)
    mine = jnp.take_along_axis(c.open_row, at_bank[:, None], 1)[:, 0]
    other = (c.open_row != CLOSED) & ~match
    partial = match.any(1) & (rules.activates_open_banks == 0)
    final = p.command[i]
    all_command = jnp.where(match.all(1), final, jnp.where(other.any(1) | partial, PREA, ACT16))
    one_command = jnp.where(mine == row, final, jnp.where(mine == CLOSED, ACT, PRE))
    need = jnp.where(
        kind[:, ALL_BANK], all_command, jnp.where(kind[:, ONE_BANK], one_command, final)
    )
    closed = (c.open_row == CLOSED).all(1)
    need = jnp.where(is_refresh, jnp.where(closed, REF, PREA), need)
    at_head = c.earliest[lane, need]
    in_bank = c.earliest_bank[lane, jnp.minimum(need, N_BANK_COMMAND - 1), at_bank]
    at_head = jnp.where(need < N_BANK_COMMAND, jnp.maximum(at_head, in_bank), at_head)
    pseudo = kind[:, PSEUDO] & has_aim
    waits = pseudo & is_active.any(1) & (rules.writes_complete > 0)
    at_head = jnp.where(pseudo, s.now, jnp.maximum(at_head, s.now))
    at_head = jnp.where((has_aim | is_refresh) & ~waits, at_head, never)
    head_held = (need == PRE) & busy[lane, at_bank] & has_aim

    # Active requests first, oldest first; then the rest. The first that is ready is served, and
    # where that is a suppressed precharge, nothing is.
    order = jnp.concatenate([at_active, at_queued, at_head[:, None]], 1)
    held = jnp.concatenate([held & is_active, held & is_queued, head_held[:, None]], 1)
    hidden = jax.lax.cummin(jnp.where(held, order, never), axis=1)
    possible = jnp.where(held | (hidden <= order), never, order)
    when = possible.min(1)
    pick = jnp.argmax(order <= when[:, None], axis=1)
    is_head = pick == 2 * n_slot
    slot = jnp.where(is_head, NOTHING, pick % n_slot)
    place = jnp.maximum(slot, 0)[:, None]

    def of(array):
        return jnp.take_along_axis(array, place, 1)[:, 0]

    return Choice(
        at=when,
        slot=slot,
        is_refresh=is_head & is_refresh,
        command=jnp.where(is_head, need, of(command)),
        final=jnp.where(
            is_head, jnp.where(is_refresh, REF, final), jnp.where(of(q.is_write), WR, RD)
        ),
        bank=jnp.where(is_head, jnp.where(is_refresh, NOTHING, bank), of(q.bank)),
        row=jnp.where(is_head, row, of(q.row)),
        register=is_head & ~is_refresh & kind[:, REGISTER],
        is_aim=is_head & ~is_refresh,
        pseudo=is_head & pseudo,
        write_mode=mode,
        is_active=~is_head & (pick < n_slot),
    )


def _room(s: State, p: Program, n_queue: int):
    """[class] whether the refused instruction may enter its queue."""
    q = s.requests
    i = jnp.maximum(s.refused, 0)
    is_ordinary = p.kind[i, ORDINARY]
    waits = (jnp.arange(q.bank.shape[1])[None] < q.n[:, None]) & ~q.is_active
    is_write = p.command[i] == WR
    same = (waits & (q.is_write == is_write[:, None])).sum(1)
    return jnp.where(is_ordinary, (s.n_aim == 0) & (same < n_queue), ~waits.any(1))


def _fits(s: State, p: Program, n_queue: int):
    """[class] whether nothing is left over once the refused instruction has entered."""
    i = jnp.maximum(s.refused, 0)
    return p.kind[i, ORDINARY] | (s.n_aim + p.n_burst[i] <= n_queue)


def _let_in(s: State, p: Program, rules: Rules, n_queue: int, drains: Any, can: Any) -> State:
    """The decoder's tick: the next instruction, or what of the last still waits."""
    i = jnp.minimum(s.at, p.command.shape[0] - 1)
    fresh = ~drains
    part = p.part[i] & fresh
    s = s._replace(
        refused=jnp.where(part, i, s.refused),
        waiting=s.waiting | (part & p.kind[i, BLOCKING]),
        at=s.at + fresh,
    )
    # A read that meets a queued write is answered at once, whatever the addresses.
    q = s.requests
    n_slot = q.bank.shape[1]
    waits = (jnp.arange(n_slot)[None] < q.n[:, None]) & ~q.is_active
    has_write = (waits & q.is_write).any(1)
    j = jnp.maximum(s.refused, 0)
    is_there = s.refused != NOTHING
    command, kind = p.command[j], p.kind[j]
    answered = is_there & (command == RD) & has_write & (rules.forwards_any_read > 0)
    callback = jnp.where(answered, jnp.maximum(s.channel.callback + 1, s.now), s.channel.callback)
    enters = is_there & ~answered & _room(s, p, n_queue)
    idle = (s.n_aim == 0) & (q.n == 0)
    # Ordinary: a slot at the end. AiM: a longer queue.
    adds = enters & kind[:, ORDINARY]
    new = (jnp.arange(n_slot)[None] == q.n[:, None]) & adds[:, None]
    q = Requests(
        n=q.n + adds,
        is_write=jnp.where(new, (command == WR)[:, None], q.is_write),
        is_active=q.is_active & ~new,
        bank=jnp.where(new, p.bank[j][:, None], q.bank),
        row=jnp.where(new, p.row[j][:, None], q.row),
    )
    joins = enters & ~kind[:, ORDINARY]
    first = joins & (s.n_aim == 0)
    n_aim = s.n_aim + jnp.where(joins, p.n_burst[j], 0)
    refused = jnp.where(enters | answered, NOTHING, s.refused)
    draining = ((refused != NOTHING) | (n_aim > n_queue)).any()
    return s._replace(
        channel=s.channel._replace(callback=callback),
        requests=q,
        head=jnp.where(first, j, s.head),
        left=jnp.where(first, p.n_burst[j], s.left),
        n_aim=n_aim,
        refused=refused,
        is_draining=draining,
        arrived=jnp.where(idle & enters, s.now, s.arrived),
        decode=s.now + 1,
    )


def _control(s, p, t, rules, after, choice: Choice, back, stagger) -> State:
    """A tick of every controller: callbacks, then one command each."""
    c, now = s.channel, s.now
    called = s.waiting & (back == now)
    waiting = s.waiting & ~called
    callback = jnp.maximum(c.callback, now + s.n_behind)
    callback = jnp.where(called & s.sync, callback, c.callback)
    c = c._replace(callback=callback)
    on = choice.at == now
    pseudo = on & choice.pseudo
    issues = on & ~choice.pseudo
    changes = issues & (choice.register != c.is_register)
    command = jnp.where(changes, TMOD, choice.command)
    is_final = issues & ~changes & (command == choice.final)
    is_row = (command == ACT) | (command == PRE) | (command == ACT16) | (command == PREA)
    is_row |= changes & (choice.command != choice.final)
    cause = jnp.where(choice.is_refresh, REFRESH, jnp.where(is_row, ROW, DATA))
    cause = jnp.where(c.after == DATA, cause, c.after)
    follows = jnp.where(changes, MODE, jnp.where(is_row, ROW, DATA))
    follows = jnp.where(choice.is_refresh, REFRESH, follows)
    at = jnp.broadcast_to(now, c.last.shape)
    c = ch.account(c, issues, at, s.arrived, cause, follows)
    opens = command == ACT16
    c = _issue(c, t, command, jnp.where(changes, NOTHING, choice.bank), choice.row, issues, now,
               now + jnp.where(opens, stagger, 0))  # fmt: skip
    c = c._replace(
        is_register=jnp.where(changes, choice.register, c.is_register),
        last=jnp.where(pseudo, now, c.last),
    )
    # Completion: results come back in order, posted writes at their own time.
    done = now + t.latency[jnp.minimum(command, t.latency.shape[0] - 1)]
    blocking = p.kind[jnp.minimum(s.head, p.kind.shape[0] - 1), BLOCKING] & choice.is_aim
    reads = is_final & ((command == RD) | blocking)
    posts = is_final & ~reads & ~choice.is_refresh
    call = jnp.maximum(done, c.callback + 1)
    c = c._replace(
        callback=jnp.where(reads, call, c.callback),
        posted=jnp.where(posts, jnp.maximum(c.posted, done), c.posted),
    )
    never = jnp.asarray(NEVER, now.dtype)
    back = jnp.where(called, never, s.back)
    back = jnp.where(reads & blocking, call, back)
    back = jnp.where(pseudo, jnp.maximum(now + 1, c.callback + 1), back)
    # The queues.
    pops = (is_final & choice.is_aim) | pseudo
    left = s.left - pops
    moves = pops & (left == 0)
    here = jnp.minimum(s.head, p.kind.shape[0] - 1)
    follower = jnp.take_along_axis(after, here[None], 0)[0]
    head = jnp.where(moves, follower, s.head)
    left = jnp.where(moves, p.n_burst[jnp.minimum(head, p.kind.shape[0] - 1)], left)
    q = s.requests
    slot = choice.slot[:, None]
    index = jnp.arange(q.bank.shape[1])[None]
    opened = (index == slot) & (issues & (command == ACT))[:, None]
    q = q._replace(is_active=q.is_active | opened)
    leaves = is_final & (choice.slot != NOTHING)
    place = index + (leaves[:, None] & (index >= slot))
    place = jnp.minimum(place, index.shape[1] - 1)
    q = Requests(q.n - leaves, *(jnp.take_along_axis(x, place, 1) for x in q[1:]))
    looked = on & ~choice.is_active & ~choice.is_refresh
    return s._replace(
        now=now + 1,
        channel=c,
        requests=q,
        waiting=waiting,
        end=jnp.where(called.any(), now, s.end),
        decode=jnp.where(called.any() & ~waiting.any(), now + 1, s.decode),
        head=head,
        left=left,
        n_aim=s.n_aim - pops,
        sync=(s.sync & ~called) | pseudo,
        n_behind=jnp.where(pseudo, 0, s.n_behind + (reads & s.sync & ~called)),
        back=back,
        is_write_mode=jnp.where(looked, choice.write_mode, s.is_write_mode),
        n_refresh=s.n_refresh - (is_final & choice.is_refresh),
    )


def _issue(c: Channel, t: Table, command, bank, row, on, at, last) -> Channel:
    """As `channel.issue`, one command, another in each class."""
    one = jnp.ones((), jnp.int32)

    def single(c, command, bank, row, on, last):
        c = jax.tree.map(lambda x: x[None], c)
        out = ch.issue(c, t, command, bank, row, on[None], at, last[None], one[None])
        return jax.tree.map(lambda x: x[0], out)

    return jax.vmap(single)(c, command, bank, row, on, last)


def _select(flag, yes, no):
    return jax.tree.map(lambda a, b: jnp.where(flag, a, b), yes, no)
