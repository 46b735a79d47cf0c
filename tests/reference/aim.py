"""The AiM pipeline tick by tick, in plain Python: slow, obvious, and independent of jaxmem.

One decoder, 32 channel controllers, one DRAM command a channel and tick. Rules and numbers from
research/aim.md sections 2 and 3. `Rules` switches the artefacts of the public simulator.
"""

import dataclasses
import random

N_CHANNEL, N_BANK, QUEUE = 32, 16, 33
AF_ROW = 2**29
TIMING = {
    "n_bl": 2, "n_cl": 50, "n_rcd_rd": 36, "n_rcd_mac": 56, "n_rcd_ewmul": 25, "n_rcd_af": 86,
    "n_rcd_rdcp": 66, "n_rcd_wr": 28, "n_rcd_wrcp": 48, "n_rp": 32, "n_ras": 54, "n_rc": 89,
    "n_wr": 33, "n_rtp": 12, "n_cwl": 6, "n_ccd": 2, "n_rrd_s": 5, "n_rrd_l": 6, "n_wtr_s": 9,
    "n_wtr_l": 11, "n_rfc": 210, "n_refi": 3333, "n_cl_register": 0, "n_cwl_register": 1,
    "n_cwl_buffer": 1, "n_wpre": 1, "n_mode_change": 32,
}  # fmt: skip

# op -> (final command, all banks, one bank, register mode, blocks the decoder)
OPS = {
    "WR_GB": ("WRGB", False, False, True, False),
    "WR_BIAS": ("WRMAC16", False, False, True, False),
    "RD_MAC": ("RDMAC16", False, False, True, True),
    "RD_AF": ("RDAF16", False, False, True, True),
    "MAC_ABK": ("MAC16", True, False, False, False),
    "MAC_SBK": ("MAC", False, True, False, False),
    "AF": ("AF16", True, False, False, False),
    "EWMUL": ("EWMUL16", True, False, False, False),
    "COPY_BKGB": ("RDCP", False, True, False, False),
    "COPY_GBBK": ("WRCP", False, True, False, False),
    "WR_ABK": ("WRA16", True, False, False, False),
    "WR_SBK": ("WR", False, True, False, False),
    "W_MEM": ("WR", False, True, False, False),
    "RD_SBK": ("RD", False, True, False, False),
    "R_MEM": ("RD", False, True, False, False),
    "SYNC": ("SYNC", False, False, False, True),
    "EOC": ("EOC", False, False, False, True),
}
HOST = ("EWADD", "W_GPR", "R_GPR", "W_CFR", "R_CFR")
ORDINARY = ("WR", "RD")
READERS = ("RD", "RDMAC16", "RDAF16", "SYNC", "EOC")
CLOSES = ("PRE", "PREA", "WRA16")


@dataclasses.dataclass
class Rules:
    """What separates the device from the public simulator."""

    writes_complete: bool = False
    forwards_any_read: bool = True
    refreshes: bool = False
    activates_open_banks: bool = True


def constraints(t):
    """{level: {(previous, next): cycles}} (research/aim.md section 3.4)."""
    channel, group, bank = {}, {}, {}

    def rule(table, before, after, cycles):
        for b in before.split():
            for a in after.split():
                table[b, a] = max(table.get((b, a), -1), cycles)

    reads = "RD RDMAC16 RDAF16 MAC MAC16 RDCP"
    writes = "WR WRA16 WRGB WRMAC16 WRCP"
    n = t
    rule(channel, reads, reads + " EWMUL16", n["n_ccd"])
    rule(channel, writes, writes, n["n_bl"])
    rule(channel, writes.replace("WRGB", "").replace("WRMAC16", ""), "EWMUL16", n["n_ccd"])
    rule(channel, "WRMAC16", "EWMUL16", n["n_ccd"])
    rule(channel, "EWMUL16", "EWMUL16 WR WRCP WRA16 WRMAC16 " + reads, n["n_ccd"])
    turn = n["n_cl"] + n["n_bl"] + 3 + n["n_wpre"]
    rule(channel, "RD", "WR WRA16", turn - n["n_cwl"])
    rule(channel, "RD", "WRGB WRMAC16", turn - n["n_cwl_buffer"])
    register = n["n_cl_register"] + n["n_bl"] + 3 + n["n_wpre"]
    rule(channel, "RDMAC16 RDAF16", "WR WRA16", register - n["n_cwl"])
    rule(channel, "RDMAC16 RDAF16", "WRGB WRMAC16", register - n["n_cwl_register"])
    rule(channel, "WR", "RD", n["n_cwl"] + n["n_bl"] + n["n_wtr_s"])
    rule(channel, "WR", "RDMAC16 RDAF16", n["n_cwl"] + n["n_bl"] + n["n_wtr_l"])
    rule(channel, "WRA16", "RD RDMAC16 RDAF16", n["n_cwl"] + n["n_bl"] + n["n_wtr_l"])
    rule(channel, "WRGB", "RD RDMAC16 RDAF16", n["n_cwl_buffer"] + n["n_bl"] + n["n_wtr_s"])
    rule(channel, "WRMAC16", "RD RDMAC16 RDAF16", n["n_cwl_register"] + n["n_bl"] + n["n_wtr_l"])
    write = n["n_cwl"] + n["n_bl"] + n["n_wr"]
    rule(channel, "RD RDCP MAC MAC16 AF16", "PREA", n["n_rtp"])
    rule(channel, "MAC16 AF16", "PRE", n["n_rtp"])
    rule(channel, "WR WRCP", "PREA", write)
    rule(channel, "EWMUL16", "PRE PREA", n["n_cwl"] + n["n_wr"])
    rule(channel, "ACT", "ACT", n["n_rrd_s"])
    rule(channel, "ACT ACT16", "ACT16 REFab", n["n_rc"])
    rule(channel, "ACT16", "ACT", n["n_rc"])
    rule(channel, "ACT ACT16", "PREA", n["n_ras"])
    rule(channel, "ACT16", "PRE", n["n_ras"])
    rule(channel, "PRE PREA", "ACT16 PREA REFab", n["n_rp"])
    rule(channel, "PREA", "ACT PRE", n["n_rp"])
    rule(channel, "ACT ACT16", "MAC16", n["n_rcd_mac"])
    rule(channel, "ACT ACT16", "AF16", n["n_rcd_af"])
    rule(channel, "ACT ACT16", "EWMUL16", n["n_rcd_ewmul"])
    rule(channel, "ACT ACT16", "WRA16", n["n_rcd_wr"])
    for table, opened in ((channel, "ACT16"), (bank, "ACT")):
        rule(table, opened, "MAC", n["n_rcd_mac"])
        rule(table, opened, "RDCP", n["n_rcd_rdcp"])
        rule(table, opened, "RD", n["n_rcd_rd"])
        rule(table, opened, "WRCP", n["n_rcd_wrcp"])
        rule(table, opened, "WR", n["n_rcd_wr"])
    rule(channel, "WRA16", "ACT ACT16 REFab", write + n["n_rp"])
    rule(channel, "REFab", "ACT ACT16 REFab", n["n_rfc"])
    after_mode = {a for _, a in [*channel, *bank, ("", "PRE")]} - {"REFab"}
    rule(channel, "TMOD", " ".join(sorted(after_mode)), n["n_mode_change"])
    rule(channel, "TMOD", "REFab", n["n_mode_change"])
    rule(group, "ACT", "ACT", n["n_rrd_l"])
    rule(group, "WR", "RD", n["n_cwl"] + n["n_bl"] + n["n_wtr_l"])
    rule(bank, "ACT", "ACT", n["n_rc"])
    rule(bank, "ACT", "PRE", n["n_ras"])
    rule(bank, "PRE", "ACT PRE", n["n_rp"])
    rule(bank, "RD RDCP MAC", "PRE", n["n_rtp"])
    rule(bank, "WR WRCP", "PRE", write)
    return {"channel": channel, "group": group, "bank": bank}


def latency(t):
    """Cycles from final command to completion; others take 1."""
    return {
        "WR": t["n_cwl"] + t["n_bl"],
        "WRGB": t["n_cwl_buffer"] + t["n_bl"],
        "WRMAC16": t["n_cwl_register"] + t["n_bl"],
        "RDMAC16": t["n_cl_register"] + t["n_bl"],
        "RDAF16": t["n_cl_register"] + t["n_bl"],
        "RD": t["n_cl"] + t["n_bl"],
        "WRA16": t["n_cwl"] + t["n_bl"] + t["n_rp"],
    }


@dataclasses.dataclass
class Request:
    instruction: int
    op: str
    command: str
    bank: int
    row: int
    arrived: int = 0

    def __post_init__(self):
        _, self.all_banks, self.one_bank, self.register, self.blocks = OPS[self.op]


class Channel:
    def __init__(self, table, delay, rules):
        self.table, self.delay, self.rules = table, delay, rules
        self.open = [None] * N_BANK
        self.register = False
        self.last = {}  # (level, index, command) -> tick of the last one
        self.aim, self.read, self.write, self.active = [], [], [], []
        self.wait, self.pending, self.posted, self.refresh = [], [], [], []
        self.write_mode = False
        self.counts = {}

    def push(self, clock):
        """Move what fits from the overflow into the queues; whether nothing is left."""
        while self.wait:
            r = self.wait[0]
            if r.command in ORDINARY:
                queue = self.read if r.command == "RD" else self.write
                if r.command == "RD" and self.write and self.rules.forwards_any_read:
                    self.pending.append((clock, r))
                    self.wait.pop(0)
                    continue
                if self.aim or len(queue) >= QUEUE:
                    return False
            else:
                queue = self.aim
                if self.read or self.write or len(queue) >= QUEUE:
                    return False
            r.arrived = clock
            queue.append(self.wait.pop(0))
        return True

    def needed(self, r):
        """The command that brings the request on."""
        if r.command == "REFab":
            return "REFab" if all(o is None for o in self.open) else "PREA"
        if r.all_banks:
            if all(o == r.row for o in self.open):
                return r.command
            # In the simulator, banks open on the right row do not stop the activation of all.
            harmless = (None, r.row) if self.rules.activates_open_banks else (None,)
            return "ACT16" if all(o in harmless for o in self.open) else "PREA"
        if r.one_bank:
            if self.open[r.bank] == r.row:
                return r.command
            return "ACT" if self.open[r.bank] is None else "PRE"
        return r.command

    def earliest(self, command, bank):
        at = 0
        places = [("channel", 0)]
        if command in ("ACT", "PRE", "RD", "WR", "MAC", "RDCP", "WRCP"):
            places += [("group", bank // 4), ("bank", bank)]
        for level, index in places:
            for (before, after), cycles in self.table[level].items():
                if after == command and (level, index, before) in self.last:
                    at = max(at, self.last[level, index, before] + cycles)
        return at

    def candidate(self, clock):
        """(request, queue, command) chosen at this tick, or None; and the next tick to look at."""
        later = []

        def ready(r):
            at = self.earliest(self.needed(r), r.bank)
            if at > clock:
                later.append(at)
            return at <= clock

        for r in sorted(self.active, key=lambda r: r.arrived):
            if ready(r):
                return self.chosen(r, self.active), later
        if self.refresh:
            r = self.refresh[0]
            return (self.chosen(r, self.refresh) if ready(r) else None), later
        if self.aim:
            r = self.aim[0]
            if r.command in ("SYNC", "EOC"):
                if self.rules.writes_complete and self.active:
                    return None, later
                return (r, self.aim, r.command), later
            return (self.chosen(r, self.aim) if ready(r) else None), later
        if not self.write_mode and (len(self.write) > 0.8 * 32 or not self.read):
            self.write_mode = True
        elif self.write_mode and len(self.write) < 0.2 * 32 and self.read:
            self.write_mode = False
        queue = self.write if self.write_mode else self.read
        for r in queue:
            if ready(r):
                return self.chosen(r, queue), later
        return None, later

    def chosen(self, r, queue):
        command = self.needed(r)
        if command in CLOSES and any(a.bank == r.bank for a in self.active):
            return None
        return r, queue, command

    def issue(self, command, bank, row, clock):
        self.counts[command] = self.counts.get(command, 0) + 1
        self.last["channel", 0, command] = clock
        if bank >= 0:
            self.last["group", bank // 4, command] = clock
            self.last["bank", bank, command] = clock
        if command == "ACT":
            self.open[bank] = row
        elif command == "PRE":
            self.open[bank] = None
        elif command == "ACT16":
            self.open = [row] * N_BANK
        elif command in ("PREA", "WRA16"):
            self.open = [None] * N_BANK

    def tick(self, clock):
        """One tick: (instructions called back, whether anything happened, next tick to look at)."""
        done, moved, later = [], False, []
        if self.pending:
            due, r = self.pending[0]
            is_pseudo = r.command in ("SYNC", "EOC")
            if due <= clock and not (is_pseudo and self.posted):
                self.pending.pop(0)
                done.append(r.instruction)
            later.append(due)
            later += [p + i for p in self.posted for i in (0, 1)]
            moved = moved or bool(done)
        kept = [p for p in self.posted if p > clock]
        moved = moved or len(kept) < len(self.posted)
        self.posted = kept
        found, at = self.candidate(clock)
        later += at
        if found is None:
            return done, moved, later
        r, queue, command = found
        if command in ("SYNC", "EOC"):
            queue.remove(r)
            self.pending.append((clock + 1, r))
            return done, True, later
        if r.register != self.register:
            self.register = r.register
            self.issue("TMOD", -1, None, clock)
            return done, True, later
        self.issue(command, r.bank if command not in ("PREA",) else -1, r.row, clock)
        if command == r.command:
            queue.remove(r)
            due = clock + self.delay.get(command, 1)
            if command in READERS:
                self.pending.append((due, r))
            elif command != "REFab":
                self.posted.append(due)
        elif command == "ACT" and queue in (self.read, self.write):
            queue.remove(r)
            self.active.append(r)
        return done, True, later


def groups(instructions):
    """[(channel, how many execute the same)]: they do the same at the same time."""
    alike = {}
    for c in range(N_CHANNEL):
        key = tuple(c in channels(i) for i in instructions if i["op"] not in HOST)
        alike.setdefault(key, []).append(c)
    return [(same[0], len(same)) for same in alike.values()]


def channels(op):
    if op["op"] in ("SYNC", "EOC"):
        return range(N_CHANNEL)
    if "ch" in op:
        return [op["ch"]]
    return [c for c in range(N_CHANNEL) if op["mask"] >> (31 - c) & 1]


def fill(units, clock):
    """Every channel takes what it can; whether any is left with some."""
    pushed = [u.push(clock) for u in units]
    return not all(pushed)


def run(instructions, rules=None, timing=None, limit=10**7):
    """(cycles, counts by command over all channels) of a list of neutral-form dicts."""
    rules = rules or Rules()
    t = TIMING | (timing or {})
    table, delay = constraints(t), latency(t)
    size = dict(groups(instructions))
    units = {c: Channel(table, delay, rules) for c in size}
    clock, at, af_row, waiting, is_draining = 1, 0, AF_ROW, set(), False
    next_refresh = t["n_refi"]
    while clock < limit:
        moved = False
        # The decoder: drain, or decode one instruction.
        if is_draining:
            is_draining = fill(units.values(), clock)
            moved = not is_draining
        elif not waiting and at < len(instructions):
            i = instructions[at]
            moved = True
            if i["op"] in HOST:
                if i["op"] == "W_CFR" and i.get("cfr") == 2:
                    af_row = AF_ROW + i.get("data", 0)
            else:
                final, _, one_bank, _, blocks = OPS[i["op"]]
                row = af_row if i["op"] == "AF" else i.get("row", -1)
                bank = i["bank"] if one_bank else -1
                for c in units.keys() & set(channels(i)):
                    for _ in range(i.get("opsize", 1)):
                        units[c].wait.append(Request(at, i["op"], final, bank, row))
                if blocks:
                    waiting = {(at, c) for c in units.keys() & set(channels(i))}
                is_draining = fill(units.values(), clock)
            at += 1
        if rules.refreshes and clock == next_refresh:
            next_refresh += t["n_refi"]
            for u in units.values():
                r = Request(-1, "EOC", "EOC", -1, -1)
                r.command, r.register = "REFab", False
                u.refresh.append(r)
            moved = True
        later = [next_refresh] if rules.refreshes else []
        for c, u in units.items():
            done, changed, when = u.tick(clock)
            for k in done:
                waiting.discard((k, c))
            moved = moved or changed
            later += when
        if not waiting and at and instructions[at - 1]["op"] == "EOC":
            counts = {}
            for c, u in units.items():
                for k, v in u.counts.items():
                    counts[k] = counts.get(k, 0) + size[c] * v
            return clock, counts
        clock = (
            clock + 1
            if moved
            else max(clock + 1, min((x for x in later if x > clock), default=limit))
        )
    raise RuntimeError("no end")


def random_stream(seed, length, *, ordinary=True):
    """A mixed stream of `length` instructions and EOC, the same for the same seed."""
    rng = random.Random(seed)
    masks = [1 << 31, 0b11 << 30, 1 << rng.randrange(32), 1 << 30]
    host = ["EWADD", "W_GPR", "W_CFR"]
    aim = [op for op in OPS if op not in ("EOC", "WR_SBK", "W_MEM", "RD_SBK", "R_MEM")]
    plain = ["WR_SBK", "W_MEM", "RD_SBK", "R_MEM"] if ordinary else []
    rows = [rng.randrange(16384) for _ in range(3)]
    found = []
    for _ in range(length):
        op = rng.choice(aim + 3 * plain + host[:1] + host)
        i = {"op": op}
        if op in ("W_MEM", "R_MEM"):
            i |= {"ch": rng.choice([0, 0, 1, 31])}
        elif op in ("W_GPR", "W_CFR"):
            i |= {"gpr": 1} if op == "W_GPR" else {"cfr": 2, "data": rng.randrange(2)}
        elif op not in ("SYNC", "EWADD"):
            i |= {"mask": rng.choice(masks)}
        if op == "WR_ABK":
            i |= {"mask": rng.choice([1 << 31, 1 << 30])}
        if op in ("MAC_SBK", "COPY_BKGB", "COPY_GBBK", *plain):
            i |= {"bank": rng.choice([0, 1, 5, 15])}
        if op in ("MAC_ABK", "MAC_SBK", "EWMUL", "COPY_BKGB", "COPY_GBBK", "WR_ABK", *plain):
            i |= {"row": rng.choice(rows)}
        if op in ("WR_GB", "MAC_ABK", "MAC_SBK", "EWMUL", "COPY_BKGB", "COPY_GBBK", "EWADD"):
            i |= {"opsize": rng.choice([1, 2, 8, 40])}
        found.append(i)
    return [*found, {"op": "EOC"}]
