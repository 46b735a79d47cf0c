"""How long Value runs are, by policy, model and granule: what `evaluate` expects of a placement.

Simulates serving with ShareGPT-like conversations over several seeds and writes the mean run of
consecutive blocks, its spread over seeds, and what `evaluate` and the simulation differ by, to
jaxmem/pim/run_blocks.csv. About ten minutes on two cores.

    python sweeps/patton/run_blocks.py
"""

import csv
from pathlib import Path

import jax
import numpy as np

import jaxmem as jm
from jaxmem.core.design import put
from jaxmem.pim import address, simulate
from jaxmem.serving import draw, live

MODELS = {"llama3-8b": (32, 64), "opt-6.7b": (8, 16)}  # PATTON 5.1: running, alive
GRANULES = (4, 8, 16, 32, 64)
SEEDS = range(3)
N_STEP, N_WARM = 3000, 1000
OUT = Path(__file__).parents[2] / "jaxmem" / "pim" / "run_blocks.csv"
COLUMNS = ("model", "ch_per_head", "own_blocks", "run_blocks", "spread", "qk_ratio", "sv_ratio")


def main() -> None:
    """Write the table."""
    rows = []
    for model, (n_running, n_place) in MODELS.items():
        base = jm.pim.Design.create(device="aim-gddr6-16gib", llm=model)
        least = put(base, "policy.own_blocks", np.float64(min(GRANULES)))
        b = simulate.bounds(
            least, n_running=n_running, n_place=n_place, n_step=N_STEP, n_warm=N_WARM
        )
        run = jax.jit(simulate.simulate, static_argnames="bounds")
        for own in GRANULES:
            d = put(base, "policy.own_blocks", np.float64(own))
            found, ratios = [], []
            for seed in SEEDS:
                traffic = draw("sharegpt", n_conversation=2000, conversations_per_s=1.0, seed=seed)
                m, h = run(d, live.talks(traffic), bounds=b)
                found.append(float(m.run_blocks))
                ratios.append(_ratios(d, m, h))
            qk, sv = np.mean(ratios, axis=0)
            c = int(address.concrete(d).ch_per_head)
            row = (model, c, own, np.mean(found), np.std(found), qk, sv)
            rows.append([*row[:3], *(f"{x:.4g}" for x in row[3:])])
            print(*rows[-1], flush=True)
    with OUT.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def _ratios(d, m, h) -> tuple[float, float]:
    """Closed form to simulation, of QK and of SV, at the same mean batch, context and run."""
    late = slice(N_WARM, None)
    batch = np.asarray(h.n_request)[late] - np.asarray(h.n_new)[late]
    context = np.asarray(h.context_tokens)[late].sum() / batch.sum()
    point = put(d, "expected_run_blocks", np.float64(m.run_blocks))
    work = jm.Decode.create(batch=round(float(batch.mean())), context_tokens=round(float(context)))
    parts = jm.pim.evaluate(point, work).parts
    return tuple(float(parts[name]) / float(m.parts[name]) for name in ("qk", "sv"))


if __name__ == "__main__":
    main()
