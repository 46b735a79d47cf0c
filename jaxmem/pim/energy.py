"""Energy of a load: so many joules a command, and standby while time passes.

Per-command energies of CENT's power model (research/aim.md section 4), per channel; standby is
charged over real time in each state, not divided by 32 twice as the published script does.
"""

from typing import Any

from jaxmem.core.design import Leaf
from jaxmem.pim.isa import Load


def mac_j(load: Load, device: Any) -> Leaf:
    """Joules of one channel's MAC steps: activations, MACs, buffer and register transfers."""
    e = device.energy
    activate = device.n_bank * e.activate_bank_j
    return (
        activate * (load.n_miss + load.n_extra_row)
        + e.mac_all_bank_j * load.n_burst
        + e.dq_burst_j * load.n_gb
        + (e.write_burst_j + e.dq_burst_j) * load.n_step
        + (e.read_burst_j + e.dq_burst_j) * load.n_step
    )


def bank_write_j(load: Load, device: Any) -> Leaf:
    """Joules of one channel's writes to single banks: one bank's row and one burst each."""
    e = device.energy
    burst = e.write_burst_j + e.dq_burst_j
    return e.activate_bank_j * load.n_write_row + burst * load.n_write


def all_bank_write_j(load: Load, device: Any) -> Leaf:
    """Joules of one channel's all-bank writes; data crosses the pins once a command."""
    e = device.energy
    burst = device.n_bank * e.write_burst_j + e.dq_burst_j
    return device.n_bank * e.activate_bank_j * load.n_write_row + burst * load.n_write


def copy_j(load: Load, device: Any) -> Leaf:
    """Joules of one channel's commits: every bank reads and writes each burst once."""
    e = device.energy
    burst = device.n_bank * (e.read_burst_j + e.write_burst_j + 2 * e.dq_burst_j)
    activate = device.n_bank * e.activate_bank_j
    return activate * (load.n_write_row + load.n_miss) + burst * load.n_copy


def standby_j(device: Any, busy_s: Leaf, idle_s: Leaf) -> Leaf:
    """Joules of all channels' standby: rows open while busy, closed while idle."""
    e = device.energy
    return device.n_channel * (e.standby_active_w * busy_s + e.standby_idle_w * idle_s)
