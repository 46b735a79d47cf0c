"""Floor 3: the processor beside the memory: operators, transformer steps, served models."""

from jaxmem.xpu import operators
from jaxmem.xpu.online import Online, online
from jaxmem.xpu.step import PLAIN, Memory, StepTime, hbm, step

__all__ = ["PLAIN", "Memory", "Online", "StepTime", "hbm", "online", "operators", "step"]
