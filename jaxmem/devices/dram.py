"""A DRAM processing-in-memory device: organisation, command timing and command energy.

The fields are those of the public AiM simulator (timing) and of CENT's power script (energy);
the catalog says which preset values are in force there. Other PIM devices fill the same
record; what they lack is NaN. Left out: the rules between commands, which `jaxmem.pim` holds.
"""

from math import nan
from typing import Any

from jaxmem.core.design import Leaf, build, count, design, leaf, part, static
from jaxmem.devices.gpu import Gpu
from jaxmem.devices.link import Link
from jaxmem.devices.parts import device, table_of, text

_AIM = "AiM simulator, GDDR6_AiM_timing"
_CENT = "CENT cent_power_calculator.py"


def _cycles(doc: str, name: str, *, is_optional: bool = False) -> Any:
    unknown = {"may_be_unknown": True, "default": nan} if is_optional else {}
    return count(
        doc, unit="cycles", low=0.0, high=1e7, alias=(name,), source=f"{_AIM} ({name})", **unknown
    )


def _joules(doc: str) -> Any:
    return leaf(doc, unit="J", low=0.0, high=1.0, may_be_unknown=True, default=nan, source=_CENT)


def _watts(doc: str) -> Any:
    return leaf(doc, unit="W", low=0.0, high=1e4, may_be_unknown=True, default=nan, source=_CENT)


@design
class PimTiming:
    """Minimum distances between commands, in cycles of the device's clock."""

    n_bl: Leaf = _cycles("burst on the data bus", "nBL")
    n_cl: Leaf = _cycles("read to data", "nCL")
    n_rcd_rd: Leaf = _cycles("activate to read", "nRCDRD")
    n_rcd_mac: Leaf = _cycles("activate to multiply-accumulate", "nRCDRDMAC")
    n_rcd_ewmul: Leaf = _cycles("activate to elementwise product", "nRCDEWMUL", is_optional=True)
    n_rcd_af: Leaf = _cycles("activate to activation function", "nRCDRDAF", is_optional=True)
    n_rcd_rdcp: Leaf = _cycles("activate to copy out of a bank", "nRCDRDCP", is_optional=True)
    n_rcd_wr: Leaf = _cycles("activate to write", "nRCDWR")
    n_rcd_wrcp: Leaf = _cycles("activate to copy into a bank", "nRCDWRCP", is_optional=True)
    n_rp: Leaf = _cycles("precharge to activate", "nRP")
    n_ras: Leaf = _cycles("activate to precharge", "nRAS")
    n_rc: Leaf = _cycles("activate to activate, same bank", "nRC")
    n_wr: Leaf = _cycles("end of write data to precharge", "nWR")
    n_rtp: Leaf = _cycles("read to precharge", "nRTP")
    n_cwl: Leaf = _cycles("write to data", "nCWL")
    n_ccd: Leaf = _cycles("column command to column command, same bank", "nCCDL")
    n_rrd_s: Leaf = _cycles("activate to activate, other bank group", "nRRDS")
    n_rrd_l: Leaf = _cycles("activate to activate, same bank group", "nRRDL")
    n_wtr_s: Leaf = _cycles("end of write data to read, other bank group", "nWTRS")
    n_wtr_l: Leaf = _cycles("end of write data to read, same bank group", "nWTRL")
    n_faw: Leaf = _cycles("window of four activates", "nFAW")
    n_rfc: Leaf = _cycles("refresh of all banks", "nRFC")
    n_refi: Leaf = _cycles("refresh interval", "nREFI")
    n_cl_register: Leaf = _cycles("register read to data", "nCLREG", is_optional=True)
    n_cwl_register: Leaf = _cycles("register write to data", "nCWLREG", is_optional=True)
    n_cwl_buffer: Leaf = _cycles("global-buffer write to data", "nCWLGB", is_optional=True)
    n_cl_buffer: Leaf = _cycles("global-buffer read to data", "nCLGB", is_optional=True)
    n_wpre: Leaf = _cycles("write preamble", "nWPRE", is_optional=True)
    n_mode_change: Leaf = _cycles("change of mode (TMOD)", "nMODCH", is_optional=True)

    @classmethod
    def create(cls, **fields: Any) -> "PimTiming":
        """A checked `PimTiming` (cycles); raises `InputError`."""
        return build(cls, fields)


@design
class PimEnergy:
    """Joules a command takes in one channel, and watts a channel draws at rest."""

    activate_bank_j: Leaf = _joules("activate and precharge of one bank (ACT)")
    mac_all_bank_j: Leaf = _joules("multiply-accumulate of one burst in every bank (MAC16)")
    mac_bank_j: Leaf = _joules("multiply-accumulate of one burst in one bank (MAC)")
    ewmul_all_bank_j: Leaf = _joules("elementwise product in every bank (EWMUL16)")
    af_all_bank_j: Leaf = _joules("activation function in every bank (AF16)")
    read_burst_j: Leaf = _joules("read of one burst (RD), pins not counted")
    write_burst_j: Leaf = _joules("write of one burst (WR), pins not counted")
    write_all_bank_j: Leaf = _joules("write of one burst in every bank (WRA16), pins not counted")
    read_copy_j: Leaf = _joules("copy of one burst, bank to global buffer (RDCP)")
    write_copy_j: Leaf = _joules("copy of one burst, global buffer to bank (WRCP)")
    read_mac_j: Leaf = _joules("read of the accumulators (RDMAC16), pins not counted")
    write_mac_j: Leaf = _joules("write of the accumulators (WRMAC16), pins not counted")
    read_af_j: Leaf = _joules("read of the activation results (RDAF16), pins not counted")
    dq_burst_j: Leaf = _joules("one burst over the data pins")
    refresh_j: Leaf = _joules("refresh of all banks (REFab)")
    buffer_read_j: Leaf = _joules("read of a burst from the global buffer")
    buffer_write_j: Leaf = _joules("write of a burst to the global buffer")
    shared_buffer_read_j: Leaf = _joules("read of the device's shared buffer")
    shared_buffer_write_j: Leaf = _joules("write of the device's shared buffer")
    instruction_read_j: Leaf = _joules("read of the device's instruction buffer")
    controller_request_j: Leaf = _joules("controller, a data or PIM command")
    controller_command_j: Leaf = _joules("controller, any command")
    host_link_j_per_byte: Leaf = leaf(
        "energy of a byte over the host link",
        unit="J/B",
        low=0.0,
        high=1e-3,
        may_be_unknown=True,
        default=nan,
        source=_CENT,
    )
    standby_active_w: Leaf = _watts("a channel with a row open")
    standby_idle_w: Leaf = _watts("a channel with every row closed")
    buffer_w: Leaf = _watts("leakage of a channel's global buffer")
    shared_buffer_w: Leaf = _watts("leakage of the device's shared buffer")
    instruction_w: Leaf = _watts("leakage of the device's instruction buffer")

    @classmethod
    def create(cls, **fields: Any) -> "PimEnergy":
        """A checked `PimEnergy` (J, W); raises `InputError`."""
        return build(cls, fields)


@design
class PimDevice:
    """A PIM memory and the host that it serves."""

    name: str = static("catalog name", default="", parse=text)
    isa: str = static("instruction set, by name", default="aim", parse=text)
    n_channel: Leaf = count("channels", high=1e5, source="PATTON 5.2")
    n_bank: Leaf = count("banks a channel", high=1e4, source="PATTON 5.2")
    bank_per_unit: Leaf = count(
        "banks that share one compute unit", high=1e4, default=1, source="AiM: one a bank"
    )
    n_row: Leaf = count("rows a bank", high=1e8, source="PATTON 5.2")
    row_bytes: Leaf = count("row of one bank", unit="B", high=2.0**24, source="PATTON 5.2")
    burst_bytes: Leaf = count("burst (column access)", unit="B", high=2.0**16, source="PATTON 5.2")
    clock_s: Leaf = leaf(
        "one cycle (tCK)", unit="s", low=0.0, is_open=True, high=1e-3, source="AiM preset: 500 ps"
    )
    n_command_queue: Leaf = count("commands a channel's queue holds", high=1e6, source=_AIM)
    timing: PimTiming = part("a timing table", parse=table_of(PimTiming))
    energy: PimEnergy = part("an energy table", parse=table_of(PimEnergy))
    host: Gpu = part("the host (kind gpu)", parse=device("gpu"))
    host_link: Link = part("link from host to PIM (kind link)", parse=device("link"))

    @classmethod
    def create(cls, **fields: Any) -> "PimDevice":
        """A checked `PimDevice`.

        Args:
            **fields: value by field name, in the field's SI unit; a part as a record, a catalog
                name or a path.

        Raises:
            InputError: unknown or missing field, wrong type, out of bounds.
        """
        return build(cls, fields)


def bank_bytes(pim: PimDevice) -> Leaf:
    """Bytes of a bank. Gradient: exact. Source: PATTON 5.2 (32 MiB)."""
    return pim.n_row * pim.row_bytes


def channel_bytes(pim: PimDevice) -> Leaf:
    """Bytes of a channel. Gradient: exact. Source: PATTON 5.2 (512 MiB)."""
    return pim.n_bank * bank_bytes(pim)


def capacity_bytes(pim: PimDevice) -> Leaf:
    """Bytes of the device. Gradient: exact. Source: PATTON 5.2 (16 GiB)."""
    return pim.n_channel * channel_bytes(pim)


def row_bursts(pim: PimDevice) -> Leaf:
    """Bursts of a row. Gradient: exact. Source: PATTON 5.2 (64)."""
    return pim.row_bytes / pim.burst_bytes


def bank_bytes_per_s(pim: PimDevice) -> Leaf:
    """Bytes per second that a bank's compute unit reads from an open row.

    Gradient: exact. Source: one burst every nCCDL (AiM: 32 GB/s).
    """
    return pim.burst_bytes / (pim.timing.n_ccd * pim.clock_s)


def internal_bytes_per_s(pim: PimDevice) -> Leaf:
    """Bytes per second that all compute units together read from open rows.

    Gradient: exact. Source: as `bank_bytes_per_s`, times the units (AiM: 16.4 TB/s).
    """
    units = pim.n_channel * pim.n_bank / pim.bank_per_unit
    return units * bank_bytes_per_s(pim)


def external_bytes_per_s(pim: PimDevice) -> Leaf:
    """Bytes per second over the data pins of all channels.

    Gradient: exact. Source: one burst every nBL (AiM: 32 GB/s a channel).
    """
    return pim.n_channel * pim.burst_bytes / (pim.timing.n_bl * pim.clock_s)
