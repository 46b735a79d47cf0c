"""Addresses of the KV cache by enumeration, in plain Python: slow, obvious, independent of jaxmem.

Positions are listed by nested loops and looked up, where the package divides and takes remainders.
Rules: research/patton.md section 1, DESIGN section 6 of the project, PATTON sections 3 and 4.
"""

import itertools

ORDERS = ("ch_c_r", "ch_r_c", "c_ch_r", "c_r_ch", "r_ch_c", "r_c_ch")


class Space:
    """A layer kind on a device."""

    def __init__(
        self, *, n_channel=32, n_bank=16, n_row=16384, row_bytes=2048, burst_bytes=32, n_layer=32,
        n_kv=8, head_dim=128, element_bytes=2, block_tokens=16, c=4, k_order="ch_c_r",
        v_order="ch_c_r", spread="head_group", lies_as_key=False,
    ):  # fmt: skip
        self.is_alone = spread == "request"
        c = 1 if self.is_alone else c
        self.n_bank, self.n_kv, self.n_layer, self.head_dim = n_bank, n_kv, n_layer, head_dim
        self.c, self.block_tokens, self.n_channel = c, block_tokens, n_channel
        self.lanes = burst_bytes // element_bytes
        self.row_bursts = row_bytes // burst_bytes
        self.g = -(-head_dim // self.lanes)
        self.n_sub = -(-head_dim // n_bank)
        span = 1 if spread in ("block", "token") else min(c, self.n_sub)
        self.r = -(-self.n_sub // span)
        self.n_group = 1 if self.is_alone else n_channel // c
        self.n_home = n_channel if self.is_alone else 1
        self.n_round = -(-n_kv // self.n_group)
        self.rows_layer = n_row // n_layer
        self.rows_round = self.rows_layer // self.n_round
        self.width = block_tokens // self.lanes
        self.keys = self._keys(k_order)
        self.lies_as_key = lies_as_key
        self.values = self.keys if lies_as_key else self._values(v_order, span)
        self.set_blocks = min(len(self.keys), len(self.values))
        self.slots = self._slots(span)

    def _keys(self, order):
        """Block -> (channel, first row of the half set, first burst)."""
        groups, in_row = self.block_tokens // self.n_bank, self.row_bursts // self.g
        self.unit_groups = min(groups, in_row)
        rows = -(-groups // in_row)
        unit = self.unit_groups * self.g
        extent = {"ch": self.c, "c": self.row_bursts // unit, "r": self.r // rows}
        # Past one block a row, what is left of the row stays empty.
        if groups > in_row:
            extent["c"] = 1
        return [(at["ch"], at["r"] * rows, at["c"] * unit) for at in count(extent, order)]

    def _values(self, order, span):
        """Block -> [subblock] (channel, row of the half set, first burst)."""
        extent = {"ch": self.c, "c": self.row_bursts // self.width, "r": self.r}
        names = order.split("_")
        prefer = ["ch", names[2], names[1]] if names[0] == "ch" else names[::-1]
        taken, left = {}, self.n_sub
        for name in prefer:
            taken[name] = min(span if name == "ch" else extent[name], left)
            left = -(-left // taken[name])
        parts = list(itertools.islice(count(taken, "_".join(prefer)), self.n_sub))
        rest = {name: extent[name] // taken[name] for name in extent}
        return [
            [tuple(p[d] + taken[d] * at[d] for d in ("ch", "r", "c")) for p in parts]
            for at in count(rest, order)
        ]

    def _slots(self, span):
        """Commit Zone slot -> [subblock] (channel, first burst)."""
        found = []
        for column in range(self.row_bursts // (self.r * self.width)):
            for beside in range(self.c // span):
                found.append(
                    [
                        (beside * span + q % span, (column * self.r + q // span) * self.width)
                        for q in range(self.n_sub)
                    ]
                )
        return found

    def n_set(self, n_zone):
        return self.n_home * ((self.rows_round - n_zone) // (2 * self.r))

    def _absolute(self, layer, head, channel, row):
        turn, group = divmod(head, self.n_group)
        return group * self.c + channel, layer * self.rows_layer + turn * self.rows_round + row

    def key(self, layer, head, row_set, index, token, element, first=0):
        channel, row, burst = self.keys[index]
        row_set, home = divmod(row_set, self.n_home)
        group, bank = divmod(token, self.n_bank)
        down, right = divmod(group, self.unit_groups)
        row += 2 * self.r * row_set + down + first
        channel, row = self._absolute(layer, head, channel + home, row)
        burst += right * self.g + element // self.lanes
        return channel, bank, row, burst, element % self.lanes

    def value(self, layer, head, row_set, index, token, element):
        if self.lies_as_key:
            return self.key(layer, head, row_set, index, token, element, first=self.r)
        q, bank = divmod(element, self.n_bank)
        channel, row, unit = self.values[index][q]
        row_set, home = divmod(row_set, self.n_home)
        first = (2 * row_set + 1) * self.r
        channel, row = self._absolute(layer, head, channel + home, first + row)
        return channel, bank, row, unit * self.width + token // self.lanes, token % self.lanes

    def zone(self, layer, head, zone_row, slot, token, element):
        q, bank = divmod(element, self.n_bank)
        channel, burst = self.slots[slot][q]
        channel, row = self._absolute(layer, head, channel, self.rows_round - 1 - zone_row)
        return channel, bank, row, burst + token // self.lanes, token % self.lanes


def count(extent, order):
    """Positions in an order's sequence, its first dimension fastest."""
    names = order.split("_")
    for digits in itertools.product(*[range(extent[name]) for name in reversed(names)]):
        yield dict(zip(reversed(names), digits, strict=True))
