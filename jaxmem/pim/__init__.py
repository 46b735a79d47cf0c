"""Floor 4: DRAM processing-in-memory, as PATTON uses it. Twin of `jaxmem.hbf`."""

from jaxmem.pim.design import Design, PimMetrics
from jaxmem.pim.policy import Policy
from jaxmem.pim.serve import evaluate

__all__ = ["Design", "PimMetrics", "Policy", "evaluate"]
