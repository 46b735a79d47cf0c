"""What a serving engine calls: logical blocks and token offsets in, commands out.

Wraps the allocator, one scheduler step at a time: the engine says which requests begin, write and
leave; the runtime binds blocks to granules and writes the step's streams. Where a block lies stays
inside, but for those who ask (`where`). Host code: what is fast is `pool.step`.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.pim import address, commands, pool
from jaxmem.pim.placement import Placement


class Address(NamedTuple):
    """Where a token of a block lies in its KV head's channels; see `address` for elements."""

    key: address.Cell
    value: address.Cell


class Runtime:
    """The KV memory of one PIM device, for one layer and all alike.

    Example:
        >>> import jaxmem as jm
        >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        >>> r = Runtime(d, max_request=2, max_held=8)
        >>> r.append(0, 40, blocks=[7, 9, 3])
        >>> placement, failed = r.advance()
        >>> placement.index[0, :3].tolist(), failed, int(placement.zone_slot[0])
        ([0, 1, 2], [], 0)
        >>> r.append(0, 1)
        >>> placement, failed = r.advance()
        >>> len(r.stream("qk").op) > 0
        True
    """

    def __init__(self, design: Any, *, max_request: int, max_held: int, max_block: int = 0):
        self.design = design
        self.bounds = pool.bounds(
            design, max_request=max_request, max_held=max_held, max_block=max_block
        )
        self.map = address.concrete(design)
        self.pool = pool.create(self.bounds)
        self.placement: Placement | None = None
        self._step = jax.jit(functools.partial(pool.step, self.bounds))
        self._clear()

    def append(
        self, request: int, n_token: int, *, blocks: Sequence[int] = (), shared: Sequence[int] = ()
    ) -> None:
        """In the next step a request writes `n_token` tokens.

        Args:
            request: its number.
            n_token: tokens.
            blocks: ids of the blocks that these begin.
            shared: full blocks of a cached prefix that a new request begins with.

        Raises:
            InputError: a number is out of bounds, or there are more ids than a request may hold.
        """
        self._check(request)
        if n_token < 1:
            raise InputError("n_token", n_token, "at least 1 token")
        for name, ids in (("blocks", blocks), ("shared", shared)):
            if len(ids) > self.bounds.max_held:
                raise InputError(name, len(ids), f"at most {self.bounds.max_held} ids")
            for block in ids:
                if not 0 <= block < self.bounds.max_block:
                    raise InputError(name, block, f"ids from 0 to {self.bounds.max_block - 1}")
            if len(set(ids)) < len(ids):
                raise InputError(name, list(ids), "each id once")
        self._n_token[request] = n_token
        self._block[request, : len(blocks)] = blocks
        self._share[request, : len(shared)] = shared

    def release(self, request: int, *, is_cached: bool = True) -> None:
        """At the start of the next step a request leaves its full blocks cached, or nothing."""
        self._check(request)
        self._leave[request] = pool.FINISHES if is_cached else pool.TERMINATES

    def advance(self) -> tuple[Placement, list[int]]:
        """Take the step: (placement, requests that found no room and have changed nothing)."""
        events = pool.Events(
            leave=self._leave, share=self._share, block=self._block, n_token=self._n_token
        )
        self.pool, placement, ok = self._step(self.pool, events, self.design)
        self._clear()
        self.placement = jax.tree.map(np.asarray, placement)
        return self.placement, np.flatnonzero(~np.asarray(ok)).tolist()

    def stream(self, step: str | Sequence[str] = commands.STEPS, layer: int = 0) -> Any:
        """Commands of the step just taken: see `layout.stream`."""
        return self.program(step, layer).stream

    def program(self, step: str | Sequence[str] = commands.STEPS, layer: int = 0) -> Any:
        """The same with their operands, for `numerics.execute`."""
        if self.placement is None:
            raise InputError("step", step, "a step that was taken (advance)")
        return commands.program(self.design, self.placement, step, layer)

    def is_resident(self, block: int) -> bool:
        """Whether a logical block is in memory."""
        return self._place(block) >= 0

    def where(self, block: int, token: int, *, layer: int = 0, head: int = 0) -> Address:
        """Key and Value of a token, of a block in its own place (not in the Commit Zone).

        Raises:
            InputError: the block is not resident, or the token not of a block.
        """
        place = self._place(block)
        if place < 0:
            raise InputError("block", block, "a resident block")
        if not 0 <= token < int(self.map.block_tokens):
            raise InputError("token", token, f"an offset below {int(self.map.block_tokens)}")
        row_set, index = divmod(place, int(self.map.set_blocks))
        given = (self.map, layer, head, row_set, index, token, 0)
        return Address(address.key_cell(*given), address.value_cell(*given))

    def _place(self, block: int) -> int:
        if not 0 <= block < self.bounds.max_block:
            raise InputError("block", block, f"ids from 0 to {self.bounds.max_block - 1}")
        return int(self.pool.memory[5 * block + pool.PLACE])

    def _check(self, request: int) -> None:
        if not 0 <= request < self.bounds.max_request:
            raise InputError("request", request, f"0 to {self.bounds.max_request - 1}")

    def _clear(self) -> None:
        n, held = self.bounds.max_request, self.bounds.max_held
        self._leave, self._n_token = np.zeros(n, np.int32), np.zeros(n, np.int32)
        self._share = np.full((n, held), pool.NONE, np.int32)
        self._block = np.full((n, held), pool.NONE, np.int32)
