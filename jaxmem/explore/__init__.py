"""Floor 5: spaces of designs, swept and searched."""

from jaxmem.explore.optimize import Bound, Optimum, at_least, at_most, optimize
from jaxmem.explore.space import between, linspace, logspace
from jaxmem.explore.sweep import best, removed, sweep

__all__ = [
    "Bound",
    "Optimum",
    "at_least",
    "at_most",
    "best",
    "between",
    "linspace",
    "logspace",
    "optimize",
    "removed",
    "sweep",
]
