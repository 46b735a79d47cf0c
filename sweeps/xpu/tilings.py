"""The few tilings that matter: which of LLMCompass' lose least over products of today's models.

Greedy: each next tiling is the one that lowers the mean time most, over an A100 and an H200-like
chip. Prints the rows of `jaxmem.xpu.matmul.COARSE` and what they lose.

    JAXMEM_REFERENCE=... python sweeps/xpu/tilings.py [COUNT]
"""

import itertools
import os
import sys
from pathlib import Path

import jax
import numpy as np

from jaxmem.validation import llmcompass
from jaxmem.xpu import matmul

CHIPS = ("dict:A100_80GB_fp16", "custom:H200_SXM_like")
ROWS = (2, 8, 32, 64, 128, 256, 512, 2048, 8192)
WEIGHTS = (
    (4096, 6144), (4096, 1536), (8192, 3584), (1024, 8192), (16384, 2304), (7168, 2048),
    (512, 4096), (2048, 512), (5120, 5120), (14336, 4096), (768, 4096), (4096, 128256),
)  # fmt: skip


def main() -> None:
    """Print the tilings."""
    n = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    golden = Path(os.environ["JAXMEM_REFERENCE"]) / "golden"
    grid = matmul.GRID
    with jax.enable_x64(True):
        timed = jax.jit(lambda c, m, k, n: matmul.tiling_cycles(c, m, k, n, 2.0, grid))
        cycles = []
        for name, m, weight in itertools.product(CHIPS, ROWS, WEIGHTS):
            found, fits = timed(llmcompass.chip(name, golden), float(m), *map(float, weight))
            cycles.append(np.where(np.asarray(fits), np.asarray(found), np.inf))
    time = np.array(cycles)
    best, now, chosen = time.min(1), np.full(len(time), np.inf), []
    for _ in range(n):
        lost = np.minimum(time, now[:, None]) / best[:, None]
        chosen.append(int(np.argmin(np.minimum(lost, 3.0).mean(0))))
        now = np.minimum(now, time[:, chosen[-1]])
    for i in chosen:
        split = tuple(int(x) for x in grid.split[:, i])
        l2_n = float(grid.l2_n[i])
        sizes = (int(grid.l2_m[i]), l2_n, int(grid.k_cut[i]), int(grid.l1[i]), int(grid.l1_cut[i]))
        print(f"({', '.join(f'{x:g}' for x in sizes)}, {split}),")
    print(
        f"slower by {np.mean(now / best) - 1:.2%} on average, {np.max(now / best) - 1:.2%} at most"
    )


if __name__ == "__main__":
    main()
