"""Instruction streams of known shape: a fragmented row, and one layer's attention.

What the engine is measured and checked on. PATTON's microbenchmark (section 3.2.2) and its
granules with every KV cache contiguous (research/patton.md section 5); any other placement's
stream is `layout`'s.
"""

from jaxmem.pim import isa
from jaxmem.pim.isa import Stream

ALL = 0xFFFFFFFF
ROW_BURST = 64  # bursts of a 2 KB row
_Instructions = list[tuple[str, dict[str, int]]]


def fragments(n_fragment: int, *, mask: int = 1 << 31, n_burst: int = ROW_BURST) -> Stream:
    """One row multiplied in `n_fragment` equal steps, the global buffer written once.

    Source: research/aim.md section 5.1 (b1): 414 + 70 (f - 1) cycles.
    """
    step = n_burst // n_fragment
    work: _Instructions = [("WR_GB", {"mask": mask, "n": n_burst})]
    for _ in range(n_fragment):
        work += _step(mask, step, 0)
    return isa.stream([*work, ("EOC", {})])


def attention(
    *,
    n_request: int = 32,
    n_token: int = 2048,
    n_kv: int = 8,
    n_query: int = 4,
    head_dim: int = 128,
    ch_per_head: int = 4,
    gb_piece_bursts: int = 32,
    shares_gb: bool = False,
) -> Stream:
    """QK and SV of one layer and decode step, every request contiguous, 2-byte elements.

    Llama-3-8B at batch 32 by default. All heads step together; each head's query and scores are
    written to its own channels, `gb_piece_bursts` at a time.

    Args:
        n_request: requests of the batch.
        n_token: context of each; a multiple of 16 * `ch_per_head` tokens.
        n_kv: KV heads; with `ch_per_head` they fill at most 32 channels.
        n_query: query heads a KV head.
        head_dim: elements of a head; a multiple of 16 * `ch_per_head`.
        ch_per_head: channels of a KV head.
        gb_piece_bursts: bursts a WR_GB writes at most; one piece of every head, then the next.
        shares_gb: one WR_GB for the channels of all heads, whose contents are then the same.

    Source: research/patton.md section 5.
    """
    group = (1 << ch_per_head) - 1
    heads = [group << (32 - ch_per_head * (h + 1)) for h in range(n_kv)]
    everyone = sum(heads)
    g = head_dim // 16
    n_step = n_token // 16 // ch_per_head
    steps_row = ROW_BURST // g
    value_rows = -(-g // ch_per_head)
    n_column = n_token // 16
    row = 0
    work: _Instructions = []
    for _ in range(n_request):
        key_row, value_row = row, row + -(-n_step // steps_row)
        for _ in range(n_query):
            work += _write_gb(heads, g * min(steps_row, n_step), gb_piece_bursts, shares_gb)
            for s in range(n_step):
                work += _step(everyone, g, key_row + s // steps_row)
            for start in range(0, n_column, ROW_BURST):
                width = min(ROW_BURST, n_column - start)
                work += _write_gb(heads, width, gb_piece_bursts, shares_gb)
                at = value_row + start // ROW_BURST * value_rows
                for r in range(value_rows):
                    work += _step(everyone, width, at + r)
        row = value_row + -(-n_column // ROW_BURST) * value_rows
    return isa.stream([*work, ("EOC", {})])


def _step(mask: int, n_burst: int, row: int) -> _Instructions:
    return [
        ("WR_BIAS", {"mask": mask}),
        ("MAC_ABK", {"mask": mask, "n": n_burst, "row": row}),
        ("RD_MAC", {"mask": mask}),
    ]


def _write_gb(heads: list[int], n_burst: int, piece: int, shared: bool) -> _Instructions:
    masks = [sum(heads)] if shared else heads
    return [
        ("WR_GB", {"mask": mask, "n": min(piece, n_burst - start)})
        for start in range(0, n_burst, piece)
        for mask in masks
    ]
