"""A row is the scalar call bit for bit, whatever the chunks, the devices and the other models."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def digests():
    script = Path(__file__).with_name("digest.py")

    def start(n_device):
        settings = {
            "XLA_FLAGS": f"--xla_force_host_platform_device_count={n_device}",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
        }
        return subprocess.Popen(
            [sys.executable, str(script)],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            text=True,
        )

    running = [start(n) for n in (1, 2)]
    return [json.loads(process.communicate()[0]) for process in running]


@pytest.mark.parametrize("system", ["pim", "hbf"])
def test_chunks_devices_and_scalar_calls_agree(digests, system):
    assert [found["n_device"] for found in digests] == [1, 2]
    one, two = digests
    ways = [one[f"{system} {way}"] for way in (1, 7, 4096, "scalar")]
    assert len({*ways, two[f"{system} 4096"]}) == 1


def test_serving_runs_agree(digests):
    assert len({found["serving"] for found in digests}) == 1
