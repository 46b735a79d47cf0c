"""Floor 3: what is asked of a system. Traces, the prefix cache and the scheduler join it here."""

from jaxmem.serving.workload import Decode, Serve

__all__ = ["Decode", "Serve"]
