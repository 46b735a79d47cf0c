"""Energy of a load or a stream: so many joules a command, and standby while time passes.

Per-command energies of CENT's power model (research/aim.md section 4); standby is charged over
real time in each state, not divided by 32 twice as the published script does. Left out, as there:
what the module's shared and instruction buffers take, and reads of the global buffer by MACs.
"""

from typing import Any

from jaxmem.core import relax
from jaxmem.core.design import Leaf
from jaxmem.pim.constraints import COMMAND
from jaxmem.pim.engine import Timing
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
    return activate * (load.n_bank_row + load.n_copy_row) + burst * load.n_copy


def standby_j(device: Any, busy_s: Leaf, idle_s: Leaf) -> Leaf:
    """Joules of all channels' standby: rows open while busy, closed while idle."""
    e = device.energy
    return device.n_channel * (e.standby_active_w * busy_s + e.standby_idle_w * idle_s)


def command_module_j(timing: Timing, device: Any) -> dict[str, Leaf]:
    """Joules of every command that a stream issued, by command, all channels of the module.

    Pins, buffers and controller included; standby is not. Gradient: exact.
    Source: research/aim.md section 4.
    """
    each = _component_j(device)
    return {
        name: _times(n, sum(part.get(name, 0.0) for part in each.values()))
        for name, n in timing.counts.items()
    }


def component_module_j(timing: Timing, device: Any) -> dict[str, Leaf]:
    """Joules of a stream by component, all channels of the module, standby included.

    Returns:
        activate, compute, array (reads, writes and copies), pins, buffer, controller, refresh,
        standby.
    """
    parts = {
        component: sum(_times(timing.counts[name], joule) for name, joule in each.items())
        for component, each in _component_j(device).items()
    }
    return {**parts, "standby": standby_module_j(timing, device)}


def stream_module_j(timing: Timing, device: Any) -> Leaf:
    """Joules of a stream, all channels of the module: commands and standby. Gradient: exact.

    Example:
        >>> import jaxmem as jm
        >>> from jaxmem.pim import isa, timing
        >>> aim = jm.devices.load("aim-gddr6-16gib")
        >>> one = {"mask": 1 << 31, "row": 0, "n": 64}
        >>> row = isa.stream([("WR_BIAS", one), ("MAC_ABK", one), ("RD_MAC", one), ("EOC", {})])
        >>> f"{stream_module_j(timing.run(row, aim), aim) * 1e9:.0f} nJ"
        '993 nJ'
    """
    return sum(component_module_j(timing, device).values())


def stream_channel_j(timing: Timing, device: Any) -> Leaf:
    """Joules of a stream a channel, the mean over the module's channels."""
    return stream_module_j(timing, device) / device.n_channel


def stream_module_w(timing: Timing, device: Any) -> Leaf:
    """Mean watts of the module while the stream runs."""
    return stream_module_j(timing, device) / (timing.cycles * device.clock_s)


def standby_module_j(timing: Timing, device: Any) -> Leaf:
    """Joules of all channels' standby, by whether a row is open, over the stream's real time."""
    e = device.energy
    open_s = timing.open_cycles * device.clock_s
    closed_s = (timing.cycles * device.n_channel - timing.open_cycles) * device.clock_s
    return e.standby_active_w * open_s + e.standby_idle_w * closed_s


def published_standby_module_j(timing: Timing, device: Any) -> Leaf:
    """The standby that CENT's script prints: divided by the channels twice, so too small.

    Source: research/aim.md section 4, section 8 gotcha 11 (its 32 is the channel count).
    """
    return standby_module_j(timing, device) / device.n_channel


def _component_j(device: Any) -> dict[str, dict[str, Leaf]]:
    """{component: {command: joules of one}} of one channel."""
    e, n_bank = device.energy, device.n_bank
    # An extension takes the energy of the command that it resembles.
    array = {
        "RD": e.read_burst_j, "WR": e.write_burst_j, "RDCP": e.read_copy_j,
        "WRCP": e.write_copy_j, "WRA16": e.write_all_bank_j, "WRO16": e.write_all_bank_j,
        "WRK16": e.write_all_bank_j, "WRMAC16": e.write_mac_j, "RDMAC16": e.read_mac_j,
        "RDAF16": e.read_af_j,
    }  # fmt: skip
    compute = {
        "MAC": e.mac_bank_j, "MAC16": e.mac_all_bank_j, "MACO16": e.mac_all_bank_j,
        "EWMUL16": e.ewmul_all_bank_j, "AF16": e.af_all_bank_j,
    }  # fmt: skip
    pins = dict.fromkeys(_ON_PINS, e.dq_burst_j)
    buffer = {"WRGB": e.buffer_write_j, "RDCP": e.buffer_write_j, "WRCP": e.buffer_read_j}
    controller = {
        name: e.controller_command_j + (e.controller_request_j if name not in _ROW_ONLY else 0.0)
        for name in COMMAND
    }
    return {
        "activate": {"ACT": e.activate_bank_j, "ACT16": n_bank * e.activate_bank_j},
        "compute": compute,
        "array": array,
        "pins": pins,
        "buffer": buffer,
        "controller": controller,
        "refresh": {"REFab": e.refresh_j},
    }


def _times(count: Leaf, joule: Leaf) -> Leaf:
    """Joules of `count` commands; none cost nothing, also where one's energy is not known."""
    return relax.where(count > 0, count * relax.where(count > 0, joule, 0.0), 0.0)


_ON_PINS = ("RD", "WR", "WRGB", "RDMAC16", "RDAF16", "WRMAC16", "WRA16", "WRO16", "WRK16")
_ROW_ONLY = ("ACT", "ACT16", "PRE", "PREA", "TMOD", "REFab")
