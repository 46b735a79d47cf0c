"""The two currencies of PIM execution: a stream of commands, and the load it puts on a channel.

AiM's instruction set as research/aim.md section 2 documents it. A placement yields either: the
stream feeds the exact engine and the numerics, the load feeds the closed form, and the load of a
placement's stream is the placement's load.
"""

import jax

from jaxmem.core.design import Leaf, leaf, record


@record
class Stream:
    """Commands in issue order, as a struct of arrays [n]."""

    op: Leaf = leaf("command code")  # [n] int32
    channel_mask: Leaf = leaf("channels addressed; bit 31-c selects channel c")  # [n] uint32
    bank: Leaf = leaf("bank, 0..15; ignored by all-bank commands")  # [n] int32
    row: Leaf = leaf("DRAM row")  # [n] int32
    n_burst: Leaf = leaf("bursts that the command covers", unit="bursts")  # [n] int32
    write_tag: Leaf = leaf("what a write stores, -1 for none")  # [n] int32


@record
class Load:
    """What one channel executes; counts, so that loads add.

    A step is one WRBIAS, MACAB..., RDMAC sequence.
    """

    n_gb: Leaf = leaf("bursts written to the global buffer (WRGB)", unit="bursts", default=0.0)
    n_step: Leaf = leaf("WRBIAS to RDMAC sequences", unit="steps", default=0.0)
    n_burst: Leaf = leaf("bursts multiplied in all banks (MACAB)", unit="bursts", default=0.0)
    n_miss: Leaf = leaf("steps whose first row was closed", unit="rows", default=0.0)
    n_extra_row: Leaf = leaf("rows changed inside steps", unit="rows", default=0.0)
    n_write: Leaf = leaf("write commands to rows already open", unit="bursts", default=0.0)
    n_write_row: Leaf = leaf("rows opened to write", unit="rows", default=0.0)
    n_copy: Leaf = leaf("bursts copied between rows, all banks", unit="bursts", default=0.0)


def scale(load: Load, times: Leaf) -> Load:
    """`load`, executed `times` times."""
    return jax.tree.map(lambda n: n * times, load)


def add(*loads: Load) -> Load:
    """Loads executed one after another."""
    return jax.tree.map(lambda *n: sum(n), *loads)
