"""The error against each body of reference data, by family."""

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jaxmem.core.errors import InputError
from jaxmem.validation.body import Body, Case, Note, find

MODULES = ("models", "aim", "vllm", "llmcompass", "measured_gpu")
"""Modules of this room that hold `BODIES`; a room adds its own."""


_MOST_NAMED = 1000
"""Mismatches that are named; measured bodies have hundreds of thousands."""


def bodies() -> dict[str, Body]:
    """Every registered body by name."""
    modules = [importlib.import_module(f"jaxmem.validation.{name}") for name in MODULES]
    return {body.name: body for module in modules for body in module.BODIES}


def validate(
    body: Body, file: Path | None = None, progress: Callable[[int], None] | None = None
) -> dict[str, Any] | None:
    """Check a body and sum it up.

    Args:
        body: one of `bodies()`.
        file: any file of the body's format; by default what ships, or what JAXMEM_REFERENCE holds.
        progress: called with the number of cases done.

    Returns:
        `{"body", "cases", "exact", "mean_rel_error", "max_rel_error", "families", "mismatches",
        "left_out"}`, or None where the data is not here.

    Raises:
        InputError: the file is missing or malformed, or holds no case.
    """
    path = find(body) if file is None else file
    if path is None:
        return None
    if not path.exists():
        raise InputError("file", str(path), f"a file of body {body.name}")
    cases: list[Case] = []
    left_out: Counter[str] = Counter()
    for case in body.check(path):
        if isinstance(case, Note):
            left_out[case.reason] += case.n
            continue
        cases.append(case)
        if progress:
            progress(len(cases))
    if not cases:
        raise InputError("file", str(path), f"at least one case of body {body.name}")
    families: dict[str, list[Case]] = {}
    for case in cases:
        families.setdefault(case.family, []).append(case)
    return {
        "body": body.name,
        "cases": len(cases),
        "exact": sum(case.is_exact for case in cases),
        **_errors(cases),
        "families": {
            name: {"cases": len(found), **_errors(found)} for name, found in families.items()
        },
        "mismatches": [case.id for case in cases if not case.is_exact][:_MOST_NAMED],
        "left_out": dict(left_out),
    }


def _errors(cases: list[Case]) -> dict[str, float]:
    error = np.array([case.rel_error for case in cases])
    found = {
        "mean_rel_error": float(error.mean()),
        "median_rel_error": float(np.median(error)),
        "p90_rel_error": float(np.quantile(error, 0.9)),
        "max_rel_error": float(error.max()),
    }
    signed = np.array([case.signed for case in cases])
    signed = signed[np.isfinite(signed)]
    return {**found, "bias": float(np.median(signed))} if len(signed) else found
