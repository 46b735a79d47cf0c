"""The body `llmcompass`: within its bounds by family, and what it refuses."""

import json

import pytest

from jaxmem.core.errors import InputError
from jaxmem.validation import llmcompass
from jaxmem.validation.validate import bodies, validate

pytestmark = pytest.mark.slow

MOST = {  # worst error of a family
    "matmul M <= 256": 0.05, "matmul M > 256": 0.08, "batched_matmul M <= 256": 0.05,
    "batched_matmul M > 256": 0.08, "softmax": 0.03, "layernorm": 0.03, "gelu": 0.03,
    "allreduce": 0.03, "transformer_block decode": 0.03, "transformer_block prefill": 0.03,
}  # fmt: skip


def test_every_family_is_within_its_bound(reference):
    found = validate(bodies()["llmcompass"])
    assert found is not None
    for family, errors in found["families"].items():
        assert errors["max_rel_error"] <= MOST[family], family
    products = [f for name, f in found["families"].items() if "matmul" in name]
    mean = sum(f["cases"] * f["mean_rel_error"] for f in products) / sum(
        f["cases"] for f in products
    )
    assert mean <= 0.015


GOOD = {
    "hardware": "dict:MI210", "op": "gelu", "shape": [4096], "sim_latency_s": 1e-6,
    "sim_word_bytes": 4,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"hardware": "dict:MI21"}, "dict:MI210"), ({"op": "gelo"}, "gelu"),
        ({"shape": ["a"]}, "row"), ({"sim_latency_s": None}, "row"),
    ],
)  # fmt: skip
def test_bad_rows_are_named(reference, tmp_path, change, says):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + json.dumps({**GOOD, **change}) + "\n")
    with pytest.raises(InputError, match=says) as error:
        list(llmcompass.check(path))
    assert ":2" in str(error.value)


def test_a_field_that_is_not_there_is_named(reference, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({k: v for k, v in GOOD.items() if k != "shape"}))
    with pytest.raises(InputError, match="shape"):
        list(llmcompass.check(path))
