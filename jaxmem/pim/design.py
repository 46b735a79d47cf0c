"""A processing-in-memory system as a point of a design space."""

import dataclasses
from typing import Any, Self

import numpy as np

from jaxmem.core.design import Leaf, build, count, design, leaf, part, record
from jaxmem.core.metrics import Metrics
from jaxmem.devices.dram import PimDevice
from jaxmem.devices.parts import device
from jaxmem.llm import LayerTable, layer_table
from jaxmem.pim import granule
from jaxmem.pim import policy as policies
from jaxmem.pim.policy import Policy


@design
class Design:
    """A host with PIM memory, the runtime that manages it, and the model it serves."""

    device: PimDevice = part("PIM device: a catalog name or TOML path", parse=device("pim"))
    llm: LayerTable = part("model: a zoo name, path or dict", parse=layer_table)
    policy: Policy = part("runtime: a name", default="patton", parse=policies.load)
    ch_per_head: Leaf = count(
        "channels of a KV head (ChPerHead); 0 = channels / KV heads, at least 1",
        low=0,
        lattice=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0),
        high=1024,
        default=0,
        source="PATTON 4.2",
    )
    block_tokens: Leaf = count(
        "tokens of a KV block, a multiple of the banks and of a burst's elements; 0 = the policy's",
        unit="tokens",
        low=0,
        lattice=(16.0, 32.0, 64.0, 128.0),
        high=4096,
        default=0,
        source="PATTON 2.3: vLLM's default of 16; 5.2: BlockPIM's 128",
    )
    expected_run_blocks: Leaf = leaf(
        "mean run of consecutive Value blocks; NaN = the worst case, one owned granule",
        unit="blocks",
        low=1,
        may_be_unknown=True,
        default=float("nan"),
        source="a simulation (run_blocks.csv), or between worst and best case",
    )

    @classmethod
    def create(cls, **values: Any) -> Self:
        """A checked design.

        Args:
            values: its fields. `expected_run_blocks="simulated"` takes what serving ShareGPT-like
                conversations gave for granules of this size.

        Raises:
            InputError: a field is unknown, missing or out of bounds, with the nearest known name;
                nothing was simulated for such a policy.

        Example:
            >>> import jaxmem as jm
            >>> d = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b",
            ...                          expected_run_blocks="simulated")
            >>> float(d.policy.own_blocks), round(float(d.expected_run_blocks), 1)
            (16.0, 17.5)
        """
        if values.get("expected_run_blocks") != "simulated":
            return build(cls, values)
        point = build(cls, {**values, "expected_run_blocks": float("nan")})
        c = float(granule.layers(point)[0].ch_per_head)
        run = policies.simulated_run_blocks(point.policy, c)
        return dataclasses.replace(point, expected_run_blocks=np.float64(run))


@record
class PimMetrics(Metrics):
    """What a PIM system achieves, beyond `Metrics`."""

    row_activations: Leaf = leaf("rows opened in a decode step, over all channels", unit="rows")
    hit_rate: Leaf = leaf("prefix-cache hit rate; NaN where the workload has no history")
    run_blocks: Leaf = leaf("run of Value blocks that the step was timed with", unit="blocks")
