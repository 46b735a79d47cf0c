"""A link between GPUs, or between a host and its PIM, as bandwidth, latency and efficiency.

A transfer of n bytes takes `latency_s + n / (efficiency * bytes_per_s)`; collectives build on it in
`jaxmem.xpu`. Left out: contention between links and message-size effects beyond the latency.
"""

from typing import Any

from jaxmem.core.design import Leaf, build, design, leaf, static
from jaxmem.devices.parts import text


@design
class Link:
    """One GPU's connection, counted in one direction."""

    name: str = static("catalog name", default="", parse=text)
    bytes_per_s: Leaf = leaf(
        "peak bandwidth of one direction, per GPU",
        unit="B/s",
        low=0.0,
        is_open=True,
        high=1e15,
        source="datasheet",
    )
    latency_s: Leaf = leaf(
        "fixed time of a collective or transfer (alpha)",
        unit="s",
        low=0.0,
        high=1.0,
        source="FlashAccel study of jaxmem, untuned set",
    )
    efficiency: Leaf = leaf(
        "share of the peak that large messages reach (eta_l)",
        low=0.0,
        is_open=True,
        high=1.0,
        source="FlashAccel study of jaxmem, untuned set",
    )

    @classmethod
    def create(cls, **fields: Any) -> "Link":
        """A checked `Link`.

        Args:
            **fields: value by field name, in the field's SI unit.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.
        """
        return build(cls, fields)


def transfer_s(link: Link, n_bytes: Leaf) -> Leaf:
    """Seconds that `n_bytes` take in one direction.

    Gradient: exact. Source: latency-bandwidth (Hockney) model.
    """
    return link.latency_s + n_bytes / (link.efficiency * link.bytes_per_s)
