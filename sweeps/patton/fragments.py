"""PATTON's microbenchmark: what eight fragments of a 2 KB row cost, and where the time goes.

Section 3.2.2 of the paper: 2.18 times the time and 1.34 times the energy of one whole row. The
sequence that gives it is research/aim.md's inference, run on the exact engine. With a mode change
of one cycle the penalty is little more than a sixth, so it is nearly all mode switching. The
energy is a channel's, standby included; the memory controller's is left out, as the paper's ratio
seems to do (research/patton.md). Run it as it stands: `python sweeps/patton/fragments.py`.
"""

import dataclasses

import numpy as np

import jaxmem as jm
from jaxmem.pim import energy, streams, timing

FRAGMENTS = (1, 2, 4, 8, 16, 32)
PARTS = ("data", "mode_switch", "row_miss", "stall")


def rows(device):
    """(fragments, cycles, nJ a channel, cycles by cause) of each fragmentation."""
    for n in FRAGMENTS:
        found = timing.run(streams.fragments(n, mask=streams.ALL), device, "simulator")
        parts = energy.component_module_j(found, device)
        joule = sum(float(v) for name, v in parts.items() if name != "controller")
        cause = [float(found.cause[part]) for part in PARTS]
        yield n, int(found.cycles), joule / int(device.n_channel) * 1e9, cause


def main() -> None:
    device = jm.devices.load("aim-gddr6-16gib")
    quick = dataclasses.replace(device.timing, n_mode_change=np.float64(1))
    for title, chosen in (
        ("as it is", device),
        ("with a mode change of one cycle", dataclasses.replace(device, timing=quick)),
    ):
        print(f"One row in fragments, {title}")
        head = " ".join(f"{part:>11}" for part in PARTS)
        print(f"{'fragments':>9} {'cycles':>7} {'ratio':>6} {'nJ':>7} {'ratio':>6} {head}")
        whole = None
        for n, cycles, nanojoule, parts in rows(chosen):
            whole = whole or (cycles, nanojoule)
            time, power = cycles / whole[0], nanojoule / whole[1]
            shares = " ".join(f"{part:>11.0f}" for part in parts)
            print(f"{n:>9} {cycles:>7} {time:>6.3f} {nanojoule:>7.1f} {power:>6.3f} {shares}")


if __name__ == "__main__":
    main()
