"""Every public format reads as its publisher means it; a bad row is named by line and column."""

import gzip
import json

import numpy as np
import pytest

from jaxmem.core.errors import InputError
from jaxmem.serving.kv_events import read_kv_events
from jaxmem.serving.traces import read_trace

MOONCAKE = {"timestamp": 27482, "input_length": 1030, "output_length": 52, "hash_ids": [46, 47, 9]}
BAILIAN = [
    {"chat_id": 5, "parent_chat_id": -1, "timestamp": 1.5, "input_length": 33, "output_length": 4,
     "type": "text", "turn": 1, "hash_ids": [11, 12, 13]},
    {"chat_id": 8, "parent_chat_id": 5, "timestamp": 9.5, "input_length": 48, "output_length": 7,
     "type": "text", "turn": 2, "hash_ids": [11, 12, 14]},
    {"chat_id": 9, "parent_chat_id": None, "timestamp": 9.75, "input_length": 3, "output_length": 1,
     "type": "text", "turn": 1, "hash_ids": [4]},
]  # fmt: skip
CHAT = [
    {"id": "a", "conversations": [
        {"from": "human", "value": "one two three"}, {"from": "gpt", "value": "four five six"},
        {"from": "human", "value": "seven"}, {"from": "gpt", "value": "eight"},
    ]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "unasked"}]},
]  # fmt: skip


@pytest.fixture
def write(tmp_path):
    """Writes a file of this content and gives its path."""

    def write(content, name="trace"):
        if isinstance(content, list):
            content = "".join(json.dumps(row) + "\n" for row in content)
        data = content.encode() if isinstance(content, str) else content
        path = tmp_path / name
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return write


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_mooncake(write, name):
    trace = read_trace(write([{**MOONCAKE, "timestamp": 27382}, MOONCAKE], name))
    assert (trace.format, trace.id_tokens, trace.n_skipped) == ("mooncake", 512, 0)
    np.testing.assert_allclose(trace.arrival_s, [0, 0.1])
    assert trace.input_tokens.tolist() == [1030] * 2
    assert trace.output_tokens.tolist() == [52] * 2
    assert trace.ids.tolist() == [46, 47, 9] * 2
    assert trace.start.tolist() == [0, 3, 6]
    assert trace.session.tolist() == [0, 1]


def test_bailian_joins_a_chat_to_its_parent(write):
    trace = read_trace(write(BAILIAN))
    assert (trace.format, trace.id_tokens) == ("bailian", 16)
    assert trace.session.tolist() == [0, 0, 2]
    np.testing.assert_allclose(trace.arrival_s, [0, 8, 8.25])


def test_azure_keeps_seven_digits_of_a_second(write):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:15:46.6805900,374,44\r\n2023-11-16 18:15:50.9951690,396,109\r\n"
    )
    trace = read_trace(write(text))
    assert (trace.format, trace.id_tokens, len(trace.ids)) == ("azure", 0, 0)
    np.testing.assert_allclose(trace.arrival_s, [0, 4.314579], atol=1e-6)


def test_burstgpt_has_sessions(write):
    text = (
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,"
        "Log Type\n5,s1,2.5,ChatGPT,472,18,490,Conversation log\n"
        "45,s2,3,GPT-4,1087,230,1317,API log\n118,s1,1,ChatGPT,10,0,10,Conversation log\n"
        "119,,1,ChatGPT,10,0,10,API log\n"
    )
    trace = read_trace(write(text))
    assert trace.format == "burstgpt"
    assert trace.session.tolist() == [0, 1, 0, 3]
    assert trace.arrival_s.tolist() == [0, 40, 113, 114]


@pytest.mark.parametrize("indent", [None, 1])
def test_sharegpt_counts_words_or_uses_a_tokenizer(write, indent):
    path = write(json.dumps(CHAT, indent=indent))
    trace = read_trace(path, block_tokens=4)
    assert (trace.format, trace.id_tokens) == ("sharegpt", 4)
    assert trace.input_tokens.tolist() == [4, 10]  # 4 tokens to 3 words, history included
    assert trace.output_tokens.tolist() == [4, 2]
    assert trace.session.tolist() == [0, 0]
    assert trace.ids.tolist() == [0, 0, 1]  # the second prompt begins with the first
    letters = read_trace(path, block_tokens=4, tokens=lambda text: [ord(c) for c in text])
    assert letters.input_tokens.tolist() == [13, 31]


@pytest.mark.parametrize(
    ("row", "column"),
    [
        ({**MOONCAKE, "input_length": -1}, "input_length"),
        ({**MOONCAKE, "input_length": 1.5}, "input_length"),
        ({**MOONCAKE, "input_length": True}, "input_length"),
        ({**MOONCAKE, "output_length": None}, "output_length"),
        ({**MOONCAKE, "output_length": 10**9}, "output_length"),
        ({**MOONCAKE, "hash_ids": [46]}, "hash_ids"),
        ({**MOONCAKE, "hash_ids": [46, "x", 9]}, "hash_ids"),
        ({**MOONCAKE, "hash_ids": 3}, "hash_ids"),
        ({**MOONCAKE, "timestamp": "soon"}, "timestamp"),
        ([1], "line"),
    ],
)
def test_a_bad_row_is_named_or_counted(write, row, column):
    path = write([MOONCAKE, row, MOONCAKE])
    with pytest.raises(InputError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"{path} line 2: {column}: expected ")
    trace = read_trace(path, skip_bad=True)
    assert (len(trace.arrival_s), trace.n_skipped) == (2, 1)


@pytest.mark.parametrize(
    "content", ["", "\n", "{}", "[", "[]", "a,b\n1,2\n", '{"a": 1}\n', b"\xff\xfe", "[[[[", "{nope"]
)
def test_what_is_no_trace(write, content):
    with pytest.raises(InputError) as caught:
        read_trace(write(content))
    assert len(str(caught.value).splitlines()) == 1


def test_broken_files(write, tmp_path):
    with pytest.raises(InputError, match="a file that exists"):
        read_trace(tmp_path / "none.jsonl")
    path = write("x", "cut.jsonl.gz")
    path.write_bytes(gzip.compress(json.dumps(MOONCAKE).encode() * 99)[:-9])
    with pytest.raises(InputError):
        read_trace(path)
    with pytest.raises(InputError, match="line 2"):
        read_trace(write(json.dumps(MOONCAKE).encode() + b"\n\xff\xfe\n"))
    with pytest.raises(InputError, match="item 1: item: expected a JSON array that ends"):
        read_trace(write(json.dumps(CHAT)[:-40]))


def stored(*hashes):
    return {"type": "BlockStored", "block_hashes": list(hashes), "block_size": 16}


def removed(*hashes):
    return {"type": "BlockRemoved", "block_hashes": list(hashes)}


def test_events_count_copies(write):
    batches = [
        [stored(1, 2)], [stored(1)], [removed(1)], [["BlockStored", [3, 1], None, [], 16]],
        [removed(7)], [{"type": "AllBlocksCleared"}],
    ]  # fmt: skip
    path = write([{"ts": i / 2, "events": events} for i, events in enumerate(batches)])
    found = read_kv_events(path)
    assert found.resident.tolist() == [2, 3, 2, 4, 4, 0]
    assert found.distinct.tolist() == [2, 2, 2, 3, 3, 0]
    assert found.stored.tolist() == [2, 1, 0, 2, 0, 0]
    assert found.removed.tolist() == [0, 0, 1, 0, 1, 4]
    assert found.block_tokens == 16


def test_a_bad_event_is_named(write, reference):
    for event, column in [
        ({"type": "BlockStord"}, "type"), (removed("...422"), "block_hashes"),
        ({**stored(1), "block_size": 0}, "block_size"), (3, "type"),
    ]:  # fmt: skip
        path = write([{"ts": 0, "events": [stored(1)]}, {"ts": 1, "events": [event]}])
        with pytest.raises(InputError, match=f"line 2: {column}: "):
            read_kv_events(path)
        assert read_kv_events(path, skip_bad=True).n_skipped == 1
    with pytest.raises(InputError, match="shortened"):
        read_kv_events(reference / "golden" / "vllm_kv_events_sample.jsonl")
