"""The two currencies of PIM execution: a stream of commands, and the load it puts on a channel.

AiM's instruction set as research/aim.md section 2 documents it, with the extensions that policies
of the literature need. A placement yields either: the stream feeds the exact engine and the
numerics, the load feeds the closed form, and the load of a placement's stream is the placement's
load. Files of instructions are `jaxmem.pim.trace_form`'s business.
"""

from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmem.core.design import Leaf, leaf, record


@record
class Stream:
    """Commands in issue order, as a struct of arrays [n]."""

    op: Leaf = leaf("command code")  # [n] int32
    channel_mask: Leaf = leaf("channels addressed; bit 31-c selects channel c")  # [n] uint32
    bank: Leaf = leaf("bank, 0..15; ignored by all-bank commands")  # [n] int32
    row: Leaf = leaf("DRAM row")  # [n] int32
    n_burst: Leaf = leaf("bursts that the command covers", unit="bursts")  # [n] int32
    write_tag: Leaf = leaf("first column read or written, -1 for none")  # [n] int32
    register: Leaf = leaf("GPR or CFR id, -1 for none; of no consequence to time", default=-1)
    value: Leaf = leaf("what W_CFR stores, or EWADD's second GPR; -1 for none", default=-1)


@record
class Load:
    """What one channel executes; counts, so that loads add.

    A step is one WRBIAS, MACAB..., RDMAC sequence.
    """

    n_gb: Leaf = leaf("bursts written to the global buffer (WRGB)", unit="bursts", default=0.0)
    n_step: Leaf = leaf("WRBIAS to RDMAC sequences", unit="steps", default=0.0)
    n_burst: Leaf = leaf("bursts multiplied in all banks (MACAB)", unit="bursts", default=0.0)
    n_miss: Leaf = leaf("steps whose first row was closed", unit="rows", default=0.0)
    n_extra_row: Leaf = leaf("rows changed inside steps", unit="rows", default=0.0)
    n_write: Leaf = leaf("write commands", unit="bursts", default=0.0)
    n_write_row: Leaf = leaf("of these, those that open their row", unit="rows", default=0.0)
    n_bank_row: Leaf = leaf("the same, of the bank that opens most", unit="rows", default=0.0)
    n_copy: Leaf = leaf("bursts read bank by bank to be copied", unit="bursts a bank", default=0.0)
    n_copy_row: Leaf = leaf("rows visited to read them, between SYNCs", unit="rows", default=0.0)


class Op(NamedTuple):
    """An instruction: the DRAM command it ends in, and what it needs."""

    name: str
    command: str = ""  # final DRAM command; "" for those the decoder alone executes
    text: tuple[str, ...] = ()  # operands after the name in the simulator's text trace
    is_all_bank: bool = False  # its row must be open in every bank
    is_one_bank: bool = False  # its row must be open in its bank
    is_register: bool = False  # runs in register mode
    is_blocking: bool = False  # the decoder waits for it
    is_ordinary: bool = False  # an ordinary read or write, scheduled out of order
    is_host: bool = False  # one tick of the decoder, no channel: irrelevant to cycles beyond that
    is_extension: bool = False  # not in the public instruction set


OPS = (
    Op("WR_GB", "WRGB", ("n", "gpr", "mask"), is_register=True),
    Op("WR_BIAS", "WRMAC16", ("gpr", "mask"), is_register=True),
    Op("RD_MAC", "RDMAC16", ("gpr", "mask"), is_register=True, is_blocking=True),
    Op("RD_AF", "RDAF16", ("gpr", "mask"), is_register=True, is_blocking=True),
    Op("MAC_ABK", "MAC16", ("n", "mask", "row"), is_all_bank=True),
    Op("MAC_SBK", "MAC", ("n", "mask", "bank", "row"), is_one_bank=True),
    Op("AF", "AF16", ("mask",), is_all_bank=True),
    Op("EWMUL", "EWMUL16", ("n", "mask", "row"), is_all_bank=True),
    Op("COPY_BKGB", "RDCP", ("n", "mask", "bank", "row"), is_one_bank=True),
    Op("COPY_GBBK", "WRCP", ("n", "mask", "bank", "row"), is_one_bank=True),
    Op("WR_ABK", "WRA16", ("gpr", "mask", "row"), is_all_bank=True),
    Op("WR_SBK", "WR", ("gpr", "mask", "bank", "row"), is_one_bank=True, is_ordinary=True),
    Op("RD_SBK", "RD", ("gpr", "mask", "bank", "row"), is_one_bank=True, is_ordinary=True),
    Op("W_MEM", "WR", ("ch", "bank", "row"), is_one_bank=True, is_ordinary=True),
    Op("R_MEM", "RD", ("ch", "bank", "row"), is_one_bank=True, is_ordinary=True),
    Op("SYNC", "", (), is_blocking=True),
    Op("EOC", "", (), is_blocking=True),
    Op("EWADD", "", ("n", "gpr", "gpr2"), is_host=True),
    Op("W_GPR", "", ("gpr",), is_host=True),
    Op("R_GPR", "", ("gpr",), is_host=True),
    Op("W_CFR", "", ("cfr", "data"), is_host=True),
    Op("R_CFR", "", ("cfr",), is_host=True),
    # Extensions: an all-bank write that leaves its row open, one that some banks sit out, and
    # the outer-product MAC of AttenPIM and L3. Each takes the time of the command it resembles.
    Op("WR_ABK_OPEN", "WRO16", ("n", "gpr", "mask", "row"), is_all_bank=True, is_extension=True),
    Op("WR_ABK_MASK", "WRK16", ("n", "gpr", "mask", "row"), is_all_bank=True, is_extension=True),
    Op("MAC_OUTER", "MACO16", ("n", "mask", "row"), is_all_bank=True, is_extension=True),
)
OP = {op.name: code for code, op in enumerate(OPS)}
MASK_BIT = 32  # channels that a channel mask can address
AF_ROW = 2**29  # pseudo row of the activation function's table; the mode (CFR 2) is added
AF_MODE_CFR = 2


def stream(instructions: list[tuple[str, dict[str, int]]]) -> Stream:
    """A stream of (name, operands) in issue order.

    Args:
        instructions: operands by name: mask, ch, bank, row, n, gpr, gpr2, cfr, data, tag; what an
            instruction does not take is ignored, what it lacks is 0 (n: 1, gpr and tag: -1).
            Nothing is checked; `trace_form.check` does.

    Example:
        >>> s = stream([("MAC_ABK", {"mask": 1 << 31, "row": 3, "n": 8}), ("EOC", {})])
        >>> s.n_burst.tolist(), s.row.tolist()
        ([8, 1], [3, -1])
    """
    rows = []
    for name, given in instructions:
        op = OPS[OP[name]]
        has_row = op.is_all_bank or op.is_one_bank
        mask = 1 << (31 - given["ch"]) if "ch" in op.text else given.get("mask", 0)
        rows.append(
            (
                OP[name],
                mask if op.command else 0,
                given.get("bank", 0) if op.is_one_bank else -1,
                given.get("row", 0) if has_row and name != "AF" else -1,
                given.get("n", 1) if "n" in op.text else 1,
                given.get("tag", -1),
                next((given[k] for k in ("cfr", "gpr") if k in op.text and k in given), -1),
                next((given[k] for k in ("data", "gpr2") if k in op.text and k in given), -1),
            )
        )
    columns = np.array(rows, np.int64).reshape(-1, 8).T
    op, mask, *rest = columns
    bank, row, n_burst, tag, register, value = (c.astype(np.int32) for c in rest)
    return Stream(
        op=op.astype(np.int32),
        channel_mask=mask.astype(np.uint32),
        bank=bank,
        row=row,
        n_burst=n_burst,
        write_tag=tag,
        register=register,
        value=value,
    )


def classes(s: Stream, n_channel: int) -> tuple[np.ndarray, np.ndarray]:
    """Channels that execute the same instructions, as one; SYNC and EOC address all.

    Returns:
        ([n, class] bool, [channel] class of each channel).
    """
    # Streams have many instructions and few masks.
    op = np.asarray(s.op)
    is_all = (op == OP["SYNC"]) | (op == OP["EOC"])
    mask = np.where(is_all, np.uint32(0xFFFFFFFF), np.asarray(s.channel_mask))
    distinct, which = np.unique(mask, return_inverse=True)
    shift = np.uint32(31) - np.arange(n_channel, dtype=np.uint32)
    chosen = (distinct[:, None] >> shift) & np.uint32(1) > 0
    _, first, inverse = np.unique(chosen, axis=1, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return chosen[which][:, first[order]], rank[inverse.ravel()]


def rows(s: Stream) -> np.ndarray:
    """[n] rows, with the pseudo row of the activation function's table where AF needs it."""
    op = np.asarray(s.op)
    sets = (op == OP["W_CFR"]) & (np.asarray(s.register) == AF_MODE_CFR)
    last = np.maximum.accumulate(np.where(sets, np.arange(len(op)), -1))
    mode = np.where(last >= 0, np.asarray(s.value)[last], 0)
    return np.where(op == OP["AF"], AF_ROW + mode, np.asarray(s.row)).astype(np.int32)


def load(s: Stream, device: Any) -> Load:
    """[channel] load of a stream: what the closed forms take.

    A row counts as opened where a channel's row command names another row than the one before it
    (in all banks, or in the command's bank).
    """
    n_channel = int(device.n_channel)
    part, which = classes(s, n_channel)
    n_bank = float(device.n_bank)
    each = [_class_load(s, part[:, k], n_bank) for k in range(part.shape[1])]
    return jax.tree.map(lambda *n: np.array(n, float)[which], *each)


def _class_load(s: Stream, chosen: np.ndarray, n_bank: float) -> Load:
    op, n = np.asarray(s.op)[chosen], np.asarray(s.n_burst)[chosen]
    row, bank = rows(s)[chosen], np.asarray(s.bank)[chosen]

    def total(*names: str) -> float:
        return float(n[np.isin(op, [OP[x] for x in names])].sum())

    mac = ("MAC_ABK", "MAC_OUTER")
    write = ("WR_SBK", "W_MEM", "WR_ABK", "WR_ABK_OPEN", "WR_ABK_MASK")
    is_mac = np.isin(op, [OP[x] for x in mac])
    is_write = np.isin(op, [OP[x] for x in write])
    opens = _opens(op, bank, row)
    # The first MAC of a step is the first after a WR_BIAS.
    step = np.cumsum(op == OP["WR_BIAS"])
    first = np.zeros(len(op), bool)
    if is_mac.any():
        first[np.flatnonzero(is_mac)[np.unique(step[is_mac], return_index=True)[1]]] = True
    opening = bank[opens & is_write]
    visit = np.stack([np.cumsum(op == OP["SYNC"]), row], axis=1)
    n_bank_row = (opening < 0).sum() + np.bincount(opening[opening >= 0], minlength=1).max()
    return Load(
        n_gb=total("WR_GB"),
        n_step=total("WR_BIAS"),
        n_burst=total(*mac),
        n_miss=float((opens & is_mac & first).sum()),
        n_extra_row=float((opens & is_mac & ~first).sum()),
        n_write=total(*write),
        n_write_row=float(len(opening)),
        n_bank_row=float(n_bank_row),
        n_copy=total("RD_SBK") / n_bank,
        n_copy_row=float(len(np.unique(visit[op == OP["RD_SBK"]], axis=0))),
    )


def _opens(op: np.ndarray, bank: np.ndarray, row: np.ndarray) -> np.ndarray:
    """[n] whether each command finds its row closed, the commands run one after another."""
    opened: dict[int, int] = {}  # row by bank; -1 stands for all the others
    closes = {OP["WR_ABK"]}
    found = np.zeros(len(op), bool)
    for i in np.flatnonzero(row >= 0):
        b, r = int(bank[i]), int(row[i])
        if b < 0:
            found[i] = any(x != r for x in opened.values()) or -1 not in opened
            opened = {} if op[i] in closes else {-1: r}
        else:
            found[i] = opened.get(b, opened.get(-1)) != r
            opened[b] = r
    return found


def scale(load: Load, times: Leaf) -> Load:
    """`load`, executed `times` times."""
    return jax.tree.map(lambda n: n * times, load)


def add(*loads: Load) -> Load:
    """Loads executed one after another."""
    return jax.tree.map(lambda *n: sum(n), *loads)
