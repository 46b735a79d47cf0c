"""Prints a digest of sweeps, whole and in chunks, and of scalar calls, as one JSON object.

Run by test_bits.py in processes of its own: with the compiler's full optimisation, which fuses and
contracts, and with several devices.
"""

import hashlib
import json

import jax
import numpy as np

import jaxmem as jm

SERVE = jm.Serve.create(input_tokens=2000, output_tokens=500, slo_s=0.4)
CASES = {
    "pim": (
        jm.pim.evaluate,
        jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b"),
        {
            "llm": ["llama3-8b", "gemma2-9b", "qwen3-4b"],
            "ch_per_head": [1, 3, 4],
            "workload.input_tokens": [100, 1777],
        },
    ),
    "hbf": (
        jm.hbf.evaluate,
        jm.hbf.Design.create(device="8xCLI", llm="qwen3-235b-a22b"),
        {
            "llm": ["qwen3-235b-a22b", "deepseek-v3", "llama3.1-405b"],
            "planes_per_megaplane": [1, 32, 48],
            "workload.slo_s": [0.05, 0.1],
        },
    ),
}
CHUNKS = (1, 7, 4096)


def digest(columns) -> str:
    found = hashlib.sha256()
    for name in sorted(columns):
        found.update(name.encode() + np.ascontiguousarray(columns[name]).tobytes())
    return found.hexdigest()


def scalar_rows(fn, design, space):
    """The same points by scalar calls, each with its own model's table."""
    from jaxmem.core import design as records
    from jaxmem.explore.sweep import columns

    rows = []
    for index in np.ndindex(*(len(values) for values in space.values())):
        point, workload = design, SERVE
        for (path, values), i in zip(space.items(), index, strict=True):
            if path.startswith("workload."):
                workload = records.with_value(workload, path.partition(".")[2], values[i])
            else:
                point = records.with_value(point, path, values[i])
        rows.append(columns(fn(point, workload)))
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def serving_digest() -> str:
    """Of a run of the scheduler on drawn conversations, every step of it."""
    from jaxmem.serving import Config, conversations, run

    traffic = conversations.draw("recorded", n_conversation=8, conversations_per_s=0.5, seed=5)
    todo = conversations.asked(traffic, 16, in_steps=True)
    history = run(todo, Config.create(n_block=400, max_running=4))
    leaves = jax.tree.leaves(history)
    assert history.n_step > 100
    return digest({f"{i:03}": np.asarray(leaf) for i, leaf in enumerate(leaves)})


def main() -> None:
    found = {"n_device": jax.device_count()}
    for name, (fn, design, space) in CASES.items():
        for chunk in CHUNKS if jax.device_count() == 1 else CHUNKS[-1:]:
            ds = jm.sweep(fn, design, SERVE, space, chunk_points=chunk)
            found[f"{name} {chunk}"] = digest({v: ds[v].values.ravel() for v in ds.data_vars})
        if jax.device_count() == 1:
            found[f"{name} scalar"] = digest(scalar_rows(fn, design, space))
    found["serving"] = serving_digest()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
