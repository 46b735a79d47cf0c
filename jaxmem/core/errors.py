"""One error family for bad input, raised at the boundary and nowhere else.

Inside jit a bad point is data (`feasible`, `limit`); here a bad file, flag or argument becomes one
line that names the field, its value, what was expected and the nearest known name.
"""

import difflib
from collections.abc import Iterable
from typing import Any

_LONGEST_VALUE = 80


class JaxmemError(Exception):
    """Base of every error that jaxmem raises on purpose."""


class InputError(JaxmemError, ValueError):
    """Bad input; `str()` is always a single line.

    Args:
        field: what was wrong, as the user writes it: a path such as `workload.batch`, a key.
        value: what was given.
        expected: what would have been right, with its unit.
        known: the names that would have been accepted; the nearest is suggested.
        where: file and line, where there are any.

    Example:
        >>> str(InputError("policy", "paton", "a policy name", known=["patton", "neupims"]))
        "policy: expected a policy name, got 'paton'; did you mean 'patton'?"
    """

    def __init__(
        self,
        field: str,
        value: Any,
        expected: str,
        *,
        known: Iterable[str] = (),
        where: str = "",
    ) -> None:
        self.field, self.value, self.expected, self.where = field, value, expected, where
        self.known = tuple(known)
        text = f"{field}: expected {expected}, got {_shown(value)}"
        if hint := nearest(value if isinstance(value, str) else _shown(value), self.known):
            text += f"; did you mean {hint!r}?"
        super().__init__(one_line(f"{where}: {text}" if where else text))


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name closest to `name`, or an empty string where none is close.

    Example:
        >>> nearest("ch_per_hed", ["ch_per_head", "policy"])
        'ch_per_head'
    """
    by_folded = {k.lower(): k for k in known}
    folded = name.lower()
    found = difflib.get_close_matches(folded, by_folded, n=1, cutoff=0.5)
    if not found:  # a short name inside a long one, such as "batch" for "workload.batch"
        found = sorted((k for k in by_folded if folded and folded in k), key=len)
    return by_folded[found[0]] if found else ""


def one_line(text: str) -> str:
    """`text` with every control character and run of white space folded to one space."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def _shown(value: Any) -> str:
    """`value` as a person would write it, shortened.

    Python refuses to print integers of more than 4,300 digits and very deep nesting.

    Example:
        >>> _shown(8), _shown(10**5000)
        ('8', 'an int too long to print')
    """
    try:
        text = repr([[[value]]])[3:-3]  # some levels to spare for the frames of the error itself
    except (ValueError, RecursionError):
        kind = type(value).__name__
        return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind} too long to print"
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."
