"""Static figures of a sweep (matplotlib): a map over two fields, curves over one.

The paper's own design is marked by a star, the best point found by a circle.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxmem.core.errors import JaxmemError

_COLOURS = ("#0b6fa4", "#c8553d", "#3a7d44", "#8a5fbf", "#b8860b", "#4d4d4d")


class Mark(NamedTuple):
    """A point to mark: where, how it is called, and the sign that it gets."""

    x: float
    y: float
    label: str
    sign: str  # matplotlib marker


def panels(n: int, width: float = 5.4):
    """A figure with `n` panels side by side."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(1, n, figsize=(width * n, 4.2), layout="constrained")
    return figure, np.atleast_1d(axes)


def heat(axis: Any, data: Any, x: str, y: str, title: str, marks: Sequence[Mark]) -> None:
    """A map of a 2-D DataArray over its fields `x` and `y`; blank where infeasible."""
    values = data.transpose(y, x).values
    image = axis.imshow(np.ma.masked_invalid(values), origin="lower", aspect="auto", cmap="viridis")
    for setter, name in ((axis.set_xticks, x), (axis.set_yticks, y)):
        labels = [f"{v:g}" for v in data[name].values]
        setter(range(len(labels)), labels)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(title, loc="left", fontsize=10)
    axis.figure.colorbar(image, ax=axis, label=f"{data.name} [{data.attrs['unit']}]")
    for mark in marks:
        column = int(np.argmin(np.abs(data[x].values - mark.x)))
        row = int(np.argmin(np.abs(data[y].values - mark.y)))
        _mark(axis, column, row, mark)
    _legend(axis)


def curves(axis: Any, data: Any, x: str, each: str, title: str, marks: Sequence[Mark]) -> None:
    """A 2-D DataArray as one curve over `x` for every value of `each`."""
    for i, value in enumerate(data[each].values):
        line = data.sel({each: value})
        colour = _COLOURS[i % len(_COLOURS)]
        axis.plot(
            data[x].values,
            line.values,
            "-o",
            ms=3,
            lw=1.4,
            color=colour,
            label=f"{each} = {value:g}",
        )
    axis.set_xlabel(x)
    axis.set_ylabel(f"{data.name} [{data.attrs['unit']}]")
    axis.set_title(title, loc="left", fontsize=10)
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    for mark in marks:
        _mark(axis, mark.x, mark.y, mark)
    _legend(axis)


def save(figure: Any, path: Path) -> None:
    """Write the figure as PNG and forget it."""
    figure.savefig(path, dpi=130)
    _pyplot().close(figure)


def _mark(axis: Any, x: float, y: float, mark: Mark) -> None:
    axis.plot([x], [y], mark.sign, ms=14, mfc="none" if mark.sign == "o" else "#ffd166",
              mec="#d00000", mew=1.6, ls="none", label=mark.label, zorder=5)  # fmt: skip


def _legend(axis: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=8, framealpha=0.9)


def _pyplot():
    try:
        import matplotlib
    except ImportError:
        raise JaxmemError("pictures need matplotlib: pip install 'jaxmem[report]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
