"""How a model's KV cache lies in the banks, and what using it puts on the channels.

One door to what several files hold: granule shapes (`granule`), exact addresses (`address`), where
the blocks of a batch lie (`placement`), the commands of a step (`commands`), their load (`loads`),
and the closed forms for a placement that is not known block by block (`expected`).
"""

from jaxmem.pim.commands import DECODE, STEPS, program, stream
from jaxmem.pim.expected import (
    commit,
    imbalance,
    key_write,
    prefill_write,
    query_key,
    requests_in_turn,
    run_blocks,
    score_value,
    value_write,
    zone_rows,
)
from jaxmem.pim.granule import Shape, kv_kind, layers, shape
from jaxmem.pim.isa import Load, add, scale
from jaxmem.pim.loads import load
from jaxmem.pim.placement import Placement, contiguous

__all__ = [
    "DECODE",
    "STEPS",
    "Load",
    "Placement",
    "Shape",
    "add",
    "commit",
    "contiguous",
    "imbalance",
    "key_write",
    "kv_kind",
    "layers",
    "load",
    "prefill_write",
    "program",
    "query_key",
    "requests_in_turn",
    "run_blocks",
    "scale",
    "score_value",
    "shape",
    "stream",
    "value_write",
    "zone_rows",
]
