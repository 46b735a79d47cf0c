"""How a model's KV cache lies in the banks, and what using it puts on the channels.

One door to what several files hold: granule shapes (`granule`), exact addresses (`address`), where
the blocks of a batch lie (`placement`), the commands of a step (`commands`), their load (`loads`),
and the closed forms for a placement that is not known block by block (`expected`).
"""

from jaxmem.pim.expected import (
    commit,
    key_write,
    prefill_write,
    query_key,
    run_blocks,
    score_value,
    value_write,
    zone_rows,
)
from jaxmem.pim.granule import Shape, kv_kind, layers, shape
from jaxmem.pim.isa import Load, add, scale

__all__ = [
    "Load",
    "Shape",
    "add",
    "commit",
    "key_write",
    "kv_kind",
    "layers",
    "prefill_write",
    "query_key",
    "run_blocks",
    "scale",
    "score_value",
    "shape",
    "value_write",
    "zone_rows",
]
