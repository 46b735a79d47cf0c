"""`jaxmem time`: streams from files to cycles, counts and energy."""

import gzip
import json
import sys
from pathlib import Path

import pytest

import jaxmem as jm
from jaxmem.cli import main as cli
from jaxmem.pim import streams, trace_form

DATA = Path(jm.__file__).parent / "validation" / "data" / "aim.jsonl.gz"


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("DIR", "MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        variable = f"JAX_{'PERSISTENT' if name != 'DIR' else 'COMPILATION'}_CACHE_{name}"
        monkeypatch.setenv(variable, "0")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["jaxmem", "time", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


@pytest.fixture
def measured(tmp_path):
    """A file with six of the measured cases."""
    path = tmp_path / "aim.jsonl"
    with gzip.open(DATA, "rt") as lines:
        path.write_text("".join(line for i, line in enumerate(lines) if i % 40 == 0))
    return path


def test_measured_cases(run, measured):
    status, out, _ = run(measured, "--mode", "simulator", "--json")
    found = json.loads(out)
    assert status == 0
    assert list(found) == ["cases", "exact", "max_rel_error", "mean_rel_error", "results"]
    assert (found["cases"], found["exact"]) == (6, 6)
    assert (found["max_rel_error"], found["mean_rel_error"]) == (0, 0)
    first = found["results"][0]
    assert list(first) == ["id", "cycles", "counts", "energy_j"]
    expected = json.loads(measured.read_text().splitlines()[0])
    assert (first["id"], first["cycles"]) == (expected["id"], expected["cycles"])
    assert first["counts"] == expected["counts"]
    assert first["energy_j"] > 0


def test_a_text_trace(run, tmp_path):
    path = tmp_path / "row.trace"
    path.write_text(trace_form.text_trace(streams.fragments(8)))
    found = json.loads(run(path, "--json")[1])
    assert found["results"][0]["cycles"] == 904
    assert found["exact"] is None  # nothing measured
    status, out, _ = run(path)
    assert status == 0
    assert all(word in out for word in ("904", "mode_switch", "TMOD", "452 ns"))


def test_refresh_is_on_in_device_mode_alone(run, tmp_path):
    path = tmp_path / "a.jsonl"
    work = streams.attention(n_request=1, n_token=2048, n_query=1, ch_per_head=2, n_kv=4)
    path.write_text(trace_form.json_case(work))

    def refreshes(*args):
        return "REFab" in json.loads(run(path, "--json", *args)[1])["results"][0]["counts"]

    assert refreshes()
    assert not refreshes("--no-refresh")
    assert not refreshes("--mode", "simulator")
    assert refreshes("--mode", "simulator", "--refresh")


BAD = [
    (["--mode", "simulater"], ["--mode", "did you mean 'simulator'?"]),
    (["--device", "h200"], ["kind pim"]),
    (["--device", "hbm-pim"], ["instrs[0].opsize", "1 to 32"]),
]


@pytest.mark.parametrize(("args", "says"), BAD, ids=str)
def test_bad_flags_are_one_line(run, tmp_path, args, says):
    path = tmp_path / "a.jsonl"
    path.write_text(trace_form.json_case(streams.fragments(1)))
    status, out, err = run(path, *args)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert all(part in err for part in says), err


def test_a_bad_stream_is_one_line(run, tmp_path):
    path = tmp_path / "a.trace"
    path.write_text("AiM SYNC\nAiM MAC_ABK 65 0x80000000 0\nAiM EOC\n")
    status, out, err = run(path)
    assert (status, out) == (2, "")
    assert f"{path}:2: opsize: expected a number of bursts, within a row, 1 to 64, got 65" in err
    assert run(tmp_path / "nowhere")[0] == 2
