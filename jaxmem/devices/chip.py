"""The inside of an accelerator: cores, systolic arrays, vector units, caches and clocks.

What the mapped fidelity of `jaxmem.xpu` tiles matrix products over; `Gpu` holds the rates of the
whole. Fixed times of operators are those that LLMCompass measured.
"""

from typing import Any, Self

from jaxmem.core.design import Leaf, build, count, design, leaf, static
from jaxmem.devices.parts import text

_SOURCE = "LLMCompass (ISCA'24), research/llmcompass.md"
_TIME = {"unit": "s", "low": 0.0, "high": 1.0, "default": 0.0, "source": _SOURCE}


@design
class Chip:
    """One accelerator die with its memory, as LLMCompass describes it."""

    name: str = static("catalog name", default="", parse=text)
    n_core: Leaf = count("cores (streaming multiprocessors)", source=_SOURCE)
    clock_hz: Leaf = leaf("clock", unit="Hz", low=0.0, is_open=True, high=1e12, source=_SOURCE)
    l2_bytes: Leaf = count("global buffer", unit="B", high=1e12, source=_SOURCE)
    l2_bytes_per_cycle: Leaf = leaf(
        "its bandwidth, all cores", unit="B", low=0.0, is_open=True, high=1e9, source=_SOURCE
    )
    l1_bytes: Leaf = count("local buffer of a core", unit="B", high=1e9, source=_SOURCE)
    n_array: Leaf = count("systolic arrays of a core", source=_SOURCE)
    array_rows: Leaf = count("rows of an array", source=_SOURCE)
    array_columns: Leaf = count("columns of an array", source=_SOURCE)
    mac_per_cycle: Leaf = leaf(
        "multiply-accumulates of an element of an array, a cycle",
        low=0.0, is_open=True, high=1e6, source=_SOURCE,
    )  # fmt: skip
    vector_flops_per_cycle: Leaf = leaf(
        "FLOP of a core's vector units a cycle", low=0.0, is_open=True, high=1e9, source=_SOURCE
    )
    n_vector: Leaf = count("vector units of a core", source=_SOURCE)
    vector_width: Leaf = count("lanes of one", source=_SOURCE)
    lane_flops_per_cycle: Leaf = leaf(
        "FLOP of a vector unit's lane group a cycle, as LLMCompass counts",
        low=0.0, is_open=True, high=1e6, source=_SOURCE,
    )  # fmt: skip
    flops_per_exp: Leaf = leaf("FLOP of an exponential", low=1.0, high=1e4, source=_SOURCE)
    memory_bytes_per_s: Leaf = leaf(
        "memory bandwidth", unit="B/s", low=0.0, is_open=True, high=1e15, source=_SOURCE
    )
    matmul_s: Leaf = leaf("fixed time of a matrix product", **_TIME)
    softmax_s: Leaf = leaf("fixed time of a softmax", **_TIME)
    norm_s: Leaf = leaf("fixed time of a normalisation", **_TIME)
    activation_s: Leaf = leaf("fixed time of an activation", **_TIME)

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked `Chip`.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.
        """
        return build(cls, values)


def peak_array_flops(chip: Chip) -> Leaf:
    """FLOP/s of all systolic arrays."""
    per_cycle = chip.n_array * chip.array_rows * chip.array_columns * chip.mac_per_cycle
    return 2.0 * chip.n_core * per_cycle * chip.clock_hz


def peak_vector_flops(chip: Chip) -> Leaf:
    """FLOP/s of all vector units."""
    return chip.n_core * chip.vector_flops_per_cycle * chip.clock_hz
