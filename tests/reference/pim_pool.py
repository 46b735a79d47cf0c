"""PATTON's allocator with dictionaries and lists, in plain Python: independent of jaxmem.

Rules: PATTON 4.2 to 4.5, research/patton.md section 2; what they leave open as docs/pim-memory.md.
"""

import copy

STAYS, FINISHES, TERMINATES = range(3)


class Failed(Exception):
    """There is no room, or the event makes no sense."""


class Granule:
    def __init__(self):
        self.owner, self.used, self.blocks = None, 0, {}  # index -> block


class Request:
    def __init__(self):
        self.n_token, self.held, self.open, self.slot, self.home = 0, [], None, None, 0


class Pool:
    def __init__(
        self, *, n_row, r, set_blocks, own, row_slots, n_request, size=16, max_slot=1000,
        max_held=1000,
        has_zone=True, carries=True, caches=True, undoes=True, n_home=1, channel=None, cap=10**9,
    ):  # fmt: skip
        # Channels that a request may live in; channel of a block's index, if that is what counts.
        self.n_home, self.channel, self.cap = n_home, channel, cap
        self.undoes = undoes  # whether an event that fails is taken back
        self.n_row, self.r, self.own = n_row, r, own
        self.unit = max(set_blocks, own)
        self.per_set = self.unit // own
        self.set_blocks, self.row_slots, self.size = set_blocks, row_slots, size
        self.max_slot, self.max_held = max_slot, max_held
        self.has_zone, self.carries, self.caches = has_zone, carries, caches
        n_set = n_home * (n_row // (2 * r))
        self.granules = [Granule() for _ in range(n_set * set_blocks // self.unit * self.per_set)]
        self.requests = [Request() for _ in range(n_request)]
        self.place, self.ref, self.filled = {}, {}, {}  # by block
        self.unused = []  # blocks without a user, oldest first
        self.slots, self.n_zone, self.time = {}, 0, 0

    # Sizes

    def n_set(self, n_zone=None):
        """Units of granules."""
        rows = max(self.n_row - (self.n_zone if n_zone is None else n_zone), 0)
        return self.n_home * (rows // (2 * self.r)) * self.set_blocks // self.unit

    def usable(self):
        return range(self.n_set() * self.per_set)

    def home(self, g):
        return g // self.per_set % self.n_home

    def choose_home(self, n_granule):
        """The channel with the least tokens that has room."""

        def room(h):
            return sum(not self.is_pinned(g) for g in self.usable() if self.home(g) == h)

        def tokens(h):
            of = [r for r in self.requests if r.held and self.home(self.place[r.held[0]][0]) == h]
            return sum(r.n_token for r in of)

        roomy = [h for h in range(self.n_home) if room(h) >= n_granule]
        if not roomy:
            raise Failed
        return min(roomy, key=tokens)

    def is_pinned(self, g):
        granule = self.granules[g]
        is_open = granule.owner is not None
        return is_open or any(self.ref[b] for b in granule.blocks.values())

    def is_free(self, g):
        return self.granules[g].owner is None and not self.granules[g].blocks

    # Steps

    def step(self, events):
        """events: by request (how it leaves, blocks to share, new ids, tokens). Returns ok's."""
        self.time += 1
        for request, (leave, _, _, _) in zip(self.requests, events, strict=True):
            if leave != STAYS:
                self.leave(request, leave)
        self.shrink()
        oks, leaving = [], []
        for number, (_, share, ids, n_write) in enumerate(events):
            if n_write <= 0:
                oks.append(True)
                continue
            before = copy.deepcopy(self.__dict__) if self.undoes else {}
            try:
                slot = self.append(number, share, ids, n_write)
                leaving += [] if slot is None else [slot]
                oks.append(True)
            except Failed:
                self.__dict__.update(before)
                oks.append(False)
        for slot in leaving:
            del self.slots[slot]
        self.shrink()
        return oks

    def shrink(self):
        self.n_zone = max(self.slots) // self.row_slots + 1 if self.slots else 0

    def leave(self, request, how):
        n_full = request.n_token // self.size
        for k in reversed(range(len(request.held))):
            block = request.held[k]
            self.ref[block] -= 1
            if self.ref[block] == 0:
                if how == FINISHES and self.caches and k < n_full:
                    self.unused.append(block)
                else:
                    g, index = self.place[block]
                    granule = self.granules[g]
                    if index == granule.used - 1:
                        granule.used -= 1
                    self.unbind(block)
        if request.open is not None:
            granule = self.granules[request.open]
            granule.owner = None
            if not granule.blocks:
                granule.used = 0
        if request.slot is not None:
            del self.slots[request.slot]
        request.__init__()

    def unbind(self, block):
        g, index = self.place.pop(block)
        granule = self.granules[g]
        del granule.blocks[index], self.ref[block], self.filled[block]
        if not granule.blocks and granule.owner is None:
            granule.used = 0

    def evict(self, block):
        self.unused.remove(block)
        self.unbind(block)

    def append(self, number, share, ids, n_write):
        request = self.requests[number]
        if request.held and share:
            raise Failed
        if not request.held:
            for block in share:
                if not 0 < self.filled.get(block, 0) < self.time:
                    raise Failed
                if self.ref[block] == 0:
                    self.unused.remove(block)
                self.ref[block] += 1
                request.held.append(block)
            request.n_token = len(share) * self.size
            if share and self.carries:
                g, _ = self.place[share[-1]]
                if self.granules[g].owner is None:
                    self.granules[g].owner, request.open = number, g
        before, after = request.n_token, request.n_token + n_write
        fills = request.slot is not None and after // self.size > before // self.size
        needs = self.has_zone and after % self.size > 0 and (request.slot is None or fills)
        leaves = request.slot if fills else None
        slot = None if fills else request.slot
        if needs:
            slot = self.new_slot()
            self.slots[slot] = number
        n_new = -(-after // self.size) - len(request.held)
        if n_new > len(ids) or len(request.held) + n_new > self.max_held or after > self.cap:
            raise Failed
        if self.n_home > 1:
            if request.held:
                request.home = self.home(self.place[request.held[0]][0])
            else:
                request.home = self.choose_home(-(-n_new // self.own))
        for block in ids[:n_new]:
            if block < 0 or block in self.place:
                raise Failed
            self.bind(number, request, block)
        for k, block in enumerate(request.held):
            if (k + 1) * self.size <= after and not self.filled[block]:
                self.filled[block] = self.time
        request.n_token, request.slot = after, slot
        return leaves

    def bind(self, number, request, block):
        while request.open is None or self.granules[request.open].used == self.own:
            g = self.choose(request.open, request.home)
            if g is None:
                if not self.unused:
                    raise Failed
                self.evict(self.unused[0])
                continue
            if request.open is not None:
                old = self.granules[request.open]
                old.owner = None
                if not old.blocks:
                    old.used = 0
            self.granules[g].owner, request.open = number, g
        granule = self.granules[request.open]
        granule.blocks[granule.used] = block
        self.place[block] = (request.open, granule.used)
        self.ref[block], self.filled[block] = 1, 0
        granule.used += 1
        request.held.append(block)

    def choose(self, open_, home):
        free = [g for g in self.usable() if self.is_free(g)]
        if self.n_home > 1:
            free = [g for g in free if self.home(g) == home]
        if self.channel is not None:

            def fill(g):
                of = self.channel(g % self.per_set * self.own)
                others = [
                    h for h in self.usable() if self.channel(h % self.per_set * self.own) == of
                ]
                return sum(len(self.granules[h].blocks) for h in others)

            return min(free, key=fill, default=None)
        if open_ is not None:
            for beside in (open_ + 1, open_ - 1):
                if beside in free and beside // self.per_set == open_ // self.per_set:
                    return beside
        in_set = [g // self.per_set for g in free]
        several = [g for g in free if in_set.count(g // self.per_set) >= 2]
        return min(several or free, default=None)

    def new_slot(self):
        rows = []
        for row in range(self.n_zone):
            taken = [s for s in self.slots if s // self.row_slots == row]
            if len(taken) < self.row_slots:
                rows.append((-len(taken), row))
        if rows:
            row = min(rows)[1]
            free = set(range(row * self.row_slots, (row + 1) * self.row_slots)) - set(self.slots)
            return min(free)
        n_zone = self.n_zone + 1
        if n_zone * self.row_slots > self.max_slot or n_zone > self.n_row:
            raise Failed
        lost = self.n_set() - 1
        if self.n_set(n_zone) <= lost:
            gone = range(lost * self.per_set, (lost + 1) * self.per_set)
            if any(self.is_pinned(g) for g in gone):
                raise Failed
            for g in gone:
                for _, block in sorted(self.granules[g].blocks.items()):
                    self.evict(block)
        self.n_zone = n_zone
        return self.n_zone * self.row_slots - self.row_slots

    # What can be seen

    def snapshot(self, n_block):
        """The state, as jaxmem.pim.pool.snapshot gives it (granules as owner, used, resident)."""
        granules = [
            (-1 if self.is_free(i) else -2 if g.owner is None else g.owner, g.used, len(g.blocks))
            for i, g in enumerate(self.granules)
        ]
        place = [-1] * n_block
        for block, (g, index) in self.place.items():
            unit, within = divmod(g, self.per_set)
            place[block] = unit * self.unit + within * self.own + index
        return {
            "place": place,
            "ref": [self.ref.get(b, 0) for b in range(n_block)],
            "is_filled": [self.filled.get(b, 0) > 0 for b in range(n_block)],
            "unused": list(self.unused),
            "granule": granules,
            "held": [list(r.held) for r in self.requests],
            "request": [
                (
                    r.n_token, len(r.held), -1 if r.open is None else r.open,
                    -1 if r.slot is None else r.slot,
                )
                for r in self.requests
            ],
            "slot": dict(sorted(self.slots.items())),
            "n_zone": self.n_zone,
            "n_pinned": sum(self.is_pinned(g) for g in range(len(self.granules))),
        }  # fmt: skip

    def key(self):
        """What tells states apart, but for the names of steps."""
        snap = self.snapshot(1 + max([*self.place, -1]))
        return repr((sorted(self.place.items()), snap))

    def check(self):
        """Invariants, after any event."""
        places = list(self.place.values())
        assert len(set(places)) == len(places)
        for block, (g, index) in self.place.items():
            assert self.granules[g].blocks[index] == block
            assert index < self.granules[g].used <= self.own
            assert g in self.usable()
        resident = sum(len(g.blocks) for g in self.granules)
        assert resident == len(self.place)
        users = {}
        for number, r in enumerate(self.requests):
            assert len(r.held) == -(-r.n_token // self.size)
            assert all(block in self.place for block in r.held)
            for block in r.held:
                users[block] = users.get(block, 0) + 1
            is_partial = self.has_zone and r.n_token % self.size > 0
            assert (r.slot is not None) == is_partial
            if r.slot is not None:
                assert self.slots[r.slot] == number
            if r.open is not None:
                assert self.granules[r.open].owner == number
            assert all(self.filled[b] for b in r.held[: r.n_token // self.size])
        assert {b: n for b, n in self.ref.items() if n} == users
        assert sorted(self.unused) == sorted(b for b, n in self.ref.items() if n == 0)
        assert len(self.slots) == sum(r.slot is not None for r in self.requests)
        owners = [g.owner for g in self.granules if g.owner is not None]
        assert len(set(owners)) == len(owners)
        assert not any(self.slots) or max(self.slots) // self.row_slots == self.n_zone - 1
