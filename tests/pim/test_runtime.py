"""The interface of a serving engine: a conversation of two turns, computed in the banks."""

import dataclasses
import gzip
import importlib.util
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxmem as jm
from jaxmem.core.errors import InputError
from jaxmem.pim import isa, layout, numerics
from jaxmem.pim.runtime import Runtime

pytestmark = pytest.mark.slow


def _load_module(name):
    path = Path(__file__).parent / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"runtime_{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


numerical = _load_module("test_numerics")
DESIGN = numerical.sizes_of.design(
    n_channel=4, n_row=64, n_layer=1, row_bytes=1024, n_kv=2, head_dim=64, c=2
)


def runtime():
    policy = dataclasses.replace(DESIGN.policy, own_blocks=np.float64(4))
    return Runtime(dataclasses.replace(DESIGN, policy=policy), max_request=2, max_held=5)


def test_steps_one_after_another_compute_attention():
    """Prefill, decode across a block, and a second request on the first one's prefix."""
    r, rng = runtime(), np.random.default_rng(0)
    shape = layout.Placement(
        **{name: np.zeros((2, 5)) for name in ("row_set", "index")},
        **{name: np.zeros(2) for name in ("zone_row", "zone_slot", "commit_row", "commit_slot")},
        n_token=np.zeros(2), n_write=np.zeros(2),
    )  # fmt: skip
    tokens = numerical.drawn(r.design, shape, rng, jnp.bfloat16)
    tokens.key[1, :32], tokens.value[1, :32] = tokens.key[0, :32], tokens.value[0, :32]
    banks = numerics.memory(r.design)

    def advance():
        placement, failed = r.advance()
        assert failed == []
        numerics.clear(r.design, placement, banks)
        out = numerics.execute(r.design, placement, r.program(), tokens, banks)
        assert numerical.errors(r.design, placement, tokens, out, jnp.bfloat16) <= 1

    r.append(0, 45, blocks=[4, 1, 7])
    advance()
    for n in range(5):
        r.append(0, 1, blocks=[9] if n == 3 else [])
        if n == 1:
            r.append(1, 20, shared=[4, 1], blocks=[0, 2])
        elif n > 1:
            r.append(1, 1)
        advance()
    r.release(0)
    r.append(1, 1)
    advance()
    assert r.is_resident(7)
    assert not r.is_resident(9)
    key = r.where(4, 3).key
    assert (int(key.channel), int(key.bank), int(key.row)) == (0, 3, 0)


def test_recorded_requests_of_vllm(reference):
    """Two hundred steps that vLLM scheduled: chunks, shared system prompts, later turns."""
    steps = reference / "golden/vllm_sched/s8_b4000.jsonl.gz"
    talks = reference / "golden/vllm_workload_mt.jsonl"
    system = {x["conv"]: x["sys"] for x in map(json.loads, talks.read_text().splitlines())}
    design = jm.pim.Design.create(device="aim-gddr6-16gib", llm="llama3-8b")
    r = Runtime(design, max_request=8, max_held=160, max_block=4000)
    free, slot, n_token = list(range(8)), {}, {}
    tables, following, n_shared = {}, 0, 0  # blocks by conversation, and by ("sys", number)
    with gzip.open(steps, "rt") as file:
        lines = [json.loads(line) for line in file][:200]
    for line in lines:
        admitted = dict(line["new"])
        for name, n in line["sched"]:
            talk = int(name[1:].split("t")[0])
            if name not in slot:
                slot[name] = free.pop()
                hit = admitted[name]
                known = [tables.get(talk, []), tables.get(("sys", system[talk]), [])]
                shared = next((t[: hit // 16] for t in known if len(t) >= hit // 16), [])
                tables[name], n_token[name] = list(shared), hit
                assert len(shared) == hit // 16
                n_shared += len(shared)
                tables.setdefault(("sys", system[talk]), tables[name])
            else:
                shared = []
            n_token[name] += n
            more = -(-n_token[name] // 16) - len(tables[name])
            ids = list(range(following, following + more))
            following += more
            tables[name] += ids
            r.append(slot[name], n, blocks=ids, shared=shared)
        placement, failed = r.advance()
        assert failed == []
        for name, _ in line["sched"]:
            table = tables[name]
            assert placement.n_token[slot[name]] == n_token[name]
            assert (placement.row_set[slot[name]] >= 0).sum() == len(table)
        for name in line["finished"]:
            full = tables[name][: n_token[name] // 16]
            talk = int(name[1:].split("t")[0])
            tables[talk] = full
            r.release(slot[name])
            free.append(slot[name])
    assert n_shared > 100
    counted = isa.load(r.stream("sv"), design.device)
    assert np.array_equal(layout.load(design, placement, "sv").n_step, counted.n_step)


def test_no_room_is_said_and_changes_nothing():
    r = runtime()
    r.append(0, 40, blocks=[0, 1])
    _, failed = r.advance()
    assert failed == [0]
    assert not r.is_resident(0)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: r.append(2, 1), "request"), (lambda r: r.append(0, 0), "n_token"),
        (lambda r: r.append(0, 1, blocks=[10**6]), "blocks"),
        (lambda r: r.append(0, 1, blocks=[1, 1]), "each id once"),
        (lambda r: r.append(0, 1, shared=range(6)), "at most 5"),
        (lambda r: r.where(0, 0), "resident"), (lambda r: r.stream(), "advance"),
    ],
)  # fmt: skip
def test_bad_calls_say_why(call, says):
    with pytest.raises(InputError, match=says):
        call(runtime())
