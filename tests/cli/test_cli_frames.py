"""`jaxmem validate`, `reproduce` and `bench`: reports of the form that the contract names."""

import json

import pytest
from click.testing import CliRunner

from jaxmem import claims, validation
from jaxmem.claims import claim
from jaxmem.cli.main import group
from jaxmem.core.errors import InputError
from jaxmem.validation.body import REFERENCE


def run(*args, **env):
    return CliRunner().invoke(group, list(args), env=env, standalone_mode=False)


def test_validate_models(reference):
    found = run("validate", "models", "--json", **{REFERENCE: str(reference)})
    (report,) = json.loads(found.stdout)["bodies"]
    assert report["body"] == "models"
    assert report["cases"] == report["exact"] > 30
    assert report["max_rel_error"] == 0
    assert sum(family["cases"] for family in report["families"].values()) == report["cases"]
    assert report["mismatches"] == []


def test_a_wrong_case_is_named(tmp_path, reference):
    models = json.loads((reference / "golden" / "model_configs.json").read_text())
    name = "meta-llama/Meta-Llama-3-8B"
    one = {name: models["models"][name]}
    one[name]["computed"]["total"] *= 2
    path = tmp_path / "models.json"
    path.write_text(json.dumps({"models": one}))
    report = validation.validate(validation.bodies()["models"], path)
    assert report is not None
    assert report["mismatches"] == [name]
    assert report["max_rel_error"] == 0.5
    assert report["exact"] == 0


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"models": {"x": 1}}', '{"models": {}}'])
def test_bad_reference_data_is_one_line(tmp_path, text):
    path = tmp_path / "models.json"
    path.write_text(text)
    found = run("validate", "models", str(path))
    assert isinstance(found.exception, InputError)
    assert str(found.exception).startswith("file: expected ")


def test_unknown_body_and_missing_data(tmp_path):
    found = run("validate", "model")
    assert "did you mean 'models'" in str(found.exception)
    found = run("validate", "models", str(tmp_path / "none.json"))
    assert "expected a file of body models" in str(found.exception)
    found = run("validate", "models", **{REFERENCE: str(tmp_path)})
    assert REFERENCE in str(found.exception)


def test_reproduce_every_claim():
    found = json.loads(run("reproduce", "all", "--json").stdout)["claims"]
    for row in found:
        assert set(row) >= {
            "id", "paper", "section", "published", "unfitted", "model", "rel_error", "status",
            "note",
        }  # fmt: skip
        assert row["status"] in {*claim.KINDS, "missed"}
        if row["status"] != "not modelled":
            assert row["rel_error"] == pytest.approx(row["model"] / row["published"] - 1)
    by_id = {row["id"]: row for row in found}
    assert by_id["csi-planes"]["model"] == 4608
    assert by_id["405b-baseline-batch"]["model"] == 29


@pytest.mark.parametrize("paper", claims.PAPERS)
def test_claims_are_well_formed(paper):
    rows = claims.read(paper)
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.kind in claim.KINDS and row.section and row.tolerance >= 0 for row in rows)


def test_a_miss_is_called_one():
    from jaxmem.claims.reproduce import _judged

    row = claims.read("flashaccel")[0]
    assert _judged(row, row.published)["status"] == row.kind
    assert _judged(row, row.published * 1.5) == {"rel_error": 0.5, "status": "missed"}


def test_bench_knows_its_rooms():
    found = run("bench", "spin")
    assert "did you mean 'spine'" in str(found.exception)
