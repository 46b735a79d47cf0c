"""What the model says to each claim of the FlashAccel paper."""

import jax

from jaxmem import devices, hbf
from jaxmem.devices.node import (
    flash_read_bytes_per_s,
    flash_write_bytes_per_s,
    n_plane,
)
from jaxmem.serving import Serve


def _node(name, quantity):
    def compute(_):
        with jax.enable_x64(True):
            return float(quantity(devices.load(name)))

    return compute


def _baseline_batch(_):
    design = hbf.Design.create(device="8xH200", llm="llama3.1-405b")
    return float(hbf.evaluate(design, Serve.create(input_tokens=15000, output_tokens=6000)).batch)


COMPUTE = {
    "csi-planes": _node("8xCSI", n_plane),
    "cli-planes": _node("8xCLI", n_plane),
    "csi-read-bandwidth": _node("8xCSI", flash_read_bytes_per_s),
    "csi-write-bandwidth": _node("8xCSI", flash_write_bytes_per_s),
    "405b-baseline-batch": _baseline_batch,
}
"""By claim: from whether fitted constants are in force to the model's number."""
