"""Cycles of a load, in closed form, from the device's own timing parameters.

Exact for in-order streams of one decoder on AiM (research/aim.md section 6: a step takes 68 + 2w +
2 n + 88 miss + 98 extra rows), and PATTON's write forms (research/patton.md section 5). Refresh is
off, as in the public simulator; the exact engine (`run`) carries what a load cannot say.
"""

from typing import Any

import jax.numpy as jnp

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.pim.engine import Timing, run
from jaxmem.pim.isa import Load
from jaxmem.pim.policy import WRITE_ISSUE

__all__ = [
    "Timing",
    "commit_cycles",
    "copy_cycles",
    "cycles",
    "mac_cycles",
    "row_write_cycles",
    "run",
    "value_write_cycles",
    "write_cycles",
]


def cycles(load: Load, device: Any) -> Leaf:
    """Cycles of one channel that executes `load`: MAC steps, then writes or copies."""
    copies = load.n_copy > 0
    moved = relax.where(copies, copy_cycles(load, device), write_cycles(load, device))
    return mac_cycles(load, device) + moved


def mac_cycles(load: Load, device: Any) -> Leaf:
    """Cycles of a channel's WRBIAS-MACAB-RDMAC steps. Gradient: exact.

    Source: research/aim.md section 6, exact in every in-order family measured.
    """
    t = device.timing
    # RDMAC to WRMAC, the two mode switches, less the burst slot that the step's end replaces.
    turn = t.n_cl_register + t.n_bl + 3 - t.n_cwl_register + t.n_wpre
    step = turn + 1 + 2 * t.n_mode_change
    miss = t.n_rp + t.n_rcd_mac
    row = t.n_rtp + t.n_rp + t.n_rcd_mac - t.n_ccd
    data = t.n_ccd * (load.n_gb + load.n_burst)
    return step * load.n_step + data + miss * load.n_miss + row * load.n_extra_row


def row_write_cycles(device: Any) -> Leaf:
    """Cycles to open a row, write one burst and close it: 101 on AiM."""
    t = device.timing
    return t.n_rcd_wr + t.n_cwl + t.n_bl + t.n_wr + t.n_rp


def write_cycles(load: Load, device: Any) -> Leaf:
    """Cycles of a channel's writes: its data, or the row changes of its fullest bank.

    All-bank writes open every row in the same banks, so that their rows follow one another; those
    to single banks overlap. Gradient: exact.

    Source: max(16 n + 99, 115 m) for single-token Keys, 101 m + 2 (n - m) for all-bank writes,
        research/patton.md section 5.
    """
    t = device.timing
    stream = t.n_ccd * load.n_write + row_write_cycles(device) - t.n_ccd
    return relax.where(load.n_write > 0, relax.maximum(_serial(load, device), stream), 0.0)


def _serial(load: Load, device: Any) -> Leaf:
    """Cycles of the fullest bank's rows, one after another."""
    more = relax.divide(load.n_write, load.n_write_row, 1.0) - 1.0
    return (row_write_cycles(device) + device.timing.n_ccd * more) * load.n_bank_row


def copy_cycles(load: Load, device: Any) -> Leaf:
    """Cycles of bursts that are read bank by bank, and written so to other rows.

    The banks' rows open one after another while data flows, in reading and in writing.

    Source: the rules of research/aim.md. Within 2 % of the exact engine where a block has two rows
        or more, 8 % above it for one.
    """
    t = device.timing
    opening = t.n_rrd_s * (device.n_bank - 1.0) * load.n_copy_row
    data = t.n_ccd * device.n_bank * load.n_copy
    latency = (t.n_rcd_rd + t.n_cl + t.n_bl + t.n_rtp + t.n_rp) * load.n_copy_row
    write = relax.maximum(_serial(load, device), t.n_ccd * load.n_write)
    return latency + relax.maximum(opening, data) + write


def value_write_cycles(
    load: Load, device: Any, write_issue: Leaf, keeps_open: Leaf, decoder: Leaf
) -> Leaf:
    """Cycles of a step's Value writes under a write primitive.

    Args:
        load: one channel's writes: `n_write` all-bank bursts in `n_write_row` row visits.
        device: the PIM device.
        write_issue: code of `WRITE_ISSUE`.
        keeps_open: whether writes find rows open: in a Commit Zone, as bursts or in bulk.
        decoder: channels that the one decoder serves meanwhile, all heads' together.

    Source: research/patton.md section 6.3. Open-row all-bank writes and masked writes are
        extensions of the public instruction set; the stock commands close the row (all-bank) or
        address one bank a command (single-bank), which the decoder issues one a cycle.
    """
    open_row = write_cycles(load, device)
    direct = row_write_cycles(device) * load.n_write
    tick_all = decoder * load.n_write
    tick_bank = device.n_bank * tick_all
    is_open = keeps_open > 0
    choices = [
        (WRITE_ISSUE["channel_all_bank"], relax.where(is_open, open_row, direct)),
        (
            WRITE_ISSUE["mixed_decoder"],
            relax.where(
                is_open, relax.maximum(open_row, tick_all), relax.maximum(direct, tick_bank)
            ),
        ),
        (
            WRITE_ISSUE["mixed_decoder_gpr"],
            relax.where(
                is_open,
                relax.maximum(open_row, 2 * tick_all),
                relax.maximum(direct, 2 * tick_bank),
            ),
        ),
        (
            WRITE_ISSUE["stock_single_bank"],
            relax.maximum(relax.where(is_open, open_row, direct), tick_bank),
        ),
        (WRITE_ISSUE["stock_all_bank"], relax.maximum(direct, tick_all)),
    ]
    return _select(choices, write_issue)


def commit_cycles(load: Load, device: Any, write_issue: Leaf, decoder: Leaf) -> Leaf:
    """Cycles of a step's commits: a copy, or the decoder's read and write a bank and burst."""
    channel = copy_cycles(load, device)
    ticks = 2 * decoder * device.n_bank * load.n_copy
    is_channel = write_issue == WRITE_ISSUE["channel_all_bank"]
    return relax.where(is_channel, channel, relax.maximum(channel, ticks))


def _select(choices, selector):
    value = choices[-1][1]
    for number, candidate in choices[:-1]:
        value = jnp.where(selector == number, candidate, value)
    return value
