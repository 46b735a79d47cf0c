"""Long differential runs, by `make check-deep`."""

import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core import design as records

pytestmark = pytest.mark.deep


@pytest.mark.parametrize("system", ["pim", "hbf"])
def test_thousand_rows_are_the_scalar_call(system):
    if system == "pim":
        fn = jm.pim.evaluate
        design = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
        work = jm.Decode.create()
        space = {
            "ch_per_head": [1, 2, 4, 8, 16],
            "n_o1p2": [1, 4, 16, 64],
            "workload.batch": jm.between(1, 100),
            "workload.context_tokens": jm.between(1, 9000),
        }
    else:
        fn = jm.hbf.evaluate
        design = jm.hbf.Design.create(device="8xCSI", llm="qwen3-235b-a22b")
        work = jm.Serve.create()
        space = {
            "planes_per_megaplane": [1, 8, 32],
            "device.n_stack": [1, 6],
            "workload.slo_s": jm.between(0.02, 0.3, log=True),
            "workload.input_tokens": jm.between(1, 30000),
        }
    ds = jm.sweep(fn, design, work, space, n_sample=1000)
    for i in range(1000):
        d, w = design, work
        for path in space:
            value = ds[path].values[i]
            if path.startswith("workload."):
                w = records.put(w, path.removeprefix("workload."), np.float64(value))
            else:
                d = records.with_value(d, path, value)
        one = fn(d, w)
        for name in ("latency_s", "energy_j", "batch", "feasible", "limit"):
            np.testing.assert_array_equal(ds[name].values[i], getattr(one, name))
