"""Workloads: one decode step of a given batch, or steady serving under a latency objective.

Both systems' `evaluate` take both. `Serve` asks for the largest batch; sequence lengths are the
means of a traffic, and a request is charged at its full length, input plus output (the reading
under which FlashAccel's 405B example closes; research/flashaccel.md section 1.3).
"""

from typing import Any, Self

from jaxmem.core.design import Leaf, build, count, design, leaf


@design
class Decode:
    """One decode step: every request of a batch reads its context and adds one token."""

    batch: Leaf = count("requests decoded together", unit="requests", high=2.0**24 - 1, default=1)
    context_tokens: Leaf = count(
        "tokens of context that every request attends to", unit="tokens", high=1e9, default=1024
    )

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked `Decode`.

        Raises:
            InputError: a field is unknown, missing or out of bounds.

        Example:
            >>> float(Decode.create(batch=32, context_tokens=2048).batch)
            32.0
        """
        return build(cls, values)


@design
class Serve:
    """Steady decode serving at the largest batch that an objective and the memory allow."""

    input_tokens: Leaf = count("mean prompt length", unit="tokens", high=1e9, default=1024)
    output_tokens: Leaf = count("mean response length", unit="tokens", high=1e9, default=256)
    slo_s: Leaf = leaf(
        "longest time a token may take (TPOT)",
        unit="s",
        low=0,
        is_open=True,
        default=float("inf"),
    )
    max_batch: Leaf = count(
        "largest batch to consider", unit="requests", high=2.0**24 - 1, default=2.0**20
    )

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked `Serve`.

        Raises:
            InputError: a field is unknown, missing or out of bounds.
        """
        return build(cls, values)


def context_tokens(workload: Decode | Serve) -> Leaf:
    """Context at which a request is charged: its own for `Decode`, the full length for `Serve`."""
    if isinstance(workload, Decode):
        return workload.context_tokens
    return workload.input_tokens + workload.output_tokens
