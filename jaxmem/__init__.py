"""jaxmem: memory-centric hardware for LLM inference, as jitted, differentiable array programs."""

from jaxmem import hbf, llm, pim
from jaxmem.core.errors import InputError, JaxmemError
from jaxmem.explore import (
    Optimum,
    at_least,
    at_most,
    best,
    between,
    linspace,
    logspace,
    optimize,
    sweep,
)
from jaxmem.serving import Decode, Serve

__version__ = "0.1.0"
__all__ = [
    "Decode",
    "InputError",
    "JaxmemError",
    "Optimum",
    "Serve",
    "at_least",
    "at_most",
    "best",
    "between",
    "hbf",
    "linspace",
    "llm",
    "logspace",
    "optimize",
    "pim",
    "sweep",
]
