"""What commands print: numbers with units, JSON without NaN, tables that fit."""

import json
import math

import numpy as np
import pytest

from jaxmem.cli import output


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0.0312, "s", "31.2 ms"),
        (0.9999, "s", "1 s"),  # never 1e+03 ms
        (999.6e9, "B/s", "1 TB/s"),
        (0.0, "J", "0 J"),
        (90_000.0, "s", "1.042 days"),
        (1.9e8, "s", "6.025 years"),
        (1750.4, "tokens/s", "1,750 tokens/s"),
        (53_300.0, "tokens/s", "53,300 tokens/s"),
        (9999.7, "tokens", "10,000 tokens"),
        (0.38, "tokens/J", "0.38 tokens/J"),
        (0.5, "1", "0.5"),
        (math.nan, "J", "-"),
        (math.inf, "s", "-"),
    ],
)
def test_quantity(value, unit, text):
    assert output.quantity(value, unit) == text


def test_plain_is_strict_json():
    value = {
        "a": np.float64("nan"),
        "b": [np.float32(1.5), np.int32(2), -math.inf],
        "c": np.array([0.0, -0.0]),
        "d": (True, None, "x", np.bool_(False)),
    }
    text = json.dumps(list(output.plain(value).values()), allow_nan=False)
    assert text == '[null, [1.5, 2, null], [0.0, 0.0], [true, null, "x", false]]'


def test_a_table_breaks_words_and_no_numbers(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "scale_up.weight_read_efficiency"
    rows = [(name, "1,234,567,890", "tokens/s", "some words " * 12), ("b", "-", "", "few")]
    output.table("T", ["field", "value", "unit", "source"], rows)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(name in line and "1,234,567,890" in line for line in lines)
    dash = next(line for line in lines if line.startswith("b "))
    number = next(line for line in lines if line.startswith(name))
    assert dash.index("-") == number.index("890") + 2  # numbers line up on the right


def test_a_table_takes_no_markup(capsys):
    output.table("T [bold]", ["field", "source"], [("a", "[red] :smile: [1]")])
    assert "[red] :smile: [1]" in capsys.readouterr().out
