"""`jaxmem layout pim`: addresses of a block, and a picture of a row set."""

import json
import sys

import pytest

from jaxmem.cli import main as cli

pytestmark = pytest.mark.slow


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("DIR", "MIN_COMPILE_TIME_SECS", "MIN_ENTRY_SIZE_BYTES"):
        variable = f"JAX_{'PERSISTENT' if name != 'DIR' else 'COMPILATION'}_CACHE_{name}"
        monkeypatch.setenv(variable, "0")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["jaxmem", "layout", "pim", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


def test_addresses_of_a_block(run):
    status, out, _ = run("--block", 5, "--slot", 3, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["key"] == [
        {"what": "tokens 0-15", "channel": 1, "banks": "0-15", "row": 0, "bursts": "8-15"}
    ]
    assert [(x["channel"], x["row"], x["bursts"]) for x in found["value"][3:5]] == [
        (3, 2, "5-5"),
        (0, 3, "5-5"),
    ]
    assert found["zone"][7]["row"] == 511


def test_a_picture(run, tmp_path):
    path = tmp_path / "set.png"
    status, out, _ = run("--picture", path, "--lengths", "40,300")
    assert status == 0
    assert "Value in Commit Zone slot 0" in out
    assert path.read_bytes()[:4] == b"\x89PNG"


def test_a_picture_of_a_step_and_occupancy_over_time(run, tmp_path, monkeypatch):
    monkeypatch.setattr("jaxmem.cli.layout.N_HEAT", 20)
    picture, heat = tmp_path / "step.png", tmp_path / "heat.png"
    status, out, _ = run("--picture", picture, "--step", 30, "--batch", 3, "--heat", heat, "--json")
    assert status == 0
    assert json.loads(out)["heat"] == str(heat)
    assert picture.read_bytes()[:4] == heat.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--block", 64], "--block: expected a number from 0 to 63, got 64"),
        (["--head", 8], "--head"),
        (["--picture", "x.png", "--lengths", "a"], "--lengths"),
        (["--picture", "x.png", "--step", -1], "--step"),
        (["--policy", "paton"], "did you mean 'patton'?"),
    ],
)
def test_what_is_not_there_is_refused(run, args, says):
    status, _, err = run(*args)
    assert status == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
