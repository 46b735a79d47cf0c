"""Floor 4: GPUs with High-Bandwidth Flash, as FlashAccel uses them. Twin of `jaxmem.pim`."""

from jaxmem.hbf.design import Design, HbfMetrics
from jaxmem.hbf.serve import evaluate

__all__ = ["Design", "HbfMetrics", "evaluate"]
