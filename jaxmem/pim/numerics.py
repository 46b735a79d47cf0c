"""What a stream computes: its instructions carried out on a memory, burst by burst, in order.

The memory is [channel, bank, row, burst, element]. Writes put a step's Keys and Values in the
banks, MACs multiply what the global buffer and the rows hold, and between QK and SV the host takes
the softmax. So a placement is right if attention over it is attention. Left to a device: rounding
inside a MAC is that of the accumulator's type, element by element in a burst's order.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.pim import address, commands, isa, issue
from jaxmem.pim.address import Map
from jaxmem.pim.commands import Program
from jaxmem.pim.issue import Operand
from jaxmem.pim.placement import Placement

_WRITES = ("WR_SBK", "WR_ABK", "WR_ABK_MASK", "WR_ABK_OPEN", "W_MEM")


class Tokens(NamedTuple):
    """What the host holds for the requests of a step.

    Attributes:
        query: [request, kv head, query, element], scaled by 1/sqrt(element).
        key: [request, token, kv head, element]
        value: [request, token, kv head, element]
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray


def memory(design: Any, dtype: Any = jnp.bfloat16, fill: float = np.nan) -> np.ndarray:
    """A memory of the device's organisation; what was never written is `fill`.

    Raises:
        InputError: it would take more than a gibibyte (a device for this has few rows).
    """
    m, device = address.concrete(design), design.device
    shape = tuple(
        int(n) for n in (m.n_channel, m.n_bank, device.n_row, m.row_bursts, m.burst_elements)
    )
    if np.prod(shape) > 2**29:
        raise InputError("device.n_row", shape[2], "a memory of at most 2**29 elements")
    return np.full(shape, fill, dtype)


def execute(
    design: Any,
    placement: Placement,
    program: Program,
    tokens: Tokens,
    banks: np.ndarray,
    *,
    accumulate: Any = np.float32,
) -> np.ndarray:
    """Carry out a program; writes change `banks`.

    Args:
        design: a concrete `pim.Design`.
        placement: what the program was made for.
        program: of `commands.program`; its stream may have been altered.
        tokens: queries, Keys and Values.
        banks: [channel, bank, row, burst, element]
        accumulate: type of the accumulators.

    Returns:
        [request, kv head, query, element] outputs; NaN where the program computes none.

    Example:
        >>> from jaxmem.pim import layout
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> p = layout.program(d, layout.contiguous(d, [40]))
        >>> len(p.operands) > 0
        True
    """
    return _Machine(design, placement, tokens, banks, accumulate).run(program)


class _Machine:
    def __init__(self, design, placement, tokens, banks, accumulate):
        self.m: Map = address.concrete(design)
        self.n_token = np.asarray(placement.n_token)
        self.tokens, self.banks, self.type = tokens, banks, np.dtype(accumulate)
        self.dtype = banks.dtype
        m = self.m
        n_request, n_kv, n_query, n_element = tokens.query.shape
        n_column = int(m.row_bursts)
        self.buffer = np.full((int(m.n_channel), n_column, int(m.burst_elements)), 0, self.dtype)
        self.sum = np.zeros((int(m.n_channel), int(m.n_bank)), self.type)
        size = int(m.block_tokens)
        longest = -(-int(self.n_token.max(initial=1)) // size) * size
        self.score = np.full((n_request, n_kv, n_query, longest), -np.inf, np.float32)
        self.weight: dict[int, np.ndarray] = {}
        self.output = np.full((n_request, n_kv, n_query, n_element), np.nan, np.float32)
        self.is_begun = np.zeros((n_request, n_kv, n_query, int(m.n_subblock)), bool)
        self.copies: dict[tuple, np.ndarray] = {}

    def run(self, program: Program) -> np.ndarray:
        s = program.stream
        columns = (s.op, s.channel_mask, s.bank, s.row, s.n_burst, s.write_tag, s.register)
        for op, mask, bank, row, n, column, number in zip(*map(np.asarray, columns), strict=True):
            name = isa.OPS[int(op)].name
            channels = [c for c in range(int(self.m.n_channel)) if mask >> np.uint32(31 - c) & 1]
            operand = program.operands[number] if number >= 0 else None
            for channel in channels:
                self.one(name, channel, int(bank), int(row), int(n), int(column), operand)
        return self.output

    def one(self, name, channel, bank, row, n, column, operand):
        if name == "WR_BIAS":
            self.sum[channel] = 0
        elif name == "MAC_ABK":
            a = self.buffer[channel, column : column + n].astype(self.type)
            b = self.banks[channel, :, row, column : column + n].astype(self.type)
            product = (b * a[None]).reshape(len(b), -1)
            # Products are added one after another, as the accumulators' type rounds them.
            terms = np.concatenate([self.sum[channel][:, None], product], axis=1)
            self.sum[channel] = np.add.accumulate(terms, axis=1)[:, -1]
        elif operand is None:
            return
        elif name == "WR_GB":
            here = self.load(operand, channel, n)
            self.buffer[channel, column : column + n] = here
        elif name == "RD_MAC":
            self.result(operand, channel)
        elif name == "RD_SBK":
            piece = operand.piece[self.local(channel)]
            self.copies[self.copy(operand, channel, piece)] = np.array(
                self.banks[channel, bank, row, column]
            )
        elif name in _WRITES:
            self.write(operand, channel, bank, row, column)

    def local(self, channel):
        return channel % int(self.m.ch_per_head)

    def head(self, operand, channel):
        return operand.turn * int(self.m.n_group) + channel // int(self.m.ch_per_head)

    def copy(self, operand, channel, piece):
        return (operand.request, self.head(operand, channel), *piece)

    def load(self, o: Operand, channel, n):
        """Bursts that WRGB brings: a query's, or scores after the softmax."""
        head, lanes = self.head(o, channel), int(self.m.burst_elements)
        bursts = o.piece[self.local(channel)][:n]
        if o.kind == issue.QUERY:
            whole = self.tokens.query[o.request, head, o.query]
        else:
            whole = self.softmax(o.request)[head, o.query]
        padded = np.zeros(-(-len(whole) // lanes) * lanes + lanes, self.dtype)
        padded[: len(whole)] = whole
        return padded[: len(padded) // lanes * lanes].reshape(-1, lanes)[bursts]

    def softmax(self, request):
        """Weights of a request's tokens; those beyond its context weigh nothing."""
        if request not in self.weight:
            score = self.score[request]
            is_token = np.arange(score.shape[-1]) < self.n_token[request]
            score = np.where(is_token, score, -np.inf)
            weight = np.exp(score - score.max(-1, keepdims=True))
            self.weight[request] = weight / weight.sum(-1, keepdims=True)
        return self.weight[request]

    def result(self, o: Operand, channel):
        m, head = self.m, self.head(o, channel)
        n_bank, found = int(m.n_bank), self.sum[channel].astype(np.float32)
        piece = o.piece[self.local(channel)]
        if o.kind == issue.SCORE:
            block, group = piece
            first = block * int(m.block_tokens) + group * n_bank
            self.score[o.request, head, o.query, first : first + n_bank] = found
            return
        out = self.output[o.request, head, o.query]
        first = piece * n_bank
        width = min(n_bank, len(out) - first)
        # The host adds the partial sums of runs.
        is_begun = self.is_begun[o.request, head, o.query, piece]
        before = out[first : first + width] if is_begun else 0
        out[first : first + width] = before + found[:width]
        self.is_begun[o.request, head, o.query, piece] = True

    def write(self, o: Operand, channel, bank, row, column):
        m, head = self.m, self.head(o, channel)
        piece, lanes, n_bank = o.piece[self.local(channel)], int(m.burst_elements), int(m.n_bank)
        if o.kind == issue.COPY:
            self.banks[channel, bank, row, column] = self.copies[self.copy(o, channel, piece)]
        elif o.kind == issue.KEY:
            token, burst = piece
            whole = self.tokens.key[o.request, token, head]
            part = whole[burst * lanes : (burst + 1) * lanes]
            # Elements beyond the head are written as zeros: the query has zeros there too.
            self.banks[channel, bank, row, column] = 0
            self.banks[channel, bank, row, column, : len(part)] = part
        else:
            subblock, first, past = piece
            for b in range(n_bank) if bank < 0 else (bank,):
                element = subblock * n_bank + b
                is_one = element < int(m.head_dim)
                for token in range(first, past):
                    at = token % int(m.block_tokens) % lanes
                    value = self.tokens.value[o.request, token, head, element] if is_one else 0
                    self.banks[channel, b, row, column, at] = value


def clear(design: Any, placement: Placement, banks: np.ndarray, layer: int = 0) -> None:
    """Zero the Value lanes that a step reads and no token has: each partial block's.

    A weight of zero times NaN is NaN, and DRAM holds anything: a runtime zeroes a slot when it
    allocates it (the paper is silent). Zeroed again, unwritten lanes are still zero.
    """
    m, p = address.concrete(design), placement
    size = int(m.block_tokens)
    element = np.arange(int(m.n_subblock) * int(m.n_bank))[None]
    for request in np.flatnonzero(np.asarray(p.n_token) > 0):
        for row, slot, past in _partial(p, request, size):
            token = np.arange(past, size)[:, None]
            for head in range(int(m.n_kv)):
                if row >= 0:
                    cell = address.zone_cell(m, layer, head, row, slot, token, element)
                else:
                    block = int(p.n_token[request]) // size
                    row_set, index = p.row_set[request, block], p.index[request, block]
                    cell = address.value_cell(m, layer, head, row_set, index, token, element)
                banks[tuple(np.broadcast_arrays(*cell))] = 0


def _partial(p: Placement, request: Any, size: int) -> list[tuple[int, int, int]]:
    """Zone row (-1 for none), slot and tokens of the partial block."""
    past = int(p.n_token[request]) % size
    return [(int(p.zone_row[request]), int(p.zone_slot[request]), past)] if past else []


def attend(
    design: Any,
    placement: Placement,
    tokens: Tokens,
    *,
    dtype: Any = jnp.bfloat16,
    accumulate: Any = np.float32,
    alter: Any = None,
    fill: float = np.nan,
) -> np.ndarray:
    """Write a whole context into an empty memory, then attend over it.

    Args:
        design: a concrete `pim.Design`.
        placement: with the blocks of every request; what its step would write is written too.
        tokens: queries, Keys and Values.
        dtype: of the memory and the global buffer: bfloat16 or float16.
        accumulate: type of the accumulators.
        alter: what to do to the decode program before it runs, for tests.
        fill: what unwritten memory holds.

    Returns:
        [request, kv head, query, element] outputs.
    """
    banks = memory(design, dtype, fill)
    clear(design, placement, banks)
    before = history(design, placement)
    written = commands.program(design, before, ("prefill", "k_write", "v_write"))
    execute(design, before, written, tokens, banks, accumulate=accumulate)
    program = commands.program(design, placement)
    program = alter(program) if alter else program
    return execute(design, placement, program, tokens, banks, accumulate=accumulate)


def history(design: Any, placement: Placement) -> Placement:
    """The placement before its step, whose every token is yet to be written."""
    p: Mapping[str, Any] = {k: np.asarray(v) for k, v in vars(placement).items()}
    size = int(address.concrete(design).block_tokens)
    n_token = p["n_token"] - p["n_write"]
    is_block = np.arange(p["index"].shape[1])[None] < -(-n_token // size)[:, None]
    # What the step fills lies in its slot until then.
    leaves, is_partial = p["commit_row"] >= 0, n_token % size > 0

    def slot(name: str) -> np.ndarray:
        now = np.where(leaves, p["commit_" + name], p["zone_" + name])
        return np.where(is_partial, now, -1).astype(np.int32)

    return Placement(
        row_set=np.where(is_block, p["row_set"], -1).astype(np.int32),
        index=np.where(is_block, p["index"], -1).astype(np.int32),
        zone_row=slot("row"),
        zone_slot=slot("slot"),
        commit_row=np.full_like(p["commit_row"], -1),
        commit_slot=np.full_like(p["commit_slot"], -1),
        n_token=n_token.astype(np.int32),
        n_write=n_token.astype(np.int32),
    )
