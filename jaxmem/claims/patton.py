"""What the model says to each claim of the PATTON paper."""

import jax

from jaxmem import devices
from jaxmem.pim.isa import Load
from jaxmem.pim.timing import mac_cycles

_ROW_BURSTS = 64


def _fragments(_):
    """Eight WRBIAS-MACAB-RDMAC steps over a 2 KB row against one; the row is closed at first."""
    with jax.enable_x64(True):
        device = devices.load("aim-gddr6-16gib")

        def cycles(n_step):
            row = Load(n_gb=_ROW_BURSTS, n_burst=_ROW_BURSTS, n_step=n_step, n_miss=1.0)
            return mac_cycles(row, device)

        return float(cycles(8.0) / cycles(1.0))


COMPUTE = {"fragments-latency": _fragments}
"""By claim: from whether fitted constants are in force to the model's number."""
