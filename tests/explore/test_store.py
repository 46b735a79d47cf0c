"""Sweeps on disk: killed, resumed, refused; always the dataset of an uninterrupted run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import jaxmem as jm
from jaxmem.explore import store

PIM = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
DECODE = jm.Decode.create(batch=8, context_tokens=1024)
SPACE = {
    "ch_per_head": [1, 2, 4],
    "policy": ["patton", "patton-wo-cz"],
    "workload.batch": [*range(1, 900)],
}
CHILD = """
import sys, time
import jaxmem as jm
sys.path.insert(0, {tests!r})
from test_store import DECODE, PIM, SPACE
def slow(done, total):
    print(done, flush=True)
    time.sleep(0.05)
jm.sweep(jm.pim.evaluate, PIM, DECODE, SPACE, out={out!r}, chunk_points=128, progress=slow)
"""


@pytest.fixture(scope="module")
def whole():
    return jm.sweep(jm.pim.evaluate, PIM, DECODE, SPACE)


def test_killed_and_resumed_is_uninterrupted(tmp_path, whole):
    out = str(tmp_path / "run.zarr")
    code = CHILD.format(tests=str(Path(__file__).parent), out=out)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    for line in child.stdout:
        if int(line) > 1000:
            os.kill(child.pid, signal.SIGKILL)
            break
    assert child.wait() == -signal.SIGKILL
    child.stdout.close()
    with pytest.raises(jm.InputError, match="finished sweep"):
        store.read(out)
    seen = []
    ds = jm.sweep(jm.pim.evaluate, PIM, DECODE, SPACE, out=out, resume=True,
                  progress=lambda done, total: seen.append(done))  # fmt: skip
    assert seen[0] > 1000  # what was done was not done again
    assert ds.identical(whole)
    assert store.read(out).identical(whole)


@pytest.mark.parametrize("chunk", [7, 1000, 4096])
def test_chunks_on_disk_do_not_matter(tmp_path, whole, chunk):
    space = {"ch_per_head": [4], "policy": ["patton"], "workload.batch": [*range(1, 90)]}
    part = jm.sweep(
        jm.pim.evaluate, PIM, DECODE, space, out=tmp_path / "a.zarr", chunk_points=chunk
    )
    expected = jm.sweep(jm.pim.evaluate, PIM, DECODE, space)
    assert part.identical(expected)


def test_an_exception_keeps_what_is_done(tmp_path, whole):
    def stop(done, total):
        if done > 2000:
            raise KeyboardInterrupt

    out = tmp_path / "run.zarr"
    with pytest.raises(KeyboardInterrupt):
        jm.sweep(jm.pim.evaluate, PIM, DECODE, SPACE, out=out, chunk_points=500, progress=stop)
    ds = jm.sweep(jm.pim.evaluate, PIM, DECODE, SPACE, out=out, chunk_points=500, resume=True)
    assert ds.identical(whole)


def test_refusals(tmp_path):
    out = tmp_path / "run.zarr"
    small = {"ch_per_head": [1, 2]}
    jm.sweep(jm.pim.evaluate, PIM, DECODE, small, out=out)
    with pytest.raises(jm.InputError, match="does not exist yet"):
        jm.sweep(jm.pim.evaluate, PIM, DECODE, small, out=out)
    with pytest.raises(jm.InputError, match="this very sweep"):
        jm.sweep(jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [1, 4]}, out=out, resume=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(jm.InputError, match="a folder that a sweep wrote"):
        jm.sweep(jm.pim.evaluate, PIM, DECODE, small, out=tmp_path / "other", resume=True)
    with pytest.raises(jm.InputError, match="a folder that a sweep wrote"):
        store.read(tmp_path / "nothing")


def test_manifest_says_how_it_was_made(tmp_path):
    import zarr

    jm.sweep(jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [1, 2]}, out=tmp_path / "run.zarr")
    manifest = zarr.open_group(str(tmp_path / "run.zarr"), mode="r").attrs.asdict()
    assert {"key", "n_point", "chunk_points", "versions", "device", "git"} <= set(manifest)
    assert manifest["versions"]["jaxmem"] == jm.__version__


def test_what_removed_points_is_counted():
    from jaxmem.explore import removed

    ds = jm.sweep(
        jm.pim.evaluate, PIM, DECODE, {"ch_per_head": [4, 64], "workload.batch": [8, 4096]}
    )
    assert removed(ds) == {"layout": 2, "capacity": 1}
