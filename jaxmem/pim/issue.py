"""Instructions as they are issued: masks, operands, and where the blocks that they touch lie.

What `commands` is written in. One layer, all its heads: heads of a round do the same at once, each
in its own channel group.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from jaxmem.pim import address
from jaxmem.pim.address import CHANNEL, COLUMN, ROW, Map
from jaxmem.pim.granule import granule_blocks, layers
from jaxmem.pim.placement import Placement
from jaxmem.pim.policy import V_WRITE, WRITE_ISSUE

_AHEAD_CYCLES = 8.0  # of leads from 0 to 24, least time on the engine over a few samples
_WRITE_CYCLES = (
    "n_rcd_wr",
    "n_cwl",
    "n_bl",
    "n_wr",
    "n_rp",
    "n_ccd",
)  # of a row written and closed
QUERY, SCORE, KEY, VALUE, COPY = "query", "score", "key", "value", "copy"


class Operand(NamedTuple):
    """What an instruction reads or writes besides the banks.

    Attributes:
        kind: query or score (global buffer), score or value (accumulators), key, value or copy.
        request: of the placement.
        query: query head of the KV head, or -1.
        turn: round of heads; channel group G serves head turn * n_group + G.
        piece: what, by channel of the group. Query: bursts of the query, one a column. Score, to
            the buffer: bursts of the scores; from the accumulators: (block, group of tokens).
            Value, from the accumulators: its subblock; to a bank: (subblock, first token, past
            the last), of the sequence. Key: (token, burst). Copy: (subblock, burst, bank).
    """

    kind: str
    request: int
    query: int
    turn: int
    piece: Mapping[int, Any]


class Run(NamedTuple):
    """Value blocks in consecutive columns of the same rows, class by class of channels."""

    row_set: int
    row: int  # digit of the row that is left to blocks
    column: int  # the same of the column: where the run begins
    blocks: dict[int, list[int]]  # by class of channels, in the order of columns


class Issuer:
    """Instructions of one layer, as they are issued, and where its blocks lie."""

    def __init__(self, design: Any, placement: Placement, layer: int):
        self.m: Map = address.concrete(design)
        self.p = {name: np.asarray(v) for name, v in vars(placement).items()}
        self.layer, self.issue = layer, int(design.policy.write_issue)
        shape, _ = layers(design)
        self.n_query = round(float(shape.n_query))
        self.piece_bursts = int(design.policy.gb_piece_bursts)
        self.granule = int(granule_blocks(design, shape))
        self.merges = int(design.policy.merges_adjacent) > 0
        interleave = int(self.m.block_extent[CHANNEL])
        self.run_columns = max(int(min(design.policy.run_max_blocks, 2**30)) // interleave, 1)
        self.has_zone = int(design.policy.v_write) == V_WRITE["commit_zone"]
        self.is_burst, self.is_bulk = (
            int(design.policy.v_write) == V_WRITE[name] for name in ("burst", "bulk")
        )
        self.timing = design.device.timing
        self.instructions: list[tuple[str, dict[str, int]]] = []
        self.operands: list[Operand] = []

    # What is where ------------------------------------------------------------------------------

    @property
    def requests(self) -> Iterator[int]:
        return (int(i) for i in np.flatnonzero(self.p["n_token"] > 0))

    def keys(self, request: int, blocks: Iterable[int]) -> dict[tuple[int, int], dict[int, int]]:
        """Block by channel, by first row and burst, in their order."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for b in blocks:
            row_set, index = self.p["row_set"][request, b], self.p["index"][request, b]
            channel, row, burst = (int(x) for x in address.key_block(self.m, row_set, index))
            found.setdefault((row, burst), {})[channel] = b
        return dict(sorted(found.items()))

    def values(self, request: int, blocks: Iterable[int]) -> list[Run]:
        """Maximal runs of blocks; those of several classes from one column on are one."""
        m, at = self.m, {}
        for b in blocks:
            row_set, index = self.p["row_set"][request, b], self.p["index"][request, b]
            digit = [int(index // m.block_stride[d] % m.block_extent[d]) for d in range(3)]
            place = (digit[CHANNEL], int(row_set), digit[ROW], digit[COLUMN])
            at[place] = (b, int(index) // self.granule)
        runs: dict[tuple[int, ...], dict[int, list[int]]] = {}
        last: tuple[tuple[int, ...], int] = ((), -1)
        start: tuple[int, ...] = ()
        for place, (b, granule) in sorted(at.items()):
            kind, *where, column = place
            is_next = last[0] == (kind, *where, column - 1) and int(m.taken[COLUMN]) == 1
            is_next = is_next and (self.merges or last[1] == granule)
            if not is_next or len(runs[start][kind]) == self.run_columns:
                start = (*where, column)
            runs.setdefault(start, {}).setdefault(kind, []).append(b)
            last = (place, granule)
        return [Run(*start, by_class) for start, by_class in sorted(runs.items())]

    def cells(self, run: Run) -> dict[int, dict[tuple[int, int], dict[int, int]]]:
        """Subblock by channel, by row and column of a Value block, by class of a run."""
        home = run.row_set % int(self.m.n_home)
        return {kind: self.of_class(kind, home) for kind in run.blocks}

    def of_class(self, kind: int, home: int) -> dict[tuple[int, int], dict[int, int]]:
        m, found = self.m, {}
        for q in range(int(m.n_subblock)):
            part = [int(q // m.subblock_stride[d] % m.taken[d]) for d in range(3)]
            channel = part[CHANNEL] + int(m.taken[CHANNEL]) * kind + home
            found.setdefault((part[ROW], part[COLUMN]), {})[channel] = q
        return dict(sorted(found.items()))

    def slot(self, row: int, slot: int) -> dict[tuple[int, int], dict[int, int]]:
        """Subblock by channel, by row and first burst of a Commit Zone slot."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        for q in range(int(self.m.n_subblock)):
            channel, at, burst = (int(x) for x in address.zone_subblock(self.m, row, slot, q))
            found.setdefault((at, burst), {})[channel] = q
        return found

    def place(self, request: int, block: int) -> dict[tuple[int, int], dict[int, int]]:
        """The same of a block in its row set."""
        found: dict[tuple[int, int], dict[int, int]] = {}
        row_set, index = self.p["row_set"][request, block], self.p["index"][request, block]
        for q in range(int(self.m.n_subblock)):
            at = address.value_subblock(self.m, row_set, index, q)
            channel, row, burst = (int(x) for x in at)
            found.setdefault((row, burst), {})[channel] = q
        return dict(sorted(found.items()))

    # Issue --------------------------------------------------------------------------------------

    def groups(self, turn: int) -> range:
        """Channel groups at work in a round."""
        m = self.m
        return range(min(int(m.n_group), int(m.n_kv) - turn * int(m.n_group)))

    def mask(self, channels: Iterable[int], groups: Iterable[int]) -> int:
        c = int(self.m.ch_per_head)
        chosen = list(channels)
        return sum(1 << (31 - (g * c + channel)) for g in groups for channel in chosen)

    def emit(self, name: str, mask: int, turn: int, row: int = -1, **given: int) -> None:
        first = self.layer * int(self.m.rows_layer) + turn * int(self.m.rows_round)
        self.instructions.append((name, {"mask": mask, "row": first + row, **given}))

    def operand(self, kind: str, request: int, query: int, turn: int, piece: Any) -> int:
        self.operands.append(Operand(kind, request, query, turn, piece))
        return len(self.operands) - 1

    def masks(self, channels: Iterable[int], turn: int) -> list[int]:
        """One mask where an instruction carries each channel's data, else one a channel."""
        chosen = list(channels)
        if self.issue == WRITE_ISSUE["channel_all_bank"]:
            return [self.mask(chosen, self.groups(turn))]
        return [self.mask([channel], [g]) for g in self.groups(turn) for channel in chosen]

    def single(self, name: str, number: int, turn: int, row: int, bank: int, column: int) -> None:
        """A single-bank read or write of an operand's channels."""
        for mask in self.masks(self.operands[number].piece, turn):
            self.emit(name, mask, turn, row, bank=bank, gpr=number, tag=column)

    def buffer(self, kind: str, request: int, query: int, turn: int, parts: Any) -> None:
        """WRGB of (channels, first column, bursts), every head its own, in pieces."""
        size = self.piece_bursts
        for channels, column, bursts in parts:
            for start in range(0, len(bursts), size):
                piece = list(bursts[start : start + size])
                of = dict.fromkeys(channels, piece)
                number = self.operand(kind, request, query, turn, of)
                for g in self.groups(turn):
                    mask = self.mask(channels, [g])
                    self.emit("WR_GB", mask, turn, n=len(piece), gpr=number, tag=column + start)

    def in_turn(self, waiting: dict[tuple[int, int], list[Any]]) -> Iterator[Any]:
        """Visits to rows, in the order in which they are issued.

        A bank that must open another row waits for the last to recover, and others write meanwhile:
        of the banks that may, first the one with most to come. Their time is that of the decoder,
        of the channel's data and of the bank's rows. Where rows and not data take longest, a
        visit is issued `_AHEAD_CYCLES` before its bank may open its row, to be there in time.

        Args:
            waiting: by channel of the group and bank, (what it is, vectors written) in its order.
        """
        t = {name: float(np.nan_to_num(getattr(self.timing, name))) for name in _WRITE_CYCLES}
        burst, row = t["n_ccd"], sum(t.values()) - t["n_ccd"]
        tick = 1 if self.issue == WRITE_ISSUE["channel_all_bank"] else len(self.groups(0))
        n_of = {bank: sum(len(v) for _, v in visits) for bank, visits in waiting.items()}
        g = int(self.m.key_bursts)
        # By channel: whether its data takes longer than the rows of its fullest bank.
        ahead = {}
        for channel in {bank[0] for bank in waiting}:
            mine = [bank for bank in waiting if bank[0] == channel]
            data = burst * g * sum(n_of[bank] for bank in mine)
            rows = max((row + burst * (g - 1)) * (len(waiting[bank]) - 1) for bank in mine)
            ahead[channel] = 0.0 if data > rows + burst * g else _AHEAD_CYCLES
        left = {bank: list(visits) for bank, visits in waiting.items()}
        free, data, decoder = dict.fromkeys(left, 0.0), dict.fromkeys(ahead, 0.0), 0.0
        while left:
            at = {k: max(free[k] - ahead[k[0]], data[k[0]], decoder) for k in left}
            now = min(at.values())
            ready = (bank for bank in left if at[bank] == now)
            bank = min(ready, key=lambda k: (-len(left[k]), data[k[0]], k))
            visit, channel = left[bank].pop(0), bank[0]
            n = g * len(visit[1])
            decoder = now + tick * n
            begin = max(now, free[bank])
            data[channel] = begin + burst * n
            free[bank] = begin + burst * (n - 1) + row
            if not left[bank]:
                del left[bank]
            yield visit
