"""Token blocks as dense ids: two blocks have one id where they and all before them are equal.

A cache finds a block by its content and its whole prefix. Only that equality matters to a simulator
(research/vllm.md, section 1.2: real hashes and dense ids give the same results), so ids are numbers
from 0 on, which arrays can be indexed by. Everything here runs once, on the host.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxmem.core.errors import InputError
from jaxmem.serving.traces import Trace


class Blocked(NamedTuple):
    """A trace's prompts in blocks. An id stands for `id_blocks` blocks in a row."""

    input_tokens: Int[np.ndarray, " request"]
    output_tokens: Int[np.ndarray, " request"]
    ids: Int[np.ndarray, " id"]  # dense
    start: Int[np.ndarray, " request+1"]  # where each request's ids begin
    keyed_blocks: Int[np.ndarray, " request"]  # full blocks of a prompt whose content is known
    id_blocks: int
    block_tokens: int
    n_key: int

    def keys(self, request: int) -> Int[np.ndarray, " block"]:
        """Keys of a request's full prompt blocks."""
        index = np.arange(self.keyed_blocks[request])
        ids = self.ids[self.start[request] : self.start[request + 1]]
        return ids[index // self.id_blocks] * self.id_blocks + index % self.id_blocks


class Chain:
    """Numbers blocks of tokens by their content and all before them.

    Example:
        >>> chain = Chain(block_tokens=2)
        >>> chain.keys([7, 8, 9, 9, 5]), chain.keys([9, 9]), chain.keys([7, 8, 9, 9])
        ([0, 1], [2], [0, 1])
    """

    def __init__(self, block_tokens: int):
        self.block_tokens = block_tokens
        self._table: dict[Any, int] = {}

    def __len__(self) -> int:
        return len(self._table)

    def keys(self, tokens: Sequence[Any], salt: Any = None) -> list[int]:
        """Keys of the full blocks of `tokens`; a salt keeps them apart from others' blocks."""
        size = self.block_tokens
        found = []
        parent: Any = ("salt", salt) if salt is not None else None
        for start in range(0, len(tokens) - size + 1, size):
            link = (parent, tuple(tokens[start : start + size]))
            parent = self._table.setdefault(link, len(self._table))
            found.append(parent)
        return found


def block(trace: Trace, block_tokens: int) -> Blocked:
    """A trace's prompts in blocks of any size.

    Where a block divides the tokens of an id, an id stands for several blocks and nothing is
    expanded. Else a block is named by the id and the place at which it ends.

    Raises:
        InputError: a block size that is not a positive whole number.
    """
    if block_tokens < 1:
        raise InputError("block_tokens", block_tokens, "a whole number >= 1 tokens")
    ids, n_id = chain_ids(trace.ids, trace.start)
    start, size = trace.start, trace.id_tokens
    known = np.minimum(trace.input_tokens, np.diff(start) * size)
    keyed = known // block_tokens
    lengths = (trace.input_tokens, trace.output_tokens)
    if size % block_tokens == 0 and size:
        ratio = size // block_tokens
        return Blocked(*lengths, ids, start, keyed, ratio, block_tokens, n_id * ratio)
    ends = np.concatenate([[0], np.cumsum(keyed)])
    first = np.repeat(ends[:-1], keyed)
    last_token = (np.arange(ends[-1]) - first + 1) * block_tokens - 1
    if not size:
        return Blocked(*lengths, np.zeros(0, np.int64), ends, keyed, 1, block_tokens, 1)
    holder = ids[np.repeat(start[:-1], keyed) + last_token // size]
    keys, n_key = _dense(holder * size + last_token % size)
    return Blocked(*lengths, keys, ends, keyed, 1, block_tokens, n_key)


def chain_ids(ids: np.ndarray, start: np.ndarray) -> tuple[Int[np.ndarray, " id"], int]:
    """Dense ids of (id, everything before it), in order of appearance; and how many there are.

    Where every id always follows the same id, as in Mooncake's traces, ids are chains already.
    """
    if not len(ids):
        return np.zeros(0, np.int64), 0
    dense, n = _dense(ids)
    parent = np.concatenate([[-1], dense[:-1]])
    parent[start[:-1][np.diff(start) > 0]] = -1
    only = np.full(n, -2)
    only[dense] = parent
    if (only[dense] == parent).all() and (parent < dense).all():
        return dense, n
    table: dict[tuple[int, int], int] = {}
    chained = np.empty_like(dense)
    values = dense.tolist()
    for begin, end in zip(start[:-1].tolist(), start[1:].tolist(), strict=True):
        above = -1
        for i in range(begin, end):
            above = table.setdefault((above, values[i]), len(table))
            chained[i] = above
    return chained, len(table)


def _dense(values: np.ndarray) -> tuple[Int[np.ndarray, " value"], int]:
    """`values` renumbered from 0 in order of appearance."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return rank[inverse], len(first)


def lists(rows: Iterable[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Lists of numbers as (all numbers, where each list begins).

    Example:
        >>> [a.tolist() for a in lists([[1, 2], [], [3]])]
        [[1, 2, 3], [0, 2, 2, 3]]
    """
    columns = [np.asarray(row, np.int64) for row in rows]
    start = np.concatenate([[0], np.cumsum([len(row) for row in columns])]).astype(np.int64)
    return np.concatenate([np.zeros(0, np.int64), *columns]), start
