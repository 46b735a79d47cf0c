"""State of PIM channels between commands, and what issuing a command does to it.

Channels that execute the same instructions are one class; every array leads with that axis. Both
paths of the exact engine (`inorder`, `queued`) move this state, so each rule is written once.
Rules: research/aim.md section 2.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxmem.core.design import design, flag
from jaxmem.pim.constraints import ABSENT, BANK_COMMAND, CODE, COMMAND, Table

CLOSED = -1  # row of a bank with none open
NEVER = 10**9  # later than any tick
N_COMMAND, N_BANK_COMMAND = len(COMMAND), len(BANK_COMMAND)
BANK_GROUP = 4  # banks of a group (research/aim.md section 3.1)
CAUSE = ("data", "mode_switch", "row_miss", "refresh", "stall")
DATA, MODE, ROW, REFRESH, STALL = range(5)


@design
class Rules:
    """Where the hardware and the public simulator part: one documented switch each.

    The single decoder, which stalls on a full queue, is in both (research/aim.md section 8, 7).
    """

    writes_complete: Any = flag(
        "SYNC and EOC wait for writes whose row is already open",
        default=1,
        source="the simulator ends without them: research/aim.md section 8, gotcha 1",
    )
    forwards_any_read: Any = flag(
        "a read that arrives while any write is queued is answered at once, without a command",
        default=0,
        source="a field that is always -1 is compared: research/aim.md section 8, gotcha 2",
    )
    activates_open_banks: Any = flag(
        "all banks are activated while some hold the wanted row open, without a precharge",
        default=0,
        source="observed in the measured streams: the simulator precharges other rows only",
    )
    refreshes: Any = flag(
        "all-bank refresh every nREFI",
        default=1,
        source="never issued by the simulator: research/aim.md section 8, gotcha 3",
    )
    activates_by_four: Any = flag(
        "an all-bank activation is four of four banks, nFAW apart, instead of one",
        default=0,
        source="ACT4, in the simulator's tables and never issued: research/aim.md section 8, 12",
    )


class Channel(NamedTuple):
    """Classes of channels at a moment; ticks count from 1."""

    earliest: Any  # [class, command] tick from which the channel's rules allow each command
    earliest_bank: Any  # [class, bank command, bank] the same for rules of bank group and bank
    open_row: Any  # [class, bank]
    is_register: Any  # [class] bool: register mode, else normal mode
    last: Any  # [class] tick of the last command or pseudo-command
    callback: Any  # [class] tick of the last callback
    posted: Any  # [class] tick at which the last posted command completes
    after: Any  # [class] cause that the time after the last command counts for
    cause: Any  # [class, cause] cycles
    count: Any  # [class, command]
    open_time: Any  # [class] cycles with a row open; those since an opening are yet to be added


def start(n_class: int, n_bank: int, t: Table) -> Channel:
    """Every row closed, normal mode, nothing issued.

    Where the table has no commands to one bank, all banks of a channel are as one.
    """
    i32 = jnp.int32
    n_command, dtype = t.channel.shape[0], t.channel.dtype
    has_bank = n_command == N_COMMAND
    return Channel(
        earliest=jnp.full((n_class, n_command), ABSENT, dtype),
        earliest_bank=jnp.full((n_class, N_BANK_COMMAND, n_bank if has_bank else 0), ABSENT, dtype),
        open_row=jnp.full((n_class, n_bank if has_bank else 1), CLOSED, i32),
        is_register=jnp.zeros(n_class, bool),
        last=jnp.zeros(n_class, dtype),
        callback=jnp.zeros(n_class, dtype),
        posted=jnp.zeros(n_class, dtype),
        after=jnp.full(n_class, DATA, i32),
        cause=jnp.zeros((n_class, len(CAUSE)), dtype),
        count=jnp.zeros((n_class, n_command), i32),
        open_time=jnp.zeros(n_class, dtype),
    )


def first_code(c: Channel) -> int:
    """The command of the first column; all have one, or those to single banks have none."""
    return 0 if c.earliest.shape[1] == N_COMMAND else N_BANK_COMMAND


def allowed(c: Channel, t: Table, command: Any, bank: Any, issued: tuple[Any, ...] = ()) -> Any:
    """[class] tick from which the rules allow `command` (one for all classes) to `bank`.

    Args:
        c: classes of channels.
        t: distances between commands.
        command: the command.
        bank: its bank, or -1.
        issued: (command, tick) of what was issued since, to the same bank, not yet in `c`.
    """
    first = first_code(c)
    at = jax.lax.dynamic_index_in_dim(c.earliest, command - first, 1, keepdims=False)
    for before, when in issued:
        at = jnp.maximum(at, when + t.channel[before - first, command - first])
    if c.earliest_bank.shape[-1] == 0:
        return at
    row = jnp.minimum(command, N_BANK_COMMAND - 1)
    in_bank = jax.lax.dynamic_index_in_dim(c.earliest_bank, row, 1, keepdims=False)
    in_bank = jax.lax.dynamic_index_in_dim(in_bank, jnp.maximum(bank, 0), 1, keepdims=False)
    for before, when in issued:
        code = jnp.minimum(before, N_BANK_COMMAND - 1)
        rule = jnp.maximum(t.bank[code, row], t.group[code, row])
        in_bank = jnp.maximum(in_bank, jnp.where(before < N_BANK_COMMAND, when + rule, in_bank))
    return jnp.where(command < N_BANK_COMMAND, jnp.maximum(at, in_bank), at)


def constrain(c: Channel, t: Table, bank: Any, issued: tuple[Any, ...]) -> Channel:
    """Remember (command, tick) of what was issued to `bank`; a tick of `ABSENT` for nothing.

    All at once: one pass over the table's columns, not one a command.
    """
    first = first_code(c)
    earliest, earliest_bank = c.earliest, c.earliest_bank
    for command, when in issued:
        earliest = jnp.maximum(earliest, when[:, None] + t.channel[command - first][None])
    if c.earliest_bank.shape[-1]:
        banks = jnp.arange(c.open_row.shape[-1])[None]
        is_near = banks // BANK_GROUP == bank // BANK_GROUP
        for command, when in issued:
            code = jnp.minimum(command, N_BANK_COMMAND - 1)
            near = jnp.where(is_near, t.group[code][:, None], ABSENT)
            here = jnp.where(banks == bank, t.bank[code][:, None], ABSENT)
            rule = jnp.where(command < N_BANK_COMMAND, jnp.maximum(near, here), ABSENT)
            earliest_bank = jnp.maximum(earliest_bank, when[:, None, None] + rule[None])
    return c._replace(earliest=earliest, earliest_bank=earliest_bank)


def mark(c: Channel, command: Any, bank: Any, row: Any, on: Any, at: Any, last: Any, n: Any):
    """Rows, counts and times after `n` equal commands from tick `at` to `last` in classes `on`.

    `command`, `bank` and `row` are one for all classes. `constrain` is what follows for others.
    """
    n_bank = c.open_row.shape[-1]
    one = (jnp.arange(n_bank)[None] == bank) | (n_bank == 1)
    opens = (command == CODE["ACT16"]) | ((command == CODE["ACT"]) & one)
    closes = (command == CODE["PREA"]) | (command == CODE["WRA16"])
    closes |= (command == CODE["PRE"]) & one
    shut = jnp.where(on[:, None] & closes, CLOSED, c.open_row)
    open_row = jnp.where(on[:, None] & opens, row, shut)
    was, now = (c.open_row != CLOSED).any(1), (open_row != CLOSED).any(1)
    change = jnp.where(was & ~now, last, 0) - jnp.where(now & ~was, at, 0)
    code = jnp.arange(first_code(c), first_code(c) + c.count.shape[1])[None]
    return c._replace(
        open_row=open_row,
        last=jnp.where(on, last, c.last),
        count=c.count + jnp.where(on[:, None] & (code == command), jnp.asarray(n)[:, None], 0),
        open_time=c.open_time + change,
    )


def issue(
    c: Channel, t: Table, command: Any, bank: Any, row: Any, on: Any, at: Any, last: Any, n: Any
) -> Channel:
    """`mark` and `constrain`: `n` equal commands, from tick `at` to `last`, in classes `on`."""
    c = mark(c, command, bank, row, on, at, last, n)
    return constrain(c, t, bank, ((command, jnp.where(on, last, ABSENT)),))


def account(c: Channel, on: Any, at: Any, arrived: Any, cause: Any, after: Any) -> Channel:
    """Charge the time from the last command to this one: waiting for work is a stall."""
    worked = jnp.minimum(at, jnp.maximum(c.last, arrived))
    code = jnp.arange(len(CAUSE))[None]
    share = jnp.where(code == cause[:, None], (at - worked)[:, None], 0)
    share += jnp.where(code == STALL, (worked - c.last)[:, None], 0)
    return c._replace(
        cause=c.cause + jnp.where(on[:, None], share, 0),
        after=jnp.where(on, after, c.after),
    )
