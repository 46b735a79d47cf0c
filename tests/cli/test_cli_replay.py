"""`jaxmem replay`: the contract's JSON, progress apart from it, one line for bad input."""

import json

import pytest
from click.testing import CliRunner

from jaxmem.cli.replay import command
from jaxmem.core.errors import InputError

ROW = {"timestamp": 0, "input_length": 1030, "output_length": 52, "hash_ids": [0, 1, 2]}


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.jsonl"
    rows = [ROW, {**ROW, "timestamp": 9}, {**ROW, "input_length": -1}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def run(*args):
    return CliRunner().invoke(command, [str(a) for a in args], catch_exceptions=False)


def test_json_is_the_contracts(trace):
    flags = ["--skip-bad", "--json", "--capacity-blocks", "40,200"]
    out = run(trace, *flags)
    assert out.exit_code == 0
    assert json.loads(out.stdout) == {
        "requests": 2,
        "prompt_tokens": 2060,
        "results": [
            {"capacity_blocks": 40, "rejected": 2, "accepted_prompt_tokens": 0, "hit_tokens": 0,
             "hit_rate": None, "evictions": 0},
            {"capacity_blocks": 200, "rejected": 0, "accepted_prompt_tokens": 2060,
             "hit_tokens": 1024, "hit_rate": 1024 / 2060, "evictions": 0},
        ],
    }  # fmt: skip
    assert "1 bad rows skipped" in out.stderr


def test_a_table_and_a_picture(trace, tmp_path):
    out = run(trace, "--skip-bad", "--capacity-blocks", 200, "--model", "llama3-8b", "--policy",
              "lfu", "--out", tmp_path / "out")  # fmt: skip
    assert "1,024" in out.stdout
    assert "49.7087%" in out.stdout
    assert (tmp_path / "out" / "hit_rate.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--policy", "lruu"], "mean 'lru'"), (["--block-tokens", "0"], "--block-tokens"),
        (["--capacity-blocks", "1"], "--capacity-blocks"), (["--capacity-blocks", "8,x"], "'x'"),
        (["--model", "lama3-8b"], "llama3-8b"), ([], "line 3: input_length"),
    ],
)  # fmt: skip
def test_bad_input(trace, flags, says):
    with pytest.raises(InputError) as caught:
        run(trace, *flags)
    assert says in str(caught.value)
