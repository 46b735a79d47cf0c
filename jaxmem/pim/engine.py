"""The exact engine: what a stream of instructions takes, command by command.

Host side: groups channels into classes, lays the stream out for one of two compiled programs
(`inorder` for what every channel executes in order, `queued` for ordinary reads and writes), and
gathers the result. Rules: research/aim.md sections 2 and 3; measured against the public simulator
in `jaxmem.validation.aim`.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxmem.core.design import Leaf, leaf, record, specs
from jaxmem.core.errors import InputError
from jaxmem.devices.dram import PimTiming
from jaxmem.pim import channel as ch
from jaxmem.pim import inorder, isa, queued
from jaxmem.pim.channel import CAUSE, Rules
from jaxmem.pim.constraints import (
    BANK_COMMAND,
    CODE,
    COMMAND,
    PRODUCT_COMMAND,
    needed,
    part,
    refresh_cycles,
    table,
)
from jaxmem.pim.inorder import KIND, Program
from jaxmem.pim.isa import OPS, Stream

DEVICE = Rules()
SIMULATOR = Rules(
    writes_complete=0, forwards_any_read=1, activates_open_banks=1, refreshes=0, activates_by_four=0
)
MODES = {"device": DEVICE, "simulator": SIMULATOR}
SMALLEST = 512  # instructions of the smallest program compiled; the next is eight times that


@record
class Timing:
    """What a stream takes, over all channels of the device."""

    cycles: Leaf = leaf("until the last channel has answered EOC", unit="cycles")
    counts: Leaf = leaf("commands issued, by name")  # {name: ()}
    row_activations: Leaf = leaf("rows opened, bank by bank", unit="rows")
    cause: Leaf = leaf("where a channel's time goes, by cause", unit="cycles")  # {cause: ()}
    open_cycles: Leaf = leaf("cycles with a row open, over all channels", unit="cycles")


def run(
    stream: Stream,
    device: Any,
    mode: str = "device",
    refresh: bool | None = None,
    *,
    rules: Rules | None = None,
) -> Timing:
    """Cycles, commands and causes of a stream, exactly.

    Args:
        stream: concrete, checked (`trace_form.check`), ending in EOC.
        device: a `PimDevice`; its timing may be traced, its organisation is concrete.
        mode: `device` (what the rules say of hardware) or `simulator` (the public simulator with
            its artefacts); a name for a set of `Rules`.
        refresh: whether rows are refreshed; by default in device mode alone.
        rules: the switches one by one, instead of `mode`.

    Returns:
        `Timing`; `cause` is the mean over the channels that the stream addresses, and adds up to
        `cycles`.

    Raises:
        InputError: unknown mode; a timing parameter that the stream needs is not known.

    Gradient: exact in the timing parameters, forward mode (`jax.jvp`, `jax.jacfwd`).
    Source: research/aim.md sections 2, 3 and 8.

    Example:
        >>> import jaxmem as jm
        >>> from jaxmem.pim import isa
        >>> one = {"mask": 1 << 31, "row": 0, "n": 64}
        >>> row = [("WR_GB", one), ("WR_BIAS", one), ("MAC_ABK", one), ("RD_MAC", one), ("EOC", {})]
        >>> int(run(isa.stream(row), jm.devices.load("aim-gddr6-16gib")).cycles)
        414
    """
    if mode not in MODES:
        raise InputError("mode", mode, " or ".join(MODES), known=MODES)
    chosen = MODES[mode] if rules is None else rules
    if refresh is not None:
        chosen = dataclasses.replace(chosen, refreshes=int(refresh))
    program, shape = prepare(stream, device, has_refresh=_may(chosen.refreshes))
    timing = numbers(device.timing, _commands(stream))
    is_known = not isinstance(timing.n_refi, Tracer) and not isinstance(chosen.refreshes, Tracer)
    if is_known and np.any(np.asarray(chosen.refreshes) > 0):
        shortest = np.asarray(refresh_cycles(timing))
        if np.any(np.asarray(timing.n_refi) <= shortest):
            rule = f"more cycles than a refresh takes, {shortest.max():g}"
            raise InputError("device.timing.n_refi", np.asarray(timing.n_refi).min(), rule)
    return Timing(**_run(program, timing, chosen, shape))


def prepare(stream: Stream, device: Any, *, has_refresh: bool) -> tuple[Program, tuple]:
    """A stream as arrays of padded shape, and what the compiled program must know statically."""
    n_channel, n_bank = int(device.n_channel), int(device.n_bank)
    n_queue = int(device.n_command_queue)
    if n_channel > isa.MASK_BIT:
        rule = f"at most {isa.MASK_BIT} channels (a channel mask has as many bits)"
        raise InputError("device.n_channel", n_channel, rule)
    code = np.asarray(stream.op)
    kind = _KIND[code]
    chosen, which = isa.classes(stream, n_channel)
    size = np.bincount(which, minlength=chosen.shape[1])
    n, n_class = chosen.shape
    n_burst = np.asarray(stream.n_burst)
    is_mixed = bool(kind[:, KIND.index("ordinary")].any())
    # Short streams share the general program; long ones are worth one of their own.
    is_short = n <= SMALLEST
    span = (0, len(COMMAND))
    if not is_short and not kind[:, KIND.index("one_bank")].any():
        span = (len(BANK_COMMAND), len(COMMAND))
        if np.isin(_COMMAND[code], _PRODUCT).all():
            span = (len(BANK_COMMAND), len(BANK_COMMAND) + len(PRODUCT_COMMAND))
    has_refresh = is_short or has_refresh
    blocking = kind[:, KIND.index("blocking")]
    n_slot = _slots(chosen, kind[:, KIND.index("ordinary")], n_bank, n_queue) if is_mixed else 0
    if is_mixed or has_refresh:
        source, burst, window = np.full((n, 0), -1), np.zeros((n, 0), int), 0
    else:
        source, burst, window = _sources(chosen, n_burst, blocking, n_queue)
    length, width = _padded(n, SMALLEST, 8), _padded(n_class, 8, 4)

    def pad(array: Any, columns: int | None = None) -> np.ndarray:
        array = np.asarray(array)
        extra = [(0, length - n)]
        if columns is not None:
            extra.append((0, columns - array.shape[1]))
        return np.pad(array, extra)

    program = Program(
        n=np.int32(n),
        command=pad(_COMMAND[code]),
        kind=pad(kind, kind.shape[1]),
        bank=pad(np.asarray(stream.bank, np.int32)),
        row=pad(isa.rows(stream)),
        n_burst=pad(np.asarray(n_burst, np.int32)),
        part=pad(chosen, width),
        size=np.pad(size, (0, width - n_class)).astype(np.int32),
        source=pad(source.astype(np.int32), width if window else 0),
        burst=pad(burst.astype(np.int32), width if window else 0),
    )
    return program, (n_bank, n_queue, window, span, has_refresh, n_slot)


def numbers(timing: PimTiming, commands: set[str] | None = None) -> PimTiming:
    """Timing parameters of one dtype: int32 where all are concrete and whole, else floating.

    Raises:
        InputError: a parameter on which `commands` depend is not known.
    """
    value = {name: getattr(timing, name) for name in specs(PimTiming)}
    if any(isinstance(v, Tracer) for v in value.values()):
        return PimTiming(**{k: jnp.asarray(v, jnp.result_type(float)) for k, v in value.items()})
    for name in needed(commands or set()):
        if np.isnan(value[name]).any():
            rule = "a number of cycles (it is not known for this device, and the stream needs it)"
            raise InputError(f"device.timing.{name}", float(value[name]), rule)
    # What is not known is not used either: any number will do.
    known = {k: np.nan_to_num(np.asarray(v, np.float64)) for k, v in value.items()}
    if all((v == np.round(v)).all() for v in known.values()):
        return PimTiming(**{k: v.astype(np.int32) for k, v in known.items()})
    return PimTiming(**{k: jnp.asarray(v, jnp.result_type(float)) for k, v in known.items()})


@functools.partial(jax.jit, static_argnames="shape")
def _run(program: Program, timing: PimTiming, rules: Rules, shape: tuple) -> dict[str, Any]:
    n_bank, n_queue, window, span, has_refresh, n_slot = shape
    distances = part(table(timing), *span)
    # Refreshing without end is no answer: such a variant is not run, and its time is not known.
    has_time = (timing.n_refi > refresh_cycles(timing)) | (rules.refreshes == 0)
    rules = dataclasses.replace(rules, refreshes=rules.refreshes * has_time)
    if n_slot:
        channel, end = queued.run(
            program, distances, rules, n_bank=n_bank, n_queue=n_queue, n_slot=n_slot
        )
    else:
        state = inorder.run(
            program, distances, rules, n_bank=n_bank, n_queue=n_queue, window=window,
            has_refresh=has_refresh,
        )  # fmt: skip
        channel, end = state.channel, state.end
    if jnp.issubdtype(end.dtype, jnp.floating):
        end = jnp.where(has_time, end, jnp.nan)
    return _gather(program, channel, end, n_bank)


def _gather(p: Program, c: ch.Channel, end: Any, n_bank: int) -> dict[str, Any]:
    first = ch.first_code(c)
    missing = ((0, 0), (first, len(COMMAND) - first - c.count.shape[1]))
    count = jnp.pad(c.count, missing)
    total = (count * p.size[:, None]).sum(0)
    # A class that does nothing but answer EOC is not addressed.
    works = p.size * (count.at[:, CODE["REFab"]].set(0).sum(1) > 0)
    works = jnp.where(works.any(), works, p.size)
    share = works / works.sum()
    waits = end - c.cause.sum(1)
    cause = c.cause.at[:, ch.STALL].add(waits)
    mean = (cause * share[:, None]).sum(0)
    is_open = (c.open_row != ch.CLOSED).any(1)
    return {
        "cycles": end,
        "counts": {name: total[code] for code, name in enumerate(COMMAND)},
        "row_activations": n_bank * total[CODE["ACT16"]] + total[CODE["ACT"]],
        "cause": dict(zip(CAUSE, mean, strict=True)),
        "open_cycles": ((c.open_time + jnp.where(is_open, end, 0)) * p.size).sum(),
    }


def _kind(op: isa.Op) -> tuple[bool, ...]:
    """What an instruction needs, in the order of `inorder.KIND`."""
    is_pseudo = not op.command and not op.is_host
    needs = (op.is_all_bank, op.is_one_bank, op.is_register, op.is_blocking)
    return (*needs, is_pseudo, op.is_host, op.is_ordinary)


_KIND = np.array([_kind(op) for op in OPS])
_PRODUCT = [CODE[name] for name in PRODUCT_COMMAND]
# What has no command gets one that every program knows; it is never issued.
_COMMAND = np.array([CODE.get(op.command, CODE["TMOD"]) for op in OPS], np.int32)


def _may(flag: Any) -> bool:
    return isinstance(flag, Tracer) or bool(np.any(np.asarray(flag) > 0))


def _padded(n: int, smallest: int, factor: int) -> int:
    size = smallest
    while size < n:
        size *= factor
    return size


def _commands(stream: Stream) -> set[str]:
    """The DRAM commands that a stream may issue, refresh aside."""
    ops = [OPS[code] for code in np.unique(np.asarray(stream.op))]
    found = {op.command for op in ops if op.command} | {"REFab"}
    if any(op.is_all_bank for op in ops):
        found |= {"ACT16", "PREA"}
    if any(op.is_one_bank for op in ops):
        found |= {"ACT", "PRE"}
    if any(op.is_register for op in ops):
        found.add("TMOD")
    return found


def _slots(part, is_ordinary, n_bank, n_queue):
    """Ordinary requests that a channel may have at once: a few sizes, so that few programs are.

    An AiM instruction enters a channel only when its reads and writes have left their queues, all
    but those, one a bank, whose row is being opened.
    """
    longest = 0
    for k in range(part.shape[1]):
        mine = is_ordinary[part[:, k]]
        last = np.maximum.accumulate(np.where(mine, -1, np.arange(len(mine))))
        longest = max(longest, int((np.arange(len(mine)) - last)[mine].max(initial=0)))
    few = 2 * n_bank
    return few if longest <= few - n_bank else 3 * n_queue


def _sources(part, n_burst, blocking, n_queue):
    """Whose leaving makes room for each instruction, where its class's queue might be full.

    Between two blocking instructions a class may have more requests than its queue holds; then
    the decoder waits for the request `n_queue` before the instruction's last.

    Returns:
        ([n, class] instruction or -1, [n, class] place in its run, how far back at most).
    """
    n, n_class = part.shape
    source, burst = np.full((n, n_class), -1), np.zeros((n, n_class), int)
    distance = 0
    for k in range(n_class):
        index = np.flatnonzero(part[:, k])
        pushed = np.cumsum(n_burst[index])
        # Requests before the last blocking instruction have left when the next is decoded.
        is_done = np.concatenate([[False], blocking[index][:-1]])
        drained = np.where(is_done, np.concatenate([[0], pushed[:-1]]), 0)
        drained = np.maximum.accumulate(drained)
        request = pushed - n_queue  # counted from 1
        may = request > drained
        owner = np.searchsorted(pushed, request[may])
        source[index[may], k] = index[owner]
        burst[index[may], k] = request[may] - 1 - (pushed[owner] - n_burst[index][owner])
        if may.any():
            distance = max(distance, int((index[may] - index[owner]).max()))
    if not (source >= 0).any():
        return np.full((n, 0), -1), np.zeros((n, 0), int), 0
    return source, burst, _padded(distance + 1, 8, 4)
