"""The package's own recordings of vLLM are matched, and a changed number is noticed."""

import gzip
import json
from importlib import resources
from pathlib import Path

import pytest

from jaxmem.core.errors import InputError
from jaxmem.serving.designs import run_designs
from jaxmem.serving.scheduler import Config
from jaxmem.validation import vllm

pytestmark = pytest.mark.slow

DATA = Path(str(resources.files("jaxmem.validation"))) / "data"


def cases(name):
    with gzip.open(DATA / name, "rt") as lines:
        return [json.loads(line) for line in lines]


def replays(reference):
    with (reference / "golden" / "vllm_replay.jsonl").open() as lines:
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
    rows = [c for c in replays(reference) if c["requests"] == 200][:2]
    (tmp_path / "golden").mkdir()
    (tmp_path / "traces").symlink_to(reference / "traces")
    path = write(tmp_path / "golden" / "vllm_replay.jsonl", rows)
    assert [case.is_exact for case in vllm.check_replay(path)] == [True, True]
    rows[0]["hits_sha256"] = "0" * 64
    assert [c.is_exact for c in vllm.check_replay(write(path, rows))] == [False, True]


def test_what_cannot_be_checked(reference, tmp_path, monkeypatch):
    with pytest.raises(InputError, match="line 1"):
        list(vllm.check_scenarios(write(tmp_path / "x.jsonl", [3])))
    monkeypatch.delenv("JAXMEM_REFERENCE", raising=False)
    with pytest.raises(InputError, match="JAXMEM_REFERENCE"):
        list(vllm.check_replay(write(tmp_path / "r.jsonl", replays(reference)[:1])))
    row = {**cases("vllm_sched.jsonl.gz")[0], "opts": {"speculation": 1}}
    with pytest.raises(InputError, match="speculation"):
        list(vllm.check_scheduler(write(tmp_path / "s.jsonl", [row])))


PUBLISHED = {
    "watermark": ({"watermark": 0.05}, 1345, 0, 9268, 35.44),
    "no reservation": ({"reserves_full": 0}, 1312, 23, 9218, 36.26),
    "long prefill": ({"long_prefill_tokens": 128}, 1345, 214, 13147, 35.04),
    "1600 blocks": ({"n_block": 1600}, 947, 0, 3705, 69.43),
    "8 at once": ({"n_block": 400, "max_running": 8}, 3163, 6, 10481, 29.77),
}
"""research/vllm.md, section 2 (c): steps, preemptions, evictions, hit rate of first admissions in
% of runs of vLLM's scheduler whose steps are not here."""


def test_published_totals():
    case = next(c for c in cases("vllm_sched.jsonl.gz") if c["tag"] == "s32_b800")
    todo, _ = vllm._scheduler_requests(case, "here", DATA)
    usual = {"n_block": 800, "max_running": 32, "max_tokens": 2048}
    configs = [Config.create(**{**usual, **options}) for options, *_ in PUBLISHED.values()]
    found = run_designs(todo, configs)
    rates = 100 * found.tally.hit_tokens / found.tally.query_tokens
    for i, (_, steps, preemptions, evictions, rate) in enumerate(PUBLISHED.values()):
        assert (found.n_step[i], found.tally.n_preempted[i]) == (steps, preemptions)
        assert found.n_evicted[i] == evictions
        assert round(float(rates[i]), 2) == rate


def test_a_case_of_another_body_or_without_a_field_is_named(tmp_path):
    path = tmp_path / "cases.jsonl"
    path.write_text('{"kind": "trace_replay"}\n')
    with pytest.raises(InputError, match=r"cases\.jsonl line 1: kind: expected scheduler_run or"):
        list(vllm.check_scheduler(path))
    with pytest.raises(InputError, match=r"cases\.jsonl line 1: requests: expected a field"):
        list(vllm.check_replay(path))
