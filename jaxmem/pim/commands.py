"""The commands of a step on a placement: writes, commits, QK and SV, burst by burst.

One layer, all its heads: heads of a round do the same at once, each in its own channel group. The
steps are those of research/patton.md sections 1 and 6.3. A MAC run breaks where the column is not
the next one, or where the head elements or the row change, under any order of placement. What an
instruction reads or writes is in the stream too: `write_tag` is its first column, `register` the
number of its operand.

Left to the device, because the public instruction set does not say: under `channel_all_bank` one
instruction carries each channel's own data (as if registers were per channel); a Commit Zone write
masks all but one element of a burst.
"""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from jaxmem.pim import address, isa
from jaxmem.pim.address import COLUMN, ROW
from jaxmem.pim.isa import Stream
from jaxmem.pim.issue import COPY, KEY, QUERY, SCORE, VALUE, Issuer, Operand, Run
from jaxmem.pim.placement import Placement
from jaxmem.pim.policy import WRITE_ISSUE

STEPS = ("prefill", "k_write", "v_write", "commit", "qk", "sv")
DECODE = STEPS[1:]


class Program(NamedTuple):
    """A stream and its operands."""

    stream: Stream
    operands: list[Operand]


def stream(
    design: Any, placement: Placement, step: str | Iterable[str] = DECODE, layer: int = 0
) -> Stream:
    """Commands of one or several steps, ending in EOC.

    Args:
        design: a concrete `pim.Design`.
        placement: concrete.
        step: of `STEPS`; by default those of a decode step, in order.
        layer: layer, of those with a KV cache.

    Source: research/patton.md sections 1, 5 and 6.3.

    Example:
        >>> import jaxmem as jm
        >>> from jaxmem.pim import layout
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> s = layout.stream(d, layout.contiguous(d, [2048]), "sv")
        >>> int(isa.load(s, d.device).n_step[0])  # 2 sets x 2 rows x 4 query heads
        16
    """
    return program(design, placement, step, layer).stream


def program(
    design: Any, placement: Placement, step: str | Iterable[str] = DECODE, layer: int = 0
) -> Program:
    """`stream`, with what its instructions read and write."""
    writer = Writer(design, placement, layer)
    for name in (step,) if isinstance(step, str) else step:
        getattr(writer, name)()
    return Program(isa.stream([*writer.instructions, ("EOC", {})]), writer.operands)


class Writer(Issuer):
    """Instructions of one layer, step by step."""

    # Attention ----------------------------------------------------------------------------------

    def n_block(self, request: int) -> int:
        return -(-int(self.p["n_token"][request]) // int(self.m.block_tokens))

    def qk(self) -> None:
        """Scores: the query at the offsets of its Key blocks, then a step a group of tokens."""
        m = self.m
        g, unit = int(m.key_bursts), int(m.key_unit_groups)
        for turn in range(int(m.n_round)):
            for request in self.requests:
                at = self.keys(request, range(self.n_block(request)))
                channels = sorted({c for of in at.values() for c in of})
                columns = sorted({b + i for _, b in at for i in range(unit * g)})
                parts = [
                    (channels, part[0], [column % g for column in part])
                    for part in _consecutive(columns)
                ]
                for query in range(self.n_query):
                    self.buffer(QUERY, request, query, turn, parts)
                    for (row, burst), block in at.items():
                        mask = self.mask(block, self.groups(turn))
                        for group in range(int(m.key_groups)):
                            piece = {c: (b, group) for c, b in block.items()}
                            number = self.operand(SCORE, request, query, turn, piece)
                            down, right = divmod(group, unit)
                            self.emit("WR_BIAS", mask, turn)
                            self.emit("MAC_ABK", mask, turn, row + down, n=g, tag=burst + right * g)
                            self.emit("RD_MAC", mask, turn, gpr=number)

    def sv(self) -> None:
        """Outputs: every run's scores, then a step a row; a partial block in its slot."""
        if self.is_burst:
            self.outer()
            return
        size = int(self.m.block_tokens)
        for turn in range(int(self.m.n_round)):
            for request in self.requests:
                row, slot = (int(self.p[k][request]) for k in ("zone_row", "zone_slot"))
                n_token = int(self.p["n_token"][request])
                n_block = n_token // size if row >= 0 else self.n_block(request)
                runs = self.values(request, range(n_block))
                for query in range(self.n_query):
                    for run in runs:
                        self.run(request, query, turn, run)
                    if row >= 0:
                        self.staged(request, query, turn, row, slot)

    def outer(self) -> None:
        """Outputs of Values that lie as Keys do: each bank adds up its tokens' vectors, scaled.

        An extension of the device (AttenPIM, L3): as many result registers a bank as a vector has
        bursts, each read out in a step of its own, and added over the banks by the host.
        """
        m = self.m
        g, unit, r = int(m.key_bursts), int(m.key_unit_groups), int(m.value_rows)
        for turn in range(int(m.n_round)):
            for request in self.requests:
                at = self.keys(request, range(self.n_block(request)))
                channels = sorted({c for of in at.values() for c in of})
                mask = self.mask(channels, self.groups(turn))
                for query in range(self.n_query):
                    for (_, burst), block in at.items():
                        for group in range(int(m.key_groups)):
                            here = {c: [b * int(m.key_groups) + group] for c, b in block.items()}
                            number = self.operand(SCORE, request, query, turn, here)
                            for head in self.groups(turn):
                                of = self.mask(block, [head])
                                self.emit("WR_GB", of, turn, n=1, gpr=number, tag=burst)
                    self.emit("WR_BIAS", mask, turn)
                    for (row, burst), block in at.items():
                        here = self.mask(block, self.groups(turn))
                        for group in range(int(m.key_groups)):
                            down, right = divmod(group, unit)
                            tag = burst + right * g
                            self.emit("MAC_OUTER", here, turn, row + r + down, n=g, tag=tag)
                    for i in range(g):
                        if i:
                            self.emit("WR_BIAS", mask, turn)
                        piece = dict.fromkeys(channels, i)
                        number = self.operand(VALUE, request, query, turn, piece)
                        self.emit("RD_MAC", mask, turn, gpr=number)

    def run(self, request: int, query: int, turn: int, run: Run) -> None:
        m = self.m
        v, wide = int(m.value_bursts), int(m.taken[COLUMN])
        first = wide * run.column * v
        cells = self.cells(run)
        parts = []
        for kind, blocks in run.blocks.items():
            channels = sorted({c for of in cells[kind].values() for c in of})
            bursts = [b * v + i for b in blocks for _ in range(wide) for i in range(v)]
            parts.append((channels, first, bursts))
        self.buffer(SCORE, request, query, turn, parts)
        base = self.base(run)
        groups = self.groups(turn)
        for row, column in cells[next(iter(cells))]:
            of = {kind: cells[kind][row, column] for kind in cells}
            piece = {c: q for here in of.values() for c, q in here.items()}
            mask = self.mask(piece, groups)
            self.emit("WR_BIAS", mask, turn)
            done = 0
            for length in sorted({len(blocks) for blocks in run.blocks.values()}):
                still = [c for k, b in run.blocks.items() if len(b) >= length for c in of[k]]
                self.emit(
                    "MAC_ABK", self.mask(still, groups), turn, base + row,
                    n=(length - done) * v, tag=first + (column + done) * v,
                )  # fmt: skip
                done = length
            number = self.operand(VALUE, request, query, turn, piece)
            self.emit("RD_MAC", mask, turn, gpr=number)

    def base(self, run: Run) -> int:
        """First row of a run."""
        m = self.m
        first = (2 * (run.row_set // int(m.n_home)) + 1) * int(m.value_rows)
        return first + int(m.taken[ROW]) * run.row

    def staged(self, request: int, query: int, turn: int, row: int, slot: int) -> None:
        v = int(self.m.value_bursts)
        cells = self.slot(row, slot)
        block = int(self.p["n_token"][request]) // int(self.m.block_tokens)
        channels = sorted({c for of in cells.values() for c in of})
        bursts = [block * v + i for _ in range(int(self.m.value_rows)) for i in range(v)]
        parts = [(channels, min(burst for _, burst in cells), bursts)]
        self.buffer(SCORE, request, query, turn, parts)
        for (at, burst), piece in cells.items():
            mask = self.mask(piece, self.groups(turn))
            number = self.operand(VALUE, request, query, turn, piece)
            self.emit("WR_BIAS", mask, turn)
            self.emit("MAC_ABK", mask, turn, at, n=v, tag=burst)
            self.emit("RD_MAC", mask, turn, gpr=number)

    # Writes -------------------------------------------------------------------------------------

    def written(self, request: int) -> tuple[int, int]:
        """First token that the step writes, and past the last."""
        last = int(self.p["n_token"][request])
        return last - int(self.p["n_write"][request]), last

    def k_write(self) -> None:
        """Decode: one token's Key, bursts side by side in one bank of one channel."""
        self.one_token(KEY)

    def one_token(self, kind: str) -> None:
        """A vector a request and round, each to one bank, in an order that hides changes of rows.

        Vectors of one row of a bank follow one another.
        """
        m, size = self.m, int(self.m.block_tokens)
        banks: dict[tuple[int, int], dict[tuple[int, int], list[tuple[int, int]]]] = {}
        for turn in range(int(m.n_round)):
            for request in self.requests:
                if int(self.p["n_write"][request]) != 1:
                    continue
                token = self.written(request)[0]
                at = (self.p[name][request, token // size] for name in ("row_set", "index"))
                channel, row, _ = (int(x) for x in address.key_block(m, *at))
                group, bank = divmod(token % size, int(m.n_bank))
                row += group // int(m.key_unit_groups)
                visits = banks.setdefault((channel, bank), {})
                visits.setdefault((turn, row), []).append((request, token))
        waiting = {bank: list(visits.items()) for bank, visits in banks.items()}
        for (turn, _), written in self.in_turn(waiting):
            for request, token in written:
                self.key(request, turn, [token // size], token, token + 1, kind)

    def key(
        self, request: int, turn: int, blocks: Iterable[int], first: int, past: int, kind: str = KEY
    ) -> None:
        """Vectors of the tokens from `first` on, each in one bank, burst by burst."""
        m = self.m
        lower = int(m.value_rows) if kind == VALUE else 0
        size, n_bank, unit = int(m.block_tokens), int(m.n_bank), int(m.key_unit_groups)
        g = int(m.key_bursts)
        for (row, burst), block in self.keys(request, blocks).items():
            for token in range(size):
                of = {c: b * size + token for c, b in block.items()}
                of = {c: t for c, t in of.items() if first <= t < past}
                if not of:
                    continue
                group, bank = divmod(token, n_bank)
                down, right = divmod(group, unit)
                for i in range(g):
                    piece = {c: (t, i) for c, t in of.items()}
                    number = self.operand(kind, request, -1, turn, piece)
                    column = burst + right * g + i
                    self.single("WR_SBK", number, turn, row + lower + down, bank, column)

    def v_write(self) -> None:
        """Decode: one token's Value, in the order of Commit Zone rows."""
        if self.is_burst or self.is_bulk:
            (self.vectors if self.is_burst else self.bulk)()
            return
        m, p = self.m, self.p
        size = int(m.block_tokens)
        found = []
        for request in self.requests:
            if int(p["n_write"][request]) == 1:
                token = self.written(request)[0]
                row, slot = self.stage(request)
                cells = self.slot(row, slot) if row >= 0 else self.place(request, token // size)
                rank = (row, slot) if row >= 0 else (2**30, request)
                found.append((rank, request, token, row >= 0, cells))
        for turn in range(int(m.n_round)):
            for _, request, token, is_zone, cells in sorted(found, key=lambda x: x[0]):
                for (row, burst), q in cells.items():
                    piece = {c: (i, token, token + 1) for c, i in q.items()}
                    number = self.operand(VALUE, request, -1, turn, piece)
                    column = burst + token % size // int(m.burst_elements)
                    self.element(number, turn, row, column, is_zone)

    def vectors(self) -> None:
        """Decode: one token's Value where it lies as a Key does."""
        self.one_token(VALUE)

    def bulk(self) -> None:
        """Decode in lock-step: the batch's Values side by side, as one copy of whole bursts."""
        m = self.m
        c = int(m.ch_per_head)
        written = [i for i in self.requests if int(self.p["n_write"][i]) == 1]
        n = -(-len(written) * int(m.key_bursts) // (int(m.n_bank) * c))
        for turn in range(int(m.n_round) if written else 0):
            mask = self.mask(range(c), self.groups(turn))
            for row in range(-(-n // int(m.row_bursts))):
                first = row * int(m.row_bursts)
                number = self.operand(VALUE, written[0], -1, turn, dict.fromkeys(range(c), first))
                given = {"n": min(n - first, int(m.row_bursts)), "gpr": number, "tag": 0}
                self.emit("WR_ABK_OPEN", mask, turn, int(m.value_rows) + row, **given)

    def stage(self, request: int) -> tuple[int, int]:
        """Commit Zone row and slot that a decoded token goes to."""
        which = "commit" if self.p["commit_row"][request] >= 0 else "zone"
        return int(self.p[which + "_row"][request]), int(self.p[which + "_slot"][request])

    def element(self, number: int, turn: int, row: int, column: int, is_zone: bool) -> None:
        """One element a bank, with the commands that the policy issues."""
        issue, piece = self.issue, self.operands[number].piece
        given = {"gpr": number, "tag": column}
        if has_single_banks(issue, is_zone):
            for bank in range(int(self.m.n_bank)):
                for mask in self.masks(piece, turn):
                    self.tick()
                    self.emit("WR_SBK", mask, turn, row, bank=bank, **given)
            return
        name = "WR_ABK" if issue == WRITE_ISSUE["stock_all_bank"] else "WR_ABK_MASK"
        for mask in self.masks(piece, turn):
            self.tick()
            self.emit(name, mask, turn, row, **given)

    def tick(self) -> None:
        if self.issue == WRITE_ISSUE["mixed_decoder_gpr"]:
            self.instructions.append(("W_GPR", {}))

    def commit(self) -> None:
        """Filled slots to their blocks' own places: read bank by bank, then written."""
        m, p = self.m, self.p
        n_bank, v = int(m.n_bank), int(m.value_bursts)
        for turn in range(int(m.n_round)):
            for request in self.requests:
                row, slot = int(p["commit_row"][request]), int(p["commit_slot"][request])
                if row < 0:
                    continue
                block = self.written(request)[0] // int(m.block_tokens)
                cells = self.place(request, block)
                for name, at in (("RD_SBK", self.slot(row, slot)), ("WR_SBK", cells)):
                    for (to, burst), q in at.items():
                        for i in range(v):
                            for bank in range(n_bank):
                                piece = {c: (x, i, bank) for c, x in q.items()}
                                number = self.operand(COPY, request, -1, turn, piece)
                                self.single(name, number, turn, to, bank, burst + i)
                    if name == "RD_SBK":
                        self.instructions.append(("SYNC", {}))

    def prefill(self) -> None:
        """Several tokens of a request at once: whole bursts, bank by bank."""
        m, p = self.m, self.p
        size = int(m.block_tokens)
        for turn in range(int(m.n_round)):
            for request in self.requests:
                if int(p["n_write"][request]) <= 1:
                    continue
                first, past = self.written(request)
                blocks = range(first // size, -(-past // size))
                self.key(request, turn, blocks, first, past)
                if self.is_burst:
                    self.key(request, turn, blocks, first, past, VALUE)
                    continue
                staged = {}
                if p["commit_row"][request] >= 0:
                    staged[blocks[0]] = (p["commit_row"][request], p["commit_slot"][request])
                if p["zone_row"][request] >= 0:
                    staged[past // size] = (p["zone_row"][request], p["zone_slot"][request])
                for run in self.values(request, [b for b in blocks if b not in staged]):
                    self.fill(request, turn, run, first, past)
                for block, (row, slot) in staged.items():
                    found: dict[int, list[tuple[int, Any]]] = {}
                    for (at, burst), q in self.slot(int(row), int(slot)).items():
                        piece = {c: (block, i) for c, i in q.items()}
                        found.setdefault(at, []).extend(self.bursts(request, burst, piece))
                    for at, bursts in found.items():
                        self.bank_by_bank(request, turn, at, bursts)

    def fill(self, request: int, turn: int, run: Run, first: int, past: int) -> None:
        """A run of Value blocks, row by row."""
        m = self.m
        v, wide = int(m.value_bursts), int(m.taken[COLUMN])
        base, cells = self.base(run), self.cells(run)
        longest = max(len(blocks) for blocks in run.blocks.values())
        for row, column in cells[next(iter(cells))]:
            bursts = []
            for i in range(longest):
                here = [k for k, blocks in run.blocks.items() if i < len(blocks)]
                piece = {
                    c: (run.blocks[k][i], q) for k in here for c, q in cells[k][row, column].items()
                }
                burst = (wide * (run.column + i) + column) * v
                bursts += self.bursts(request, burst, piece)
            self.bank_by_bank(request, turn, base + row, bursts)

    def bursts(self, request: int, burst: int, piece: Any) -> Iterator[tuple[int, Any]]:
        """The written bursts of one subblock of (block, subblock) by channel, with their column."""
        m = self.m
        size, lanes = int(m.block_tokens), int(m.burst_elements)
        first, past = self.written(request)
        for i in range(int(m.value_bursts)):
            of = {}
            for c, (block, q) in piece.items():
                low = block * size + i * lanes
                low, high = max(low, first), min(low + lanes, past)
                if low < high:
                    of[c] = (q, low, high)
            if of:
                yield burst + i, of

    def bank_by_bank(self, request: int, turn: int, row: int, bursts: Iterable[Any]) -> None:
        """Bursts of one row, one bank after another, so that the next row opens meanwhile."""
        for bank in range(int(self.m.n_bank)):
            for burst, of in bursts:
                number = self.operand(VALUE, request, -1, turn, of)
                self.single("WR_SBK", number, turn, row, bank, burst)


def has_single_banks(issue: Any, is_zone: Any) -> Any:
    """Whether a decoded token's Value is written bank by bank (research/patton.md 6.3)."""
    mixed = (issue == WRITE_ISSUE["mixed_decoder"]) | (issue == WRITE_ISSUE["mixed_decoder_gpr"])
    return (issue == WRITE_ISSUE["stock_single_bank"]) | (mixed & (is_zone == 0))


def _consecutive(columns: list[int]) -> list[list[int]]:
    """Columns in runs of consecutive ones."""
    runs: list[list[int]] = []
    for column in columns:
        if not runs or runs[-1][-1] != column - 1:
            runs.append([])
        runs[-1].append(column)
    return runs
