"""The prefix cache and the scheduler against vLLM 0.33.0 itself (research/vllm.md, section 2).

Three bodies of recordings: block-manager scenarios, event by event; whole traces through one pool,
request by request; runs of the scheduler, step by step. Compared is every field but hashes of
vLLM's own block keys, which depend on how keys are serialised.
"""

import contextlib
import hashlib
import json
import os
import pickle
from collections.abc import Generator, Iterator
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxmem.core.design import build
from jaxmem.core.errors import InputError
from jaxmem.serving import memory as words
from jaxmem.serving import pool as blocks
from jaxmem.serving import sessions
from jaxmem.serving.blocks import Chain, block
from jaxmem.serving.memory import NONE, Layout
from jaxmem.serving.pool import Rule
from jaxmem.serving.replay import Replayed, replay
from jaxmem.serving.scheduler import NEW, RESUMED, Config
from jaxmem.serving.traces import Trace, read_trace
from jaxmem.validation.body import REFERENCE, Body, Case, beside, read_lines

SYSTEM_TOKENS = (320, 197, 512)
"""Lengths of the recorded workload's three system prompts; it names them by number only. Recovered
from what its first steps computed."""
_LAST_APPENDING = (0, 23)
"""vLLM before 0.23.0 put freed blocks without a key at the back of the queue."""


def check_scenarios(path: Path) -> Iterator[Case]:
    """Every scenario of a file: state and outcome after each event."""
    for where, case in _cases(path, "scenario"):
        with _whole(where):
            bad = _Scenario(case).mismatches()
        yield Case(case["name"], "block_manager", not bad, float(bool(bad)))


def check_replay(path: Path) -> Iterator[Case]:
    """Every trace replay of a file: hits and evictions of each request, and the final queue."""
    for where, case in _cases(path, "trace_replay"):
        with _whole(where):
            yield _replay_case(where, case, path)


def _replay_case(where: str, case: dict[str, Any], path: Path) -> Case:
    n = case["requests"]
    cut = block(_trace(case["trace"], where, path).head(n), case["block_size"])
    is_old = _version(case) < _LAST_APPENDING
    found = replay(
        cut,
        case["num_blocks"],
        fronts_unkeyed=not is_old,
        has_output=case["out_mode"] == "full",
    )
    got = _replay_fields(found)
    is_exact = all(got[k] == case[k] for k in got if k in case)
    hits = got["hit_tokens"]
    error = abs(hits / case["hit_tokens"] - 1) if case["hit_tokens"] else float(hits != 0)
    name = f"{case['trace']}-{case['out_mode']}-{n}-{case['num_blocks']}-{case['hash']}"
    return Case(f"{name}-{case['vllm']}", case["trace"], is_exact, error)


def check_scheduler(path: Path) -> Iterator[Case]:
    """Every scheduler run of a file: each step's batch, and the totals."""
    for where, case in _cases(path, "scheduler_run", "scheduler_mooncake"):
        with _whole(where):
            bad, n_step = scheduler_mismatches(case, where, path.parent)
        yield Case(case["tag"], case["kind"], not bad, abs(n_step / case["steps"] - 1))


def scheduler_mismatches(case: dict[str, Any], where: str, folder: Path) -> tuple[list[str], int]:
    """(fields of a recorded run that differ, steps run); workload and steps lie in `folder`."""
    config = _scheduler_config(case, where)
    todo, names = _scheduler_requests(case, where, folder)
    history = sessions.run(todo, config)
    totals = _totals(case, history, names)
    bad = [key for key, value in totals.items() if key in case and case[key] != value]
    steps = beside(folder, case["steps_file"]) if case.get("steps_file") else None
    if steps is not None:
        bad += _step_mismatches(steps, history, names)
    return bad, history.n_step


def _cases(path: Path, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in read_lines(path):
        where = f"{path} line {number}"
        try:
            case = json.loads(line)
            is_ours = case["kind"] in kinds
        except (ValueError, KeyError, TypeError):
            raise InputError("line", line[:40], "a recorded case", where=where) from None
        if not is_ours:
            raise InputError("kind", case["kind"], " or ".join(kinds), where=where)
        yield where, case


@contextlib.contextmanager
def _whole(where: str) -> Generator[None]:
    """A field that a recorded case lacks is named."""
    try:
        yield
    except KeyError as error:
        raise InputError(str(error.args[0]), None, "a field of a case", where=where) from None


def _version(case: dict[str, Any]) -> tuple[int, ...]:
    return tuple(int(part) for part in case["vllm"].split(".")[:2])


# ---------------------------------------------------------------- scenarios


@partial(jax.jit, static_argnums=0)
def _act(layout, rule, pool, key, request, row, tokens, n_token, held, admits, extends, leaves,
         forgets, block_tokens, needs_whole, spare, computed, published):  # fmt: skip
    """Any one event; what it does not do has a count of zero. (pool, results)."""

    def keys(index):
        return key[row + index]

    no_room = jnp.int32(2**30)
    pool, got = blocks.admit(
        layout, rule, pool, request, row, jnp.where(admits > 0, tokens, 0),
        lambda lacks: jnp.where(n_token < 0, lacks, n_token), keys, block_tokens=block_tokens,
        spare=jnp.where(admits == 2, spare, no_room), needs_whole=needs_whole,
    )  # fmt: skip
    pool, fits, held_after, published = blocks.extend(
        layout, rule, pool, request, row, tokens, computed,
        jnp.where(extends, n_token, -computed), held, published, keys, block_tokens=block_tokens,
    )  # fmt: skip
    pool = blocks.release(layout, rule, pool, request, row, jnp.where(leaves, held, 0))
    pool = jax.lax.cond(
        forgets >= 0, lambda p: blocks.forget(layout, p, forgets), lambda p: p, pool
    )
    return pool, got, fits, held_after, published


class _Request:
    """A scenario's request, on the host."""

    def __init__(self, number: int, row: int, tokens: list[int], salt: Any):
        self.number, self.row, self.tokens, self.salt = number, row, list(tokens), salt
        self.computed = self.held = self.published = 0
        self.is_here = True


class _Scenario:
    """One scenario run through the jitted pool."""

    ROOM = 64
    """Blocks of a request's table; doubled where a scenario needs more."""

    def __init__(self, case: dict[str, Any]):
        self.case, self.size = case, case["block_size"]
        names = {e["req"] for e in case["events"] if "req" in e}
        most = sum(len(e.get("tokens", ())) for e in case["events"]) // self.size + 2
        self.room = _bucket(max(self.ROOM, most))
        self.layout = Layout(
            max_block=_bucket(max(case["num_blocks"], 64)), n_key=_bucket(max(64, most)),
            n_held=self.room * _bucket(max(len(names), 8)), max_event=_bucket(4 * self.room),
        )  # fmt: skip
        rule = {
            "is_caching": int(case["enable_caching"]),
            "fronts_unkeyed": int(_version(case) >= _LAST_APPENDING),
        }
        self.rule = build(Rule, rule)
        self.change: list[Any] = []
        self.pool = jax.jit(words.create, static_argnums=0)(self.layout, case["num_blocks"])
        self.chain, self.labels, self.hashes = Chain(self.size), {}, {}
        self.requests: dict[str, _Request] = {}
        self.key = np.full(self.layout.n_held, NONE, np.int32)
        self.block_key: dict[int, int] = {}
        self.copies: dict[int, list[int]] = {}
        self.shared: set[int] = set()  # keys that had several copies since they were last gone

    def mismatches(self) -> list[str]:
        """Names of the fields that differ, with the number of their event."""
        bad = []
        for number, event in enumerate(self.case["events"]):
            got = getattr(self, "_" + event["op"])(event)
            got |= self._state()
            wanted = event["expect"]
            bad += [
                f"{number} {k}" for k in wanted
                if k != "block_hash_sha256" and got.get(k, "missing") != wanted[k]
            ]  # fmt: skip
        return bad

    # ---- events

    def _new(self, event):
        request = _Request(
            len(self.requests), self.room * len(self.requests), event["tokens"],
            event.get("cache_salt"),
        )  # fmt: skip
        self.requests[event["req"]] = request
        self.change = []
        return {"block_keys": self._label(event["req"])}

    def _append(self, event):
        request = self.requests[event["req"]]
        request.tokens += event["tokens"]
        self.change = []
        return {"num_tokens": len(request.tokens), "block_keys": self._label(event["req"])}

    def _lookup(self, event):
        request = self.requests[event["req"]]
        got = self._run(request, admits=1)[0]
        n_hit = int(got.context_tokens) // self.size
        return {"hit_tokens": n_hit * self.size, "hit_blocks": self._held(request, n_hit)}

    def _start(self, event):
        request = self.requests[event["req"]]
        n_token = -1 if event["n"] is None else event["n"]
        watermark = int(self.case["watermark"] * self.case["num_blocks"])
        got = self._run(
            request, admits=2, n_token=n_token, needs_whole=event["full_sequence_must_fit"],
            spare=watermark if event["has_scheduled_reqs"] else 0,
        )[0]  # fmt: skip
        fits, context = bool(got.fits), int(got.context_tokens)
        if fits:
            request.computed = context + int(got.n_token)
            request.held, request.published = int(got.held), int(got.published)
        new = self._held(request, request.held)[context // self.size :] if fits else None
        n_now = int(got.n_token) if fits else 0
        return {"ok": fits, "hit_tokens": context, "computed_now": n_now, "new_blocks": new}

    def _compute(self, event):
        request = self.requests[event["req"]]
        before = request.held
        _, fits, held, published = self._run(request, extends=True, n_token=event["n"])
        if fits:
            request.computed += event["n"]
            request.held, request.published = int(held), int(published)
        new = self._held(request, request.held)[before:] if fits else None
        return {"ok": bool(fits), "new_blocks": new}

    def _free(self, event):
        self._preempt(event)
        self.requests[event["req"]].is_here = False
        return {}

    def _preempt(self, event):
        request = self.requests[event["req"]]
        self._run(request, leaves=True)
        request.computed = request.held = request.published = 0
        return {}

    def _reset(self, event):
        self.pool, is_done = blocks.reset(self.layout, self.pool)
        self.change = [("AllBlocksCleared", [])] if is_done else []
        if is_done:
            self.block_key.clear()
            self.copies.clear()
            self.shared.clear()
        return {"ok": bool(is_done)}

    def _evict_ids(self, event):
        change: list[Any] = []
        for one in event["blocks"]:
            self._run(_Request(0, 0, [], None), forgets=one)
            if one in self.block_key:
                change.append(("evicted", one, self._drop(one)))
        self.change = change
        return {}

    # ---- the pool

    def _run(self, request, *, admits=0, extends=False, leaves=False, forgets=NONE, n_token=0,
             needs_whole=False, spare=0):  # fmt: skip
        count = self.pool.count._replace(n_event=jnp.int32(0))
        out = _act(
            self.layout, self.rule, self.pool._replace(count=count), self.key, request.number,
            request.row, len(request.tokens), n_token, request.held, admits, extends, leaves,
            forgets, self.size, needs_whole, spare, request.computed, request.published,
        )  # fmt: skip
        self.pool = out[0]
        rows = np.asarray(self.pool.event)[: int(self.pool.count.n_event)]
        self.change = self._changes(rows, request)
        return out[1:]

    def _changes(self, rows, request):
        """What happened to keys, evictions first, as vLLM takes all blocks before it caches."""
        evicted = [int(b) for _, _, b, bits in rows if bits & blocks.EVICTED]
        stored = [(int(i), int(b)) for _, i, b, bits in rows if bits & blocks.PUBLISHED]
        change: list[Any] = [("evicted", b, self._drop(b)) for b in evicted]
        for index, one in stored:
            key = int(self.key[request.row + index])
            self.block_key[one] = key
            self.copies.setdefault(key, []).append(one)
            if len(self.copies[key]) > 1:
                self.shared.add(key)
        if stored:
            change.append(("stored", stored[0][0] > 0, [self.block_key[b] for _, b in stored]))
        return change

    def _drop(self, one: int) -> int:
        key = self.block_key.pop(one)
        self.copies[key].remove(one)
        if not self.copies[key]:
            del self.copies[key]
            self.shared.discard(key)
        return key

    def _held(self, request, n: int) -> list[int]:
        first = self.layout.held_base + request.row
        return np.asarray(self.pool.memory)[first : first + n].tolist()

    def _label(self, name: str) -> list[str]:
        """Labels of a request's keys: the first request and block that had each."""
        request = self.requests[name]
        keys = self.chain.keys(request.tokens, request.salt)
        keys = keys if self.case["enable_caching"] else []
        self.key[request.row : request.row + len(keys)] = keys
        parent: Any = _NONE_HASH
        for i, key in enumerate(keys):
            self.labels.setdefault(key, f"{name}:{i}")
            extra = (("cache_salt", request.salt),) if request.salt is not None and i == 0 else None
            part = tuple(request.tokens[i * self.size : (i + 1) * self.size])
            parent = self.hashes[key] = _sha256((parent, part, extra))
        return [self.labels[key] for key in keys]

    def _state(self) -> dict[str, Any]:
        memory = np.asarray(self.pool.memory)
        rows = memory[: self.layout.key_base].reshape(-1, words.BLOCK_WORDS)
        queue = words.free_queue(self.layout, memory).tolist()
        here = {n: r for n, r in self.requests.items() if r.is_here}
        label, usable = self.labels, range(1, self.case["num_blocks"])
        first = {}
        for key, copies in self.copies.items():
            assert {b for b in usable if rows[b, words.KEY] == key} == set(copies)
            word = memory[self.layout.key_base + words.KEY_WORDS * key]
            if key in self.shared or word != copies[0]:
                first[label[key]] = int(word)
        return {
            "num_free": int(self.pool.count.n_free),
            "free_queue": queue,
            "free_queue_keys": [label.get(int(rows[b, words.KEY])) for b in queue],
            "evicted": [{"block": c[1], "key": label[c[2]]} for c in self.change
                        if c[0] == "evicted"],
            "req_blocks": {n: self._held(r, r.held) for n, r in here.items()},
            "refs": {str(b): int(rows[b, words.REF]) for b in usable if rows[b, words.REF] > 0},
            "cached": {label[key]: copies for key, copies in self.copies.items()},
            "cached_first": first,
            "kv_events": [self._kv_event(c) for c in self.change],
        }  # fmt: skip

    def _kv_event(self, change) -> dict[str, Any]:
        if change[0] == "AllBlocksCleared":
            return {"type": "AllBlocksCleared"}
        if change[0] == "evicted":
            found = [int.from_bytes(self.hashes[change[2]][-8:], "big")]
            return {"type": "BlockRemoved", "n": 1, "block_hashes_u64": found}
        found = [int.from_bytes(self.hashes[key][-8:], "big") for key in change[2]]
        n = len(found)
        return {"type": "BlockStored", "n": n, "n_tokens": n * self.size,
                "has_parent": change[1], "block_hashes_u64": found}  # fmt: skip


def _sha256(value: Any) -> bytes:
    return hashlib.sha256(pickle.dumps(value, protocol=5)).digest()


_NONE_HASH = _sha256("vllm-none-hash")
"""What the first block of a sequence is chained to (research/vllm.md, section 1.2)."""


# ---------------------------------------------------------------- replays


@lru_cache(maxsize=2)
def _read(file: Path) -> Trace:
    return read_trace(file)


def _trace(name: str, where: str, path: Path) -> Trace:
    """A recorded trace, from the reference folder or the folder that the case lies in."""
    folders = [Path(os.environ[REFERENCE])] if os.environ.get(REFERENCE) else []
    for folder in (*folders, path.resolve().parent.parent):
        for suffix in (".jsonl.gz", ".jsonl"):
            file = folder / "traces" / f"{name}_trace{suffix}"
            if file.is_file():
                return _read(file)
    rule = f"a trace in the folder traces/ of the folder that {REFERENCE} names"
    raise InputError("trace", name, rule, where=where)


def _digest(values) -> str:
    return hashlib.sha256(np.asarray(values).astype("<i4").tobytes()).hexdigest()


def _replay_fields(found: Replayed) -> dict[str, Any]:
    totals = found.summary()
    queue = found.free_queue()
    n_keyed, n_distinct = found.n_keyed()
    return {
        "usable_blocks": len(queue),
        "rejected": totals["rejected"],
        "prompt_tokens_all": int(found.prompt_tokens.sum()),
        "prompt_tokens": totals["accepted_prompt_tokens"],
        "hit_tokens": totals["hit_tokens"],
        "hit_rate": totals["hit_rate"],
        "evictions": totals["evictions"],
        "hits_sha256": _digest(found.hit_tokens),
        "evictions_sha256": _digest(found.evictions),
        "first20_hits": found.hit_tokens[:20].tolist(),
        "free_queue_ids_sha256": _digest(queue),
        "free_queue_head_ids": queue[:16].tolist(),
        "free_queue_tail_ids": queue[-16:].tolist(),
        "hashed_blocks": n_keyed,
        "distinct_cached_hashes": n_distinct,
    }


# ---------------------------------------------------------------- scheduler runs

_OPTIONS = {"caching": "is_caching", "watermark": "watermark", "reserve": "reserves_full",
            "long_prefill": "long_prefill_tokens"}  # fmt: skip


def _scheduler_config(case: dict[str, Any], where: str) -> Config:
    options = {}
    for key, value in case.get("opts", {}).items():
        name = next((mine for part, mine in _OPTIONS.items() if part in key), None)
        if name is None:
            raise InputError("opts", key, "an option of the scheduler", known=_OPTIONS, where=where)
        options[name] = float(value)
    if _version(case) < _LAST_APPENDING:
        options["fronts_unkeyed"] = 0
    return Config.create(
        n_block=case["num_blocks"], block_tokens=case["block_size"],
        max_running=case["max_num_seqs"], max_tokens=case["max_num_batched_tokens"], **options,
    )  # fmt: skip


def _scheduler_requests(case, where: str, folder: Path) -> tuple[sessions.Asked, list[str]]:
    if case["kind"] == "scheduler_mooncake":
        trace = _trace(case["trace"], where, folder / "cases").head(case["first"])
        arrival = np.round(trace.arrival_s * 1e3).astype(int) // case["ms_per_step"]
        names = [f"q{i}" for i in range(case["first"])]
        return sessions.of_trace(block(trace, case["block_size"]), arrival), names
    file = beside(folder, "vllm_workload_mt.jsonl")
    if file is None:
        rule = "the recorded workload beside the cases"
        raise InputError("workload", "vllm_workload_mt.jsonl", rule, where=where)
    chain = Chain(case["block_size"])
    rows, names, keys, arrival, follower = [], [], [], [], []
    for _, line in read_lines(file):
        talk = json.loads(line)
        said = [("system", talk["sys"], i) for i in range(SYSTEM_TOKENS[talk["sys"]])]
        for turn, length in enumerate(talk["turns"]):
            who = (talk["conv"], turn)
            said = said + [("user", *who, i) for i in range(length["user"])]
            n_prompt = len(said)
            said = said + [("model", *who, i) for i in range(length["out"])]
            rows.append((n_prompt, length["out"]))
            names.append(f"c{talk['conv']}t{turn}")
            keys.append(np.asarray(chain.keys(said), int))
            arrival.append(talk["arrive_step"] if turn == 0 else NONE)
            follower.append(len(rows) if turn + 1 < len(talk["turns"]) else NONE)
    prompt, response = np.asarray(rows).T
    todo = sessions.asked(
        prompt, response, keys, len(chain), np.asarray(arrival), block_tokens=case["block_size"],
        follower=np.asarray(follower), think=case["think_steps"],
    )  # fmt: skip
    return todo, names


def _totals(case, history: sessions.History, names: list[str]) -> dict[str, Any]:
    tally, batch = history.tally, history.step.batch
    first = {}
    for step in range(history.n_step):
        is_new = batch.admission[step] == NEW
        for request, hit in zip(
            batch.request[step][is_new], batch.context_tokens[step][is_new], strict=True
        ):
            first[names[request]] = int(hit)
    is_caching = bool(case.get("opts", {}).get("enable_caching", True))
    hits, queries = int(tally.hit_tokens), int(tally.query_tokens)
    stats = {
        "requests": len(names), "queries": queries, "hits": hits,
        "preempted_requests": int(tally.n_preempted),
        "preempted_queries": int(tally.resumed_query_tokens),
        "preempted_hits": int(tally.resumed_hit_tokens),
    }  # fmt: skip
    return {
        "requests": len(names), "hits_first": hits, "queries_first": queries,
        "hits_resumed": int(tally.resumed_hit_tokens), "computed": int(tally.computed_tokens),
        "preempt": int(tally.n_preempted), "steps": history.n_step,
        "evictions": int(batch.n_evicted[-1]), "hit_rate_first": hits / queries,
        "stats": stats if is_caching else dict.fromkeys(stats, 0),
        "first_hits": first,
        "finished_at": {n: int(s) for n, s in zip(names, history.last_step, strict=True)},
    }  # fmt: skip


def _step_mismatches(file: Path, history: sessions.History, names: list[str]) -> list[str]:
    recorded = [json.loads(line) for _, line in read_lines(file)]
    if len(recorded) != history.n_step:
        return [f"{history.n_step} steps"]
    record, batch, bad = history.step, history.step.batch, []

    def named(requests):
        return [names[r] for r in requests if r >= 0]

    for step, wanted in enumerate(recorded):
        rows = list(zip(batch.request[step], batch.n_token[step], batch.context_tokens[step],
                        batch.admission[step], strict=True))  # fmt: skip
        rows = [row for row in rows if row[0] >= 0]
        got = {
            "step": step,
            "arrive": named(record.arrived[step]),
            "sched": [[names[r], int(n)] for r, n, _, _ in rows],
            "new": [[names[r], int(c)] for r, _, c, how in rows if how == NEW],
            "resumed": [[names[r], int(c)] for r, _, c, how in rows if how == RESUMED],
            "finished": named(batch.finished[step]),
            "tokens": sum(int(n) for _, n, _, _ in rows),
            "free_after_schedule": int(batch.n_free[step]),
            "free_after_update": int(batch.n_free_after[step]),
            "running": int(batch.n_running[step]),
            "waiting": int(batch.n_waiting[step]),
            "evictions": int(batch.n_evicted[step]),
        }
        bad += [f"step {step} {k}" for k in got if got[k] != wanted[k]]
        if set(named(batch.preempted[step])) != set(wanted["preempted"]):
            bad.append(f"step {step} preempted")
    return bad


def _bucket(n: int) -> int:
    return 1 << max(int(n) - 1, 0).bit_length()


BODIES = (
    Body(
        "vllm-scenarios",
        "block-manager scenarios of vLLM 0.33.0: state and outcome after each event",
        "golden/vllm_scenarios.jsonl",
        check_scenarios,
    ),
    Body(
        "vllm-replay",
        "public traces replayed through vLLM's block pool: hits and evictions of each request, the "
        "final queue; needs the traces",
        "golden/vllm_replay.jsonl",
        check_replay,
    ),
    Body(
        "vllm-scheduler",
        "runs of vLLM's synchronous scheduler, each step's batch (those on a public trace need it)",
        "golden/vllm_sched.jsonl",
        check_scheduler,
    ),
)
