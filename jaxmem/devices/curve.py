"""How the time of one kind of kernel follows its bytes and FLOP on a GPU: an efficiency curve.

The roofline's two sides, each at a share of its peak, joined smoothly; a fixed time, which is what
makes small operators inefficient; and what few pieces, long chains and padding cost. The shipped
curves are fitted to kernels measured on H200 and keep their untuned values (docs/gpu.md).
"""

from typing import Any

from jaxmem.core.design import Leaf, build, design, leaf, static
from jaxmem.devices.parts import text

_SOURCE = "untuned: the roofline; a curve's file says what it was fitted to"
_SHARE = {"low": 0.0, "is_open": True, "high": 1.0, "default": 1.0, "source": _SOURCE}
_TIME = {"unit": "s", "low": 0.0, "high": 1.0, "default": 0.0, "source": _SOURCE}


@design
class Curve:
    """Constants of one kind of kernel; the defaults are the plain roofline."""

    name: str = static("catalog name", default="", parse=text)
    fixed_s: Leaf = leaf("fixed time", **_TIME)
    read_share: Leaf = leaf("share of the bandwidth that bytes are moved at", **_SHARE)
    flops_share: Leaf = leaf("share of the peak that FLOP are done at", **_SHARE)
    sharpness: Leaf = leaf(
        "power of the mean that joins the two: 1 adds them, large takes the longer",
        low=0.5, high=64.0, default=64.0, source=_SOURCE,
    )  # fmt: skip
    chain_s: Leaf = leaf("time of an element of what follows one after another", **_TIME)
    root_s: Leaf = leaf(
        "time of the root of a MB: larger messages use more of a link's channels", **_TIME
    )
    piece_s: Leaf = leaf("time of a piece of work, over all cores", **_TIME)
    split: Leaf = leaf(
        "parts that each piece is cut into, so that few pieces keep many cores busy",
        low=0.01, high=1e6, default=1e6, source=_SOURCE,
    )  # fmt: skip
    extra: Leaf = leaf(
        "passes over an operator's other operands at full bandwidth", low=0.0, high=100.0,
        default=0.0, source=_SOURCE,
    )  # fmt: skip
    padding: Leaf = leaf(
        "rows that each group is padded by", low=0.0, high=1e4, default=0.0, source=_SOURCE
    )
    passes: Leaf = leaf(
        "passes over what experts read and write of tokens", low=0.0, high=100.0, default=1.0,
        source=_SOURCE,
    )  # fmt: skip
    crowd: Leaf = leaf(
        "visits to experts that crowd on one GPU, however few there are", low=0.0, high=1e4,
        default=0.0, source=_SOURCE,
    )  # fmt: skip
    skew: Leaf = leaf(
        "the busiest GPU's work over the mean's is GPUs to this, times the power of popularity",
        low=0.0, high=1.0, default=0.0, source=_SOURCE,
    )  # fmt: skip

    @classmethod
    def create(cls, **fields: Any) -> "Curve":
        """A checked `Curve`.

        Args:
            **fields: value by field name, in the field's SI unit; others are the plain roofline's.

        Raises:
            InputError: unknown field, wrong type, out of bounds.
        """
        return build(cls, fields)
