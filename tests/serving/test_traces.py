"""Request lengths: the public formats, every kind of bad file, the published statistics."""

import csv
import io
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.serving.traces import COLUMNS, MAX_TOKENS, published_lengths, read_lengths

OWN = "input_tokens,output_tokens\n"


@pytest.fixture
def lengths(tmp_path):
    """Reads a file of this content."""
    path = tmp_path / "lengths.csv"

    def read(content):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_lengths(path)

    return read


@pytest.fixture
def refused(lengths, tmp_path):
    """The one line that a bad file gets, after its path."""

    def read(content):
        with pytest.raises(InputError) as caught:
            lengths(content)
        line = str(caught.value)
        assert "\n" not in line
        path = str(tmp_path / "lengths.csv")
        assert path in line
        return line.replace(path, "FILE")

    return read


def pairs(found):
    assert found.input_tokens.dtype == found.output_tokens.dtype == np.float64
    return list(zip(found.input_tokens.tolist(), found.output_tokens.tolist(), strict=True))


@pytest.mark.parametrize(
    "content",
    [
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,374,44\nx,396,109\n",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,374,44,418,Conversation log\n45,GPT-4,396,109,505,Conversation log\n",
        "output_tokens,input_tokens\n44,374\n109,396\n",
        "timestamp,input_length,output_length\n0,374,44\n1,396,109\n",
        OWN + "374,44\n396,109",  # no newline at the end
        "\ufeff" + OWN + "374,44\n396,109\n",
        OWN.replace("\n", "\r\n") + "374,44\r\n396,109\r\n",
        OWN.replace("\n", "\r") + "374,44\r396,109\r",
        OWN + "\n374,44\n\n   \n396,109\n\n\n",
        " input_tokens , output_tokens \n 374 ,44\n396, 109 \n",
        '"input_tokens","output_tokens"\n"374","44"\n"396","109"\n',
        OWN + "374.0,44.\n396.00,109\n",  # as tables with gaps write whole numbers
        OWN + "374,44,more,cells\n396,109\n",
    ],
    ids=["azure", "burstgpt", "own", "mooncake", "no-eol", "bom", "crlf", "cr", "blank", "spaces",
         "quoted", "floats", "ragged"],
)  # fmt: skip
def test_formats(lengths, content):
    assert pairs(lengths(content)) == [(374, 44), (396, 109)]


def test_zero_and_the_longest(lengths):
    assert pairs(lengths(f"{OWN}0,{MAX_TOKENS}\n")) == [(0, MAX_TOKENS)]


@pytest.mark.parametrize(
    ("row", "column", "value"),
    [
        ("-1,5", "input_tokens", "'-1'"), ("5,1.5", "output_tokens", "'1.5'"),
        ("5,many", "output_tokens", "'many'"), ("5,", "output_tokens", "''"),
        ("5", "output_tokens", "''"), (",", "input_tokens", "''"),
        ("nan,5", "input_tokens", "'nan'"),
        ("5,inf", "output_tokens", "'inf'"), ("1e3,5", "input_tokens", "'1e3'"),
        ("1_000,5", "input_tokens", "'1_000'"), ("\u0663,5", "input_tokens", "'\u0663'"),
        (f"{MAX_TOKENS + 1},5", "input_tokens", "'10000001'"),
        ("9" * 5000 + ",5", "input_tokens", "99"),
        ('"1\n2",5', "input_tokens", "1"),
    ],
)  # fmt: skip
def test_a_bad_row_is_named(refused, row, column, value):
    line = refused(f"{OWN}1,1\n\n{row}\n7,7\n")
    number = 5 if "\n" in row else 4
    assert line.startswith(f"FILE line {number}: {column}: expected a whole number of tokens")
    assert value in line
    assert len(line) < 300


@pytest.mark.parametrize("content", ["", "\n", "\ufeff", "   \n1,2\n", ",,\n1,2,3\n"])
def test_no_header(refused, content):
    assert "a header line" in refused(content)


@pytest.mark.parametrize("content", [OWN, OWN.strip(), OWN + "\n\n"])
def test_header_only(refused, content):
    assert "at least one request" in refused(content)


@pytest.mark.parametrize(
    ("header", "says"),
    [
        ("TIMESTAMP,ContextTokens,GeneratedToken",
         ["GeneratedTokens beside ContextTokens", "'GeneratedToken';", "mean 'GeneratedTokens'?"]),
        ("id,output_tokens", ["input_tokens beside output_tokens", "'id, output_tokens'"]),
        ("Request Tokens,Response tokens", ["'Request Tokens'", "mean 'Request tokens'?"]),
        ("when,input_tokns,output_tokns", ["'output_tokns'", "mean 'output_tokens'?"]),
        ("a,b", ["ContextTokens and GeneratedTokens", "'a, b'"]),
        ("input_tokens;output_tokens", ["'input_tokens;output_tokens'"]),
        ("374,44", ["'374, 44'"]),
    ],
)  # fmt: skip
def test_missing_columns(refused, header, says):
    line = refused(header + "\n1,2,3\n")
    assert line.startswith("FILE line 1: header: expected ")
    assert all(text in line for text in says), line


def test_not_a_file(tmp_path):
    for path in (tmp_path, tmp_path / "none.csv", tmp_path / ("x" * 300), ""):
        with pytest.raises(InputError, match="CSV file"):
            read_lengths(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable(tmp_path):
    path = tmp_path / "lengths.csv"
    path.write_text(OWN)
    path.chmod(0)
    with pytest.raises(InputError, match="readable"):
        read_lengths(path)


def test_not_utf8_is_named_by_line(refused):
    rows = b"1,2\n" * 5000  # more than is decoded at once
    assert refused(OWN.encode() + rows + b"\xff,2\n").startswith("FILE line 5002: lengths: ")
    assert "UTF-8" in refused((OWN + "1,2\n").encode("utf-16"))


def test_a_cell_beyond_the_readers_limit(refused):
    line = refused(OWN + '1,2\n"' + "x" * (csv.field_size_limit() + 1) + '",2\n')
    assert line.startswith("FILE line ")
    assert len(line) < 300


def outcome(path, content: bytes):
    path.write_bytes(content)
    try:
        return read_lengths(path)
    except InputError as error:
        line = str(error)
        assert len(line.splitlines()) == 1
        assert str(path) in line
        return None


@given(content=st.binary(max_size=200))
def test_junk(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "junk.csv"
    outcome(path, content)
    outcome(path, OWN.encode() + content)


@given(
    pair=st.sampled_from(sorted(COLUMNS.items())),
    rows=st.lists(
        st.tuples(st.integers(0, MAX_TOKENS), st.integers(0, MAX_TOKENS)), min_size=1, max_size=20
    ),
    newline=st.sampled_from(["\n", "\r\n"]),
    extra=st.text(st.characters(codec="utf-8", exclude_characters="\r\n\0"), max_size=10),
)
def test_what_is_written_is_read(tmp_path_factory, pair, rows, newline, extra):
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator=newline)
    writer.writerow(["note", *pair])
    writer.writerows((extra, *row) for row in rows)
    path = tmp_path_factory.getbasetemp() / "written.csv"
    assert pairs(outcome(path, text.getvalue().encode())) == rows


@given(cell=st.text(max_size=12))
def test_a_cell_is_a_length_or_an_error(tmp_path_factory, cell):
    text = io.StringIO(newline="")
    csv.writer(text).writerows([["input_tokens", "output_tokens"], [cell, "1"]])
    path = tmp_path_factory.getbasetemp() / "cell.csv"
    found = outcome(path, text.getvalue().encode("utf-8", "surrogatepass"))
    if found is not None:
        assert found.input_tokens[0] == float(cell)


# ---------------------------------------------------------------- real and published


def test_published_lengths():
    """Azure's 2023 conversation trace: mean 1155 and 211, median 1020 and 129."""
    found = published_lengths()
    for column, mean, median in zip(found, (1155, 211), (1020, 129), strict=True):
        assert column.mean() == pytest.approx(mean, rel=0.05)
        assert np.median(column) == pytest.approx(median, rel=0.05)
        assert column.min() >= 1
        np.testing.assert_array_equal(column, np.round(column))
    assert abs(np.corrcoef(*found)[0, 1]) < 0.1
    np.testing.assert_array_equal(found.input_tokens, published_lengths().input_tokens)
    assert len(published_lengths(7).output_tokens) == 7


def test_the_azure_trace(reference):
    found = read_lengths(reference / "traces" / "azure2023_conv.csv")
    assert len(found.input_tokens) == len(found.output_tokens) == 19_366
    assert pairs(found)[:2] == [(374, 44), (396, 109)]
    for column, like in zip(found, published_lengths(), strict=True):
        assert column.mean() == pytest.approx(like.mean(), rel=0.05)
        assert np.median(column) == pytest.approx(np.median(like), rel=0.05)
