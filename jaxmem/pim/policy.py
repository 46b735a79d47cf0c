"""Runtimes as points of one policy space: every choice is a traced number.

Orders of placement are those of Fig. 4 of the PATTON paper: Ch (another channel), C (another
column), R (another row). `policies.toml` holds the named points with a source for every field. Not
every mix of fields can be built: `conflict` names the two that contradict each other.

Spreads: over a head group's channels (`head_group`: a Value too), block by block in turn (`token`),
each block to the emptiest channel (`block`), or a whole request in one channel (`request`). Values
are written in place (`direct`), through a Commit Zone, as whole bursts of one bank with an
outer-product unit (`burst`), as one copy of a batch in lock-step (`bulk`), or not at all, the KV
cache being the host's (`host`).
"""

import csv
import functools
import tomllib
from importlib import resources
from typing import Any, Self

import numpy as np

from jaxmem.core.design import Leaf, build, code, count, design, flag, leaf, static
from jaxmem.core.errors import InputError

ORDER = {"ch_c_r": 0, "ch_r_c": 1, "c_ch_r": 2, "c_r_ch": 3, "r_ch_c": 4, "r_c_ch": 5}
SPREAD = {"head_group": 0, "request": 1, "block": 2, "token": 3}
V_WRITE = {"direct": 0, "commit_zone": 1, "burst": 2, "bulk": 3, "host": 4}
WRITE_ISSUE = {
    "channel_all_bank": 0,
    "mixed_decoder": 1,
    "mixed_decoder_gpr": 2,
    "stock_single_bank": 3,
    "stock_all_bank": 4,
}


@design
class Policy:
    """How a runtime places, writes and shares the KV cache in PIM."""

    name: str = static("name of the point, for people", default="")
    k_order: Leaf = code("order in which Key blocks fill channels, columns, rows", ORDER, default=0)
    v_order: Leaf = code("order in which full Value blocks do", ORDER, default=0)
    spread: Leaf = code("what is spread over channels", SPREAD, default=0)
    v_write: Leaf = code("where a decoded token's Value is written", V_WRITE, default=1)
    write_issue: Leaf = code(
        "which commands write it; the paper leaves it open (research/patton.md 6.3)",
        WRITE_ISSUE,
        default=0,
    )
    own_blocks: Leaf = count(
        "blocks of the granule that a request owns (N_O1p2, an Order-2 granule)",
        unit="blocks",
        lattice=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
        high=4096,
        default=16,
        alias=("n_o1p2",),
    )
    run_max_blocks: Leaf = count(
        "longest Value run in one MAC sequence", unit="blocks", high=1e9, default=1e9
    )
    prefix_tokens: Leaf = count("granularity of prefix sharing", unit="tokens", default=16)
    max_context_tokens: Leaf = count("context cap", unit="tokens", high=1e12, default=1e12)
    gb_piece_bursts: Leaf = count(
        "largest WRGB; a longer one is split so that the decoder does not stall",
        unit="bursts",
        high=64,
        default=32,
    )
    shares_rowset: Leaf = flag("requests share a row set", default=1)
    merges_adjacent: Leaf = flag("runs continue across adjacent granules of a request", default=1)
    is_static: Leaf = flag("every request reserves the context cap", default=0)
    carries: Leaf = flag("a conversation's next turn continues its open granule", default=1)
    has_prefix_cache: Leaf = flag("finished requests stay cached", default=1)
    is_lockstep: Leaf = flag("all requests are at the same token", default=0)
    overlap: Leaf = leaf(
        "share of host and PIM time that overlaps (dual row buffers)", low=0, high=1, default=0.0
    )

    @classmethod
    def create(cls, base: str = "patton", **values: Any) -> Self:
        """A named policy, with some fields changed.

        Raises:
            InputError: unknown name, field or choice, with the nearest known one.

        Example:
            >>> float(Policy.create("patton", own_blocks=32).own_blocks)
            32.0
        """
        return build(cls, {"name": base, **_named(base), **values})


def conflicts(policy: Policy) -> list[tuple[str, str, Leaf]]:
    """Pairs of fields that cannot go together, and whether they meet in a policy; traced or not.

    Example:
        >>> p = Policy.create("attacc", has_prefix_cache=True)
        >>> [pair[:2] for pair in conflicts(p) if pair[2]]
        [('is_static', 'has_prefix_cache')]
    """
    write, spread = policy.v_write, policy.spread
    is_static, is_grouped = policy.is_static > 0, spread == SPREAD["head_group"]
    return [
        ("v_write", "spread", (write == V_WRITE["commit_zone"]) & ~is_grouped),
        ("v_write", "is_lockstep", (write == V_WRITE["bulk"]) & ~(policy.is_lockstep > 0)),
        ("v_write", "spread", (write == V_WRITE["bulk"]) & ~is_grouped),
        ("is_static", "has_prefix_cache", is_static & (policy.has_prefix_cache > 0)),
        ("is_static", "spread", is_static & (spread == SPREAD["request"])),
        ("is_static", "max_context_tokens", is_static & (policy.max_context_tokens >= 1e9)),
        ("spread", "own_blocks", (spread == SPREAD["block"]) & (policy.own_blocks > 1)),
    ]


def simulated_run_blocks(policy: Policy, ch_per_head: float) -> float:
    """Mean Value run in simulations of granules of this size, interpolated in its logarithm.

    Args:
        policy: one that shares row sets by granules, as PATTON does.
        ch_per_head: channels of a KV head; the nearer of 1 and 4 counts.

    Raises:
        InputError: another kind of policy.

    Source: sweeps/patton/run_blocks.py, whose table says how far seeds spread.
    """
    is_known = policy.spread == SPREAD["head_group"] and policy.shares_rowset > 0
    if not is_known or policy.is_static > 0:
        rule = "a number: only policies that share row sets by granules were simulated"
        raise InputError("expected_run_blocks", "simulated", rule)
    found = [row for row in _simulated() if (row[0] > 2) == (ch_per_head > 2)]
    own, run = np.array([row[1:] for row in found]).T
    return float(np.exp(np.interp(np.log(float(policy.own_blocks)), np.log(own), np.log(run))))


@functools.cache
def _simulated() -> list[tuple[float, float, float]]:
    """(channels of a head, granule, run) of every simulation."""
    text = resources.files("jaxmem.pim").joinpath("run_blocks.csv").read_text(encoding="utf-8")
    return [
        (float(row["ch_per_head"]), float(row["own_blocks"]), float(row["run_blocks"]))
        for row in csv.DictReader(text.splitlines())
    ]


def load(what: Any) -> Policy:
    """A policy by name, or the policy itself.

    Raises:
        InputError: unknown name; fields that contradict each other.
    """
    policy = what if isinstance(what, Policy) else Policy.create(str(what))
    for one, other, is_met in conflicts(policy):
        if np.any(is_met):
            both = f"{getattr(policy, one):g} with {other} {getattr(policy, other):g}"
            raise InputError(f"policy.{one}", both, f"{one} and {other} that can go together")
    return policy


def names() -> list[str]:
    """Names of the policies that ship."""
    return list(_table())


def support(name: str) -> dict[str, str]:
    """What a policy offers to production serving: a row of the PATTON paper's Table 1.

    Every entry follows from the policy's fields. Placement counts as explicit if the source of its
    orders says so, that is, if they were not assumed.

    Example:
        >>> support("neupims")["paged_attention"]
        'partly'
    """
    p, rows = Policy.create(name), sources(name)
    is_dynamic = not p.is_static
    # Pages that one request owns can be allocated, but not shared.
    pages = "yes" if p.has_prefix_cache else "partly" if is_dynamic and p.shares_rowset else "no"
    orders = [rows.get(field, {}) for field in ("k_order", "v_order")]
    is_explicit = all(row and not row.get("is_assumed") for row in orders)
    written = {"commit_zone": "efficient", "burst": "whole bursts"}
    code = {number: text for text, number in V_WRITE.items()}[int(p.v_write)]
    return {
        "year": str(_entry(name)["year"]),
        "dynamic_allocation": "yes" if is_dynamic else "no",
        "paged_attention": pages,
        "explicit_mapping": "yes" if is_explicit else "no",
        "single_token_write": written.get(code, "not considered"),
        "processing_unit": "modified" if code == "burst" else "unmodified",
    }


def summary(name: str) -> str:
    """What a named policy is, in a line."""
    return _entry(name)["summary"]


def sources(name: str) -> dict[str, dict[str, Any]]:
    """For each field that a named policy sets: value and source."""
    return _entry(name)["field"]


def _entry(name: str) -> dict[str, Any]:
    if name.lower() not in _table():
        raise InputError("policy", name, "a policy name", known=_table())
    return _table()[name.lower()]


def _named(name: str) -> dict[str, Any]:
    return {field: row["value"] for field, row in sources(name).items()}


@functools.cache
def _table() -> dict[str, Any]:
    text = resources.files("jaxmem.pim").joinpath("policies.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
