"""Recordings of vLLM's KV-cache events: what was stored and evicted, batch by batch.

A recording says which blocks a cache held, and so its capacity in use; it does not say hits, frees
or lengths, so it checks a simulated cache but cannot be replayed at another capacity. Copies of one
hash are counted: a set goes wrong as soon as a block is computed twice (research/vllm.md, section
4). Read are JSON lines of batches, events as maps (vLLM from 0.24.0) or as arrays (before).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from jaxmem.core.errors import InputError
from jaxmem.serving.trace_formats import json_lines, seconds


class Residency(NamedTuple):
    """What a cache held after every batch of events."""

    time_s: Float[np.ndarray, " batch"]
    stored: Int[np.ndarray, " batch"]  # blocks that became findable in the batch
    removed: Int[np.ndarray, " batch"]  # blocks evicted in it
    resident: Int[np.ndarray, " batch"]  # findable blocks after it, copies counted
    distinct: Int[np.ndarray, " batch"]  # hashes among them
    block_tokens: int  # 0: nothing was stored
    n_skipped: int  # bad batches left out


def read_kv_events(path: str | Path, *, skip_bad: bool = False) -> Residency:
    """A recording as the cache's content over time.

    Args:
        path: JSON lines of {ts, events}, gzip or plain.
        skip_bad: leave bad batches out and count them.

    Raises:
        InputError: no such file, no batch, or a bad one, by its line.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError("recording", str(path), "a file that exists")
    copies: Counter[Any] = Counter()
    rows: list[tuple[float, int, int, int, int]] = []
    block_tokens = n_skipped = 0
    for where, raw in json_lines(path):
        try:
            if isinstance(raw, InputError):
                raise raw
            time_s, events = _batch(raw, where)
        except InputError:
            if not skip_bad:
                raise
            n_skipped += 1
            continue
        n_stored = n_removed = 0
        for kind, hashes, size in events:
            if kind == "BlockStored":
                copies.update(hashes)
                n_stored, block_tokens = n_stored + len(hashes), size
            elif kind == "BlockRemoved":
                for one in hashes:
                    copies[one] -= 1
                    if copies[one] <= 0:  # a recording may begin after the block was stored
                        del copies[one]
                n_removed += len(hashes)
            else:
                n_removed += copies.total()
                copies.clear()
        rows.append((time_s, n_stored, n_removed, copies.total(), len(copies)))
    if not rows:
        raise InputError("recording", str(path), "at least one batch of events", where=str(path))
    table = np.asarray(rows)
    counts = (column.astype(np.int64) for column in table.T[1:])
    return Residency(table[:, 0], *counts, block_tokens, n_skipped)


_ARRAY_FIELDS = {
    "BlockStored": ("block_hashes", "parent_block_hash", "token_ids", "block_size"),
    "BlockRemoved": ("block_hashes",),
    "AllBlocksCleared": (),
}


def _batch(raw: dict[str, Any], where: str) -> tuple[float, list[tuple[str, Sequence[Any], int]]]:
    events = raw.get("events")
    if not isinstance(events, list):
        raise InputError("events", events, "a list of events", where=where)
    return seconds(raw.get("ts"), "ts", where), [_event(event, where) for event in events]


def _event(event: Any, where: str) -> tuple[str, Sequence[Any], int]:
    if isinstance(event, list) and event and event[0] in _ARRAY_FIELDS:
        names = _ARRAY_FIELDS[event[0]]
        event = {"type": event[0], **dict(zip(names, event[1:], strict=False))}
    kind = event.get("type") if isinstance(event, dict) else None
    if kind not in _ARRAY_FIELDS:
        known = tuple(_ARRAY_FIELDS)
        raise InputError("type", kind, "one of " + ", ".join(known), known=known, where=where)
    if kind == "AllBlocksCleared":
        return kind, (), 0
    hashes = event.get("block_hashes")
    is_list = isinstance(hashes, list)
    if not is_list or not all(isinstance(h, int | str) and "..." not in str(h) for h in hashes):
        rule = "a whole list of hashes (a shortened recording cannot be counted)"
        raise InputError("block_hashes", hashes, rule, where=where)
    if kind == "BlockRemoved":
        return kind, hashes, 0
    size = event.get("block_size")
    if not isinstance(size, int) or size < 1:
        raise InputError("block_size", size, "a whole number >= 1 tokens", where=where)
    return kind, hashes, size
