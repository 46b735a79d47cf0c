"""Instruction streams: files in both forms, bad lines, channel classes, the load of a stream."""

import json

import jax
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core.errors import InputError
from jaxmem.pim import isa, streams, timing, trace_form
from jaxmem.pim.constraints import COMMAND, EXTENSION
from jaxmem.pim.isa import OPS

AIM = jm.devices.load("aim-gddr6-16gib")
ONE = {"op": "MAC_ABK", "mask": 1 << 31, "row": 5, "opsize": 8}
EOC = {"op": "EOC"}


def line(*instructions, **fields):
    return json.dumps({"id": "x", **fields, "instrs": list(instructions)})


def every_instruction():
    """One of each, with every operand."""
    given = {"mask": 1 << 30, "ch": 3, "bank": 7, "row": 11, "n": 4, "gpr": 2, "gpr2": 3}
    given |= {"cfr": 2, "data": 1}
    return isa.stream([(op.name, given) for op in OPS if op.name != "EOC"] + [("EOC", {})])


def test_every_operation_ends_in_a_command_of_the_table():
    assert {op.command for op in OPS} - {""} <= set(COMMAND)
    assert {op.command for op in OPS if op.is_extension} == set(EXTENSION)
    assert all(op.command == "" for op in OPS if op.is_host)


@pytest.mark.parametrize("form", ["json", "text"])
def test_what_is_written_is_read(form):
    stream = every_instruction()
    if form == "json":
        back = trace_form.parse_case(trace_form.json_case(stream, id="x"), AIM).stream
    else:
        text = trace_form.text_trace(stream).splitlines()
        back = trace_form.parse_text(enumerate(text, 1), AIM)
    for name in ("op", "channel_mask", "bank", "row", "n_burst", "register", "value"):
        assert getattr(back, name).tolist() == getattr(stream, name).tolist(), name


def test_text_is_the_simulators():
    work = [
        ("WR_SBK", {"gpr": 1, "mask": 1 << 31, "bank": 2, "row": 3}),
        ("W_MEM", {"ch": 4, "bank": 5, "row": 6}),
        ("WR_GB", {"n": 8, "gpr": 0, "mask": 0xF0000000}),
        ("W_CFR", {"cfr": 2, "data": 1}),
        ("EOC", {}),
    ]
    assert trace_form.text_trace(isa.stream(work)) == (
        "AiM WR_SBK 1 0x80000000 2 3\nW MEM 4 5 6\nAiM WR_GB 8 0 0xf0000000\nW CFR 2 1\nAiM EOC\n"
    )


def test_a_file_says_what_it_is(tmp_path):
    (tmp_path / "a.trace").write_text("# a comment\n\nAiM MAC_ABK 8 0x80000000 5\nAiM EOC\n")
    (tmp_path / "a.jsonl").write_text(line(ONE, EOC, cycles=3, counts={"MAC16": 8}) + "\n")
    (text,) = trace_form.read(tmp_path / "a.trace", AIM)
    (case,) = trace_form.read(tmp_path / "a.jsonl", AIM)
    assert jax.tree.map(np.ndarray.tolist, text.stream).op == case.stream.op.tolist()
    assert (text.id, case.id, case.cycles, case.counts) == ("a", "x", 3, {"MAC16": 8})


BAD = [
    (line({**ONE, "op": "MAC_ABX"}, EOC), ["instrs[0].op", "'MAC_ABX'", "'MAC_ABK'?"]),
    (line({**ONE, "opsize": 65}, EOC), ["instrs[0].opsize", "within a row", "65"]),
    (line({**ONE, "opsize": 0}, EOC), ["instrs[0].opsize", "1 to 64"]),
    (line({**ONE, "row": 16384}, EOC), ["instrs[0].row", "0 to 16383", "16384"]),
    (line({**ONE, "row": 1.5}, EOC), ["instrs[0].row", "whole number", "1.5"]),
    (line({**ONE, "row": True}, EOC), ["instrs[0].row", "True"]),
    (line({**ONE, "mask": 0}, EOC), ["instrs[0].mask", "at least one channel"]),
    (line({**ONE, "mask": 1 << 32}, EOC), ["instrs[0].mask", "32 bits"]),
    (line({**ONE, "colour": 1}, EOC), ["instrs[0]", "'colour'"]),
    (line({"op": "MAC_ABK", "mask": 1}, EOC), ["instrs[0].row", "None"]),
    (line({"op": "W_MEM", "ch": 32, "bank": 0, "row": 0}, EOC), ["instrs[0].ch", "0 to 31", "32"]),
    (line({"op": "W_MEM", "ch": 0, "bank": 16, "row": 0}, EOC), ["instrs[0].bank", "0 to 15"]),
    (line({"op": "WR_ABK", "mask": 3, "row": 0}, EOC), ["instrs[0].mask", "exactly one channel"]),
    (line(EOC, {"op": 5}, EOC), ["instrs[1].op", "an instruction's name"]),
    (line(EOC, 7), ["instrs[1].op", "7"]),
    (line(ONE), ["instrs[0].op", "EOC as the last"]),
    (line(), ["EOC as the last"]),
    (line(EOC, ONE, EOC), ["an earlier EOC"]),
    (line(ONE, EOC)[:-9], ["truncated"]),
    ('{"id": 1}', ["instrs", "a list of instructions"]),
    ("[1]", ["instrs", "a list of instructions"]),
    (line(EOC, cycles=-1), ["cycles", "-1"]),
    (line(EOC, counts=[1]), ["counts"]),
    ("AiM MAC_ABK 8 0x80000000", ["MAC_ABK with 3 operands (n mask row)"]),
    ("AiM MAC_ABK 8 0x80000000 x", ["row", "'x'"]),
    ("AiM FOO", ["'FOO'"]),
    ("AiM", ["after AiM"]),
    ("MAC_ABK 8 1 1", ["AiM, R or W", "'MAC_ABK'"]),
    ("W MEM 32 0 0", ["ch", "32"]),
    ("AiM SYNC", ["EOC as the last"]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), BAD, ids=lambda x: str(x)[:40])
def test_bad_streams_are_refused_with_line_and_field(tmp_path, text, says):
    path = tmp_path / "bad.txt"
    good = "AiM SYNC" if text[:1] not in "{[" else line(EOC)
    path.write_text(f"{good}\n{text}\n")
    with pytest.raises(InputError) as caught:
        list(trace_form.read(path, AIM))
    message = str(caught.value)
    assert f"{path}:2" in message
    assert all(part in message for part in says), message


def test_empty_and_missing_files(tmp_path):
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="at least one instruction"):
        list(trace_form.read(tmp_path / "empty", AIM))
    with pytest.raises(InputError, match="nowhere"):
        list(trace_form.read(tmp_path / "nowhere", AIM))
    (tmp_path / "cut.gz").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(InputError, match=r"cut\.gz"):
        list(trace_form.read(tmp_path / "cut.gz", AIM))


def test_channels_of_a_smaller_device():
    small = jm.devices.load("lpddr5-pim")
    far = line({**ONE, "mask": 1}, EOC)
    with pytest.raises(InputError, match="channel 31"):
        trace_form.parse_case(far, small)


def test_classes_are_channels_with_equal_instructions():
    work = [("WR_GB", {"mask": 0xF0000000}), ("MAC_ABK", {"mask": 0xFF000000}), ("EOC", {})]
    part, which = isa.classes(isa.stream(work), 32)
    assert part.shape[1] == 3
    assert [len(set(which[a:b].tolist())) for a, b in ((0, 4), (4, 8), (8, 32))] == [1, 1, 1]
    assert part[:, which[0]].tolist() == [True, True, True]
    assert part[:, which[31]].tolist() == [False, False, True]


@pytest.mark.parametrize("n_fragment", [1, 2, 8, 32])
def test_time_of_the_load_is_the_closed_form(n_fragment):
    """The load of a stream, in closed form, takes what the stream takes."""
    stream = streams.fragments(n_fragment)
    load = isa.load(stream, AIM)
    assert load.n_step[0] == n_fragment
    assert load.n_step[1] == 0
    assert float(timing.cycles(load, AIM)[0]) == 414 + 70 * (n_fragment - 1)


def test_load_of_an_attention_stream():
    kw = {"n_request": 2, "n_token": 1024, "n_query": 2}
    load = isa.load(streams.attention(**kw, gb_piece_bursts=64, shares_gb=True), AIM)
    per_channel = jax.tree.map(lambda n: n[5], load)
    assert per_channel.n_step == 2 * 2 * (16 + 2)
    assert per_channel.n_burst == 2 * 2 * (16 * 8 + 2 * 64)
    assert per_channel.n_gb == 2 * 2 * (64 + 64)
    exact = timing.run(
        streams.attention(**kw, gb_piece_bursts=64, shares_gb=True), AIM, "simulator"
    )
    assert float(timing.cycles(per_channel, AIM)) == int(exact.cycles)


def test_load_counts_writes():
    bank = {"mask": 1 << 31, "bank": 0}
    work = [("WR_SBK", {**bank, "row": r}) for r in (1, 1, 2)] + [("EOC", {})]
    load = isa.load(isa.stream(work), AIM)
    assert (load.n_write_row[0], load.n_write[0]) == (2, 3)
    assert isa.add(load, isa.scale(load, 2)).n_write_row[0] == 6
