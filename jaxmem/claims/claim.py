"""The papers' published numbers, read from this room's TOML files.

A claim says what was published, where, and what kind of agreement would mean something: an
identity of stated numbers, a prediction, a value with fitted constants in it, or something that is
not modelled. What the model says is computed by `reproduce`, never stored.
"""

import tomllib
from importlib import resources
from typing import NamedTuple

KINDS = ("identity", "predicted", "fitted", "not modelled")


class Claim(NamedTuple):
    """A published number.

    Attributes:
        id: its name here.
        paper: `patton` or `flashaccel`.
        section: where the paper states it.
        text: what it says, in a few words.
        published: the number.
        unit: its unit.
        kind: one of `KINDS`.
        tolerance: the relative error above which the claim counts as missed.
        note: how it was computed and why it is missed, where it is.
    """

    id: str
    paper: str
    section: str
    text: str
    published: float
    unit: str
    kind: str
    tolerance: float
    note: str


def read(paper: str) -> tuple[Claim, ...]:
    """Every claim of a paper, in the paper's order."""
    text = (resources.files("jaxmem.claims") / f"{paper}.toml").read_text(encoding="utf-8")
    return tuple(Claim(paper=paper, **row) for row in tomllib.loads(text)["claim"])
