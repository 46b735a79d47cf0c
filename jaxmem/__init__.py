"""jaxmem: memory-centric hardware for LLM inference, as jitted, differentiable array programs.

Names are imported when they are first used, so that `import jaxmem` and the command line's help do
not wait for JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxmem import devices, hbf, llm, pim, serving, xpu
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
    "devices",
    "hbf",
    "linspace",
    "llm",
    "logspace",
    "optimize",
    "pim",
    "serving",
    "sweep",
    "xpu",
]

_HOME = {
    "Decode": "jaxmem.serving",
    "Serve": "jaxmem.serving",
    "InputError": "jaxmem.core.errors",
    "JaxmemError": "jaxmem.core.errors",
}
_ROOMS = ("devices", "hbf", "llm", "pim", "serving", "xpu")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"jaxmem.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'jaxmem' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME.get(name, "jaxmem.explore")), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
