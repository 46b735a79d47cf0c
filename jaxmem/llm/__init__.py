"""Floor 2: models. A name, a config.json or a dict becomes counts, bytes and arrays."""

from jaxmem.llm.model import LLM, LayerGroup
from jaxmem.llm.parallel import Parallel, resolve
from jaxmem.llm.table import (
    LayerTable,
    kind_of,
    kv_bytes,
    kv_bytes_token,
    pad,
    shard,
    table,
    weight_bytes,
)
from jaxmem.llm.zoo import layer_table, load, names, published

__all__ = [
    "LLM",
    "LayerGroup",
    "LayerTable",
    "Parallel",
    "kind_of",
    "kv_bytes",
    "kv_bytes_token",
    "layer_table",
    "load",
    "names",
    "pad",
    "published",
    "resolve",
    "shard",
    "table",
    "weight_bytes",
]
