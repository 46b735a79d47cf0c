"""Floor 3: the processor beside the memory, one transformer step at a time."""

from jaxmem.xpu.step import Memory, StepTime, hbm, step

__all__ = ["Memory", "StepTime", "hbm", "step"]
