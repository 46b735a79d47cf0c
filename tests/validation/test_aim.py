"""Bodies `aim` and `aim-refresh`: what ships is found, read and checked case by case."""

import gzip
import json

from jaxmem import validation
from jaxmem.validation import aim
from jaxmem.validation.body import REFERENCE, find


def test_both_bodies_ship(monkeypatch):
    monkeypatch.delenv(REFERENCE, raising=False)
    for name in ("aim", "aim-refresh"):
        assert find(validation.bodies()[name]).suffix == ".gz"


def test_cases_by_family_and_a_wrong_one(monkeypatch, tmp_path):
    monkeypatch.delenv(REFERENCE, raising=False)
    with gzip.open(find(validation.bodies()["aim"]), "rt") as lines:
        some = [line for i, line in enumerate(lines) if i % 60 == 0]
    path = tmp_path / "aim.jsonl"
    wrong = json.loads(some[0])
    path.write_text("".join(some) + json.dumps({**wrong, "cycles": wrong["cycles"] // 2}))
    report = validation.validate(validation.bodies()["aim"], path)
    assert (report["cases"], report["exact"]) == (5, 4)
    assert report["max_rel_error"] == 1.0
    assert report["families"]["a_row_mac"]["cases"] == 2
    assert next(iter(aim.check(path))).is_exact
