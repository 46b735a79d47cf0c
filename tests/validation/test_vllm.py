"""The package's own recordings of vLLM are matched, and a changed number is noticed."""

import gzip
import json
from importlib import resources
from pathlib import Path

import pytest

from jaxmem.core.errors import InputError
from jaxmem.validation import vllm

DATA = Path(str(resources.files("jaxmem.validation"))) / "data"


def cases(name):
    with gzip.open(DATA / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_scenarios():
    found = list(vllm.check_scenarios(DATA / "vllm_scenarios.jsonl.gz"))
    assert len(found) == 29
    assert [case.id for case in found if not case.is_exact] == []


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [(2, "new_blocks", [2, 1]), (4, "free_queue", [8, 1]), (7, "hit_tokens", 4), (4, "refs", {}),
     (2, "kv_events", []), (3, "cached", {})],
)  # fmt: skip
def test_a_changed_scenario_is_noticed(tmp_path, event, field, value):
    case = next(c for c in cases("vllm_scenarios.jsonl.gz") if c["name"] == "partial_blocks_lifo")
    assert field in case["events"][event]["expect"]
    case["events"][event]["expect"][field] = value
    assert not next(vllm.check_scenarios(write(tmp_path / "s.jsonl", [case]))).is_exact


def test_a_scheduler_run():
    """s8_b800: 2,420 steps, every batch."""
    run = next(c for c in cases("vllm_sched.jsonl.gz") if c["tag"] == "s8_b800")
    assert vllm.scheduler_mismatches(run, "here", DATA) == ([], 2420)
    run["first_hits"]["c0t1"] += 16
    assert vllm.scheduler_mismatches(run, "here", DATA)[0] == ["first_hits"]


@pytest.mark.deep
def test_everything_recorded(reference):
    golden = reference / "golden"
    for check, name in [(vllm.check_scheduler, "sched"), (vllm.check_replay, "replay")]:
        found = list(check(golden / f"vllm_{name}.jsonl"))
        assert found
        assert [case.id for case in found if not case.is_exact] == []


def test_a_replay(reference, tmp_path):
    rows = [c for c in cases("vllm_replay.jsonl.gz") if c["requests"] == 200][:2]
    (tmp_path / "golden").mkdir()
    (tmp_path / "traces").symlink_to(reference / "traces")
    path = write(tmp_path / "golden" / "vllm_replay.jsonl", rows)
    assert [case.is_exact for case in vllm.check_replay(path)] == [True, True]
    rows[0]["hits_sha256"] = "0" * 64
    assert [c.is_exact for c in vllm.check_replay(write(path, rows))] == [False, True]


def test_what_cannot_be_checked(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="line 1"):
        list(vllm.check_scenarios(write(tmp_path / "x.jsonl", [3])))
    monkeypatch.delenv("JAXMEM_REFERENCE", raising=False)
    with pytest.raises(InputError, match="JAXMEM_REFERENCE"):
        list(vllm.check_replay(write(tmp_path / "r.jsonl", cases("vllm_replay.jsonl.gz")[:1])))
    row = {**cases("vllm_sched.jsonl.gz")[0], "opts": {"speculation": 1}}
    with pytest.raises(InputError, match="speculation"):
        list(vllm.check_scheduler(write(tmp_path / "s.jsonl", [row])))
