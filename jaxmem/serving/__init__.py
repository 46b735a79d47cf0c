"""Floor 3: what is asked of a system: traffic, traces, the prefix cache, the scheduler."""

from jaxmem.serving.blocks import Blocked
from jaxmem.serving.conversations import draw
from jaxmem.serving.replay import Replayed, replay
from jaxmem.serving.reuse import Curve, curve
from jaxmem.serving.scheduler import Config
from jaxmem.serving.sessions import History, Latency, latency, run
from jaxmem.serving.traces import Trace, read_trace
from jaxmem.serving.workload import Decode, Serve

__all__ = [
    "Blocked",
    "Config",
    "Curve",
    "Decode",
    "History",
    "Latency",
    "Replayed",
    "Serve",
    "Trace",
    "curve",
    "draw",
    "latency",
    "read_trace",
    "replay",
    "run",
]
