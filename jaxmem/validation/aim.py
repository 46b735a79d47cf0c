"""Bodies `aim` and `aim-refresh`: instruction streams measured on the public AiM simulator.

Cycles and per-command counts of every case, in simulator mode. `aim-refresh` was measured with the
simulator's refresh mended. Source: research/aim.md section 5.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from jaxmem import devices
from jaxmem.pim import timing, trace_form
from jaxmem.validation.body import Body, Case

DEVICE = "aim-gddr6-16gib"


def check(path: Path) -> Iterator[Case]:
    """Every case of a file; those measured with refresh are run with it.

    Raises:
        InputError: not such a file.
    """
    device = devices.load(DEVICE)
    for case in trace_form.read(path, device):
        at, refreshes = device, case.refresh is not None
        if case.refresh is not None:
            interval, length = map(np.float64, case.refresh)
            table = dataclasses.replace(device.timing, n_refi=interval, n_rfc=length)
            at = dataclasses.replace(device, timing=table)
        found = timing.run(case.stream, at, "simulator", refreshes)
        cycles = int(found.cycles)
        counts = {name: int(n) for name, n in found.counts.items() if int(n)}
        measured = case.cycles or 0
        error = abs(cycles / measured - 1) if measured else float(cycles > 0)
        is_exact = cycles == case.cycles and case.counts in (None, counts)
        yield Case(case.id, case.family, is_exact, error)


BODIES = (
    Body("aim", "AiM instruction streams, measured on the public simulator", "golden/aim.jsonl",
         check),
    Body("aim-refresh", "the same with the simulator's refresh mended", "golden/aim_refresh.jsonl",
         check),
)  # fmt: skip
