"""Body `measured-gpu`: the bars of its families, how tables are read, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from jaxmem.cli import calibrate
from jaxmem.core.errors import InputError
from jaxmem.validation import fits, kernels, measured_gpu, served
from jaxmem.validation.body import Case
from jaxmem.validation.validate import bodies, validate
from jaxmem.xpu import engines

pytestmark = pytest.mark.slow

ROW = {
    "id": "a_agg_1024x1024_c16_tp8", "backend": "vllm", "backend_version": "0.12.0",
    "model_path": "meta-llama/Llama-3.1-70B", "system": "h200_sxm", "precision": "fp8",
    "mode": "agg", "isl": 1024, "osl": 1024, "gemm_quant_mode": "fp8", "moe_quant_mode": "fp8",
    "batch_size": 16.0, "tp_size": 8.0, "pp_size": 1.0, "attention_dp_size": 1.0,
    "moe_tp_size": 8.0, "moe_ep_size": 1.0, "decode_batch_size": np.nan,
    "decode_tp_size": np.nan, "decode_attention_dp_size": np.nan, "decode_moe_tp_size": np.nan,
    "decode_moe_ep_size": np.nan, "silicon_ttft_ms": 95.0, "silicon_tpot_ms": 9.1,
}  # fmt: skip


def rows_of(*changes):
    return pd.DataFrame([{**ROW, **change} for change in changes])


def test_served_rows_are_cleaned():
    moe = {"model_path": "deepseek-ai/DeepSeek-V3", "silicon_tpot_ms": 20.0}
    table = rows_of(
        {},
        {"id": "the_same_again"},
        {"mode": "disagg", "silicon_tpot_ms": 11.0},
        {"model_path": "zhipuai/GLM-5", "silicon_tpot_ms": 12.0},
        {"model_path": "deepseek-ai/DeepSeek-R1", "backend": "trtllm",
         "backend_version": "1.1.0rc2.post2", "silicon_tpot_ms": 13.0},
        {**moe, "tp_size": 64.0, "moe_tp_size": 8.0, "moe_ep_size": 8.0},
        {**moe, "tp_size": 2.0, "moe_tp_size": 4.0, "silicon_tpot_ms": 21.0},
        {"id": "x_c512_", "tp_size": 1.0, "isl": 8192, "silicon_tpot_ms": 50.0},
        {"silicon_tpot_ms": 0.5, "silicon_ttft_ms": 1.0},
    )  # fmt: skip
    found, left_out = served.served(table, "rows.csv")
    assert [x.model for x in found] == ["llama3.1-70b", "deepseek-v3"]
    assert (found[1].tp, found[1].dp, found[1].ep) == (8.0, 1.0, 8.0)
    assert found[0].n_request == 16
    assert [x.kind for x in found] == ["dense", "moe"]
    assert left_out == {
        "repeats a measurement": 1, "decode batch not stated": 1,
        "model not understood: zhipuai/GLM-5": 1, "multi-token prediction suspected": 1,
        "sizes do not fit one another": 1, "requests do not fit in memory": 1,
        "faster than the hardware's peak": 1,
    }  # fmt: skip


def test_multiplied_sizes_are_undone():
    def sizes(tp, dp, within, ep):
        row = {**ROW, "tp_size": tp, "attention_dp_size": dp, "moe_tp_size": within,
               "moe_ep_size": ep}  # fmt: skip
        return served._degrees(row, "", True)

    assert sizes(8, 1, 8, 1) == (8, 1, 1)
    assert sizes(64, 1, 8, 8) == (8, 1, 8)
    assert sizes(1, 64, 8, 8) == (1, 8, 8)
    assert sizes(4, 4, 1, 16) == (4, 1, 4)
    assert sizes(2, 1, 4, 1) is None
    assert sizes(8, 1, 0, 8) is None


def test_a_configuration_fits_or_scores_whatever_its_time():
    a, _ = served.served(rows_of({}, {"silicon_tpot_ms": 9.4}), "rows.csv")
    assert len(a) == 2
    assert a[0].is_fit == a[1].is_fit


def test_shipped_engines_on_rows_they_were_not_fitted_to(reference):
    """The bars of the served models; with models left out, `make check-deep`."""
    table = kernels.read_table(reference / "measured" / "hopper_end_to_end.csv")
    found, _ = served.served(table, "hopper")
    tpot, ttft = fits.engine_errors(engines.shipped(), found)
    scored = np.array([not x.is_fit for x in found])
    kind = np.array([x.kind for x in found])
    for name, median, tenth in (
        ("dense", 0.08, 0.25), ("moe", 0.13, 0.36), ("disaggregated", 0.06, 0.15),
    ):  # fmt: skip
        error = np.abs(tpot[scored & (kind == name)])
        assert len(error) > 10
        assert np.median(error) <= median, name
        assert np.quantile(error, 0.9) <= tenth, name
    first = np.abs(ttft[scored & (kind != "disaggregated")])
    assert np.median(first) <= 0.35


MEDIAN = {
    "GEMM BF16": 0.10, "GEMM FP8": 0.10, "GEMM FP8 block": 0.10, "decode attention": 0.10,
    "MLA decode": 0.10, "MoE": 0.10, "collectives": 0.10, "expert dispatch": 0.10,
    "TPOT dense": 0.08, "TPOT moe": 0.13, "TPOT disaggregated": 0.06,
    "TPOT dense, model left out": 0.11, "TPOT moe, model left out": 0.18, "TTFT under load": 0.35,
}  # fmt: skip
MEAN = {"A100 matmul (mapped)": 0.065, "A100 all-reduce": 0.46}


@pytest.mark.deep
def test_every_bar_of_the_body(reference):
    found = validate(bodies()["measured-gpu"], reference / "measured")
    assert found is not None
    for family, bar in MEDIAN.items():
        assert found["families"][family]["median_rel_error"] <= bar, family
    for family, bar in MEAN.items():
        assert found["families"][family]["mean_rel_error"] <= bar, family


def test_links_and_operators_of_an_a100(reference):
    medians = {}
    for path in (
        reference / "measured" / "h200_nccl.parquet",
        reference / "measured" / "h200_deepep_low_latency.parquet",
        reference / "golden" / "measured_gpu.jsonl",
    ):
        cases = [case for case in measured_gpu.check(path) if isinstance(case, Case)]
        for name in {case.family for case in cases}:
            medians[name] = np.median([c.rel_error for c in cases if c.family == name])
            if name in MEAN:
                assert np.mean([c.rel_error for c in cases if c.family == name]) <= MEAN[name]
    assert medians["collectives"] <= 0.10
    assert medians["expert dispatch"] <= 0.10
    assert medians["collectives, plain roofline"] > 0.5


@pytest.mark.parametrize(
    ("columns", "wanted"),
    [
        ({"a": [1]}, "a table of kernels"),
        ({"gemm_dtype": ["fp8"], "latency": [1.0], "m": [1], "n": [1]}, "k"),
        ({"gemm_dtype": ["fp8"], "latency": ["x"], "m": [1], "n": [1], "k": [1]}, "numbers"),
        ({"gemm_dtype": ["fp8"], "latency": [-1.0], "m": [1], "n": [1], "k": [1]}, "positive"),
    ],
)
def test_bad_tables_are_named(columns, wanted):
    with pytest.raises(InputError, match=wanted):
        list(kernels.kernels(pd.DataFrame(columns), "t.csv"))


def test_calibrate(tmp_path):
    """A table made from a known curve gives that curve back, as a file that can be loaded."""
    from jaxmem import devices
    from jaxmem.xpu import operators

    known = devices.load("h200-nccl-all-reduce")
    size, n = np.meshgrid(2.0 ** np.arange(8, 29), [2.0, 4.0, 8.0])
    second = [
        float(operators.collective_s(known, 450e9, message_bytes=2 * s, n_gpu=g, n_pass=2.0))
        for s, g in zip(size.ravel(), n.ravel(), strict=True)
    ]
    table = tmp_path / "links.csv"
    pd.DataFrame({
        "nccl_dtype": "half", "op_name": "all_reduce", "num_gpus": n.ravel().astype(int),
        "message_size": size.ravel().astype(int), "latency": np.array(second) * 1e3,
    }).to_csv(table, index=False)  # fmt: skip
    out = tmp_path / "out"
    run = CliRunner().invoke(calibrate.command, ["h200", str(table), "--out", str(out), "--json"])
    assert run.exit_code == 0, run.output
    report = json.loads(run.stdout)["fits"][0]
    assert report["median"] < 0.02
    assert report["left_out"] < 0.05
    (file,) = out.iterdir()
    again = devices.load(str(file))
    assert float(again.chain_s) == pytest.approx(float(known.chain_s), rel=0.2)
