"""Recomputes every published number, as shipped and with unfitted constants."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from jaxmem.claims.claim import Claim, read

PAPERS = ("patton", "flashaccel")


def reproduce(paper: str) -> Iterator[dict[str, Any]]:
    """The claims of a paper, one by one, each beside the model's number.

    Args:
        paper: one of `PAPERS`.

    Returns:
        `{"id", "paper", "section", "text", "unit", "published", "unfitted", "model", "rel_error",
        "status", "note"}`: `unfitted` has every fitted constant at its unfitted value, `rel_error`
        is model / published - 1, `status` the claim's kind, or `missed`.
    """
    compute: dict[str, Callable[[bool], float]]
    compute = importlib.import_module(f"jaxmem.claims.{paper}").COMPUTE
    for claim in read(paper):
        is_modelled = claim.kind != "not modelled"
        model = compute[claim.id](True) if is_modelled else None
        unfitted = compute[claim.id](False) if is_modelled else None
        yield {
            "id": claim.id,
            "paper": claim.paper,
            "section": claim.section,
            "text": claim.text,
            "unit": claim.unit,
            "published": claim.published,
            "unfitted": unfitted,
            "model": model,
            **_judged(claim, model),
            "note": claim.note,
        }


def _judged(claim: Claim, model: float | None) -> dict[str, Any]:
    if model is None:
        return {"rel_error": None, "status": "not modelled"}
    rel_error = model / claim.published - 1
    is_met = abs(rel_error) <= claim.tolerance
    return {"rel_error": rel_error, "status": claim.kind if is_met else "missed"}
