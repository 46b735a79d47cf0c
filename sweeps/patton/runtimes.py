"""Every runtime of the PATTON paper on its four models: 10,000 scheduler steps each.

ShareGPT-like conversations, the paper's batch and live pool (5.1), contexts up to 2,048 tokens.
Time and energy are those that the paper compares (5.3): the PIM's parts of a step, and what prompts
cost because the runtime lost cached blocks; geometric means over the models, relative to PATTON.
Two processes; prints the seconds that the runs took, compilation aside.

    python sweeps/patton/runtimes.py [STEPS]
"""

import dataclasses
import multiprocessing
import sys
import time
from typing import Any

import jax
import numpy as np

import jaxmem as jm
from jaxmem.pim import policy, pool, simulate
from jaxmem.serving import draw, live

MODELS = {
    "llama3-8b": (32, 64), "qwen3-8b": (32, 64), "opt-6.7b": (8, 16), "qwen1.5-7b": (8, 16),
}  # fmt: skip
APART = ("blockpim", "neupims", "gpu")  # whose memory is of another shape: programs of their own
COMPARED = ("k_write", "v_write", "commit", "qk", "sv", "prefill_write", "recompute")


def design(model: str, name: str) -> Any:
    """A point without its name, which is static."""
    d = jm.pim.Design.create(device="aim-gddr6-16gib", llm=model, policy=name)
    return dataclasses.replace(d, policy=dataclasses.replace(d.policy, name=""))


def common(bounds: list[simulate.Bounds]) -> simulate.Bounds:
    """Bounds that all fit."""
    fields = [f.name for f in dataclasses.fields(pool.Bounds)]
    most = {name: max(getattr(b.pool, name) for b in bounds) for name in fields}
    return dataclasses.replace(bounds[0], pool=pool.Bounds(**most))


def run(job: tuple[str, int]) -> list[tuple[Any, ...]]:
    """All policies of a model: (model, policy, seconds a step by part, joules, hits, seconds)."""
    model, n_step = job
    n_running, n_place = MODELS[model]
    talks = live.talks(draw("sharegpt", n_conversation=4000, conversations_per_s=1.0))
    program = jax.jit(simulate.simulate, static_argnames="bounds")
    sizes = {"n_running": n_running, "n_place": n_place, "n_step": n_step, "n_warm": n_step // 6}
    names = [name for name in policy.names() if name not in APART]
    rows = []
    for group in (names, *([name] for name in APART)):
        points = {name: design(model, name) for name in group}
        b = common([simulate.bounds(d, **sizes) for d in points.values()])
        short = dataclasses.replace(b, n_step=1, n_warm=0)
        jax.block_until_ready(program(points[group[0]], talks, bounds=short)[0])
        compiled = program.lower(points[group[0]], talks, bounds=b).compile()
        for name, d in points.items():
            start = time.perf_counter()
            m, h = jax.block_until_ready(compiled(d, talks))
            second = time.perf_counter() - start
            late = slice(b.n_warm, None)
            parts = {k: float(np.mean(v[late])) for k, v in h.second.items()}
            joule = {k: float(np.mean(v[late])) for k, v in h.joule.items()}
            rows.append((model, name, parts, joule, float(m.hit_rate), float(m.batch), second))
            print(f"{model} {name}: {n_step / second:.0f} steps/s", file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Print the comparison."""
    n_step = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    start = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        rows = [
            row for found in workers.imap_unordered(run, [(m, n_step) for m in MODELS], chunksize=1)
            for row in found
        ]  # fmt: skip
    wall = time.perf_counter() - start
    time_of = {(m, p): sum(parts[k] for k in COMPARED) for m, p, parts, *_ in rows}
    joule_of = {
        (m, p): sum(joule[k] for k in (*COMPARED, "standby")) for m, p, _, joule, *_ in rows
    }
    hits = {(m, p): hit for m, p, _, _, hit, *_ in rows}
    print(f"{'policy':<14} {'time':>6} {'energy':>6}   hit rate and time by model")
    for name in policy.names():
        if name == "gpu":
            continue
        ratio, joule = (
            np.exp(np.mean([np.log(of[m, name] / of[m, "patton"]) for m in MODELS]))
            for of in (time_of, joule_of)
        )
        each = "  ".join(
            f"{100 * hits[m, name]:4.1f} % {time_of[m, name] / time_of[m, 'patton']:5.2f}"
            for m in MODELS
        )
        print(f"{name:<14} {ratio:6.2f} {joule:6.2f}   {each}")
    busy = sum(row[-1] for row in rows)
    print(f"models: {', '.join(MODELS)}")
    print(f"{len(rows) * n_step:,} steps in {busy:.0f} s of running, {wall:.0f} s on two processes")


if __name__ == "__main__":
    main()
