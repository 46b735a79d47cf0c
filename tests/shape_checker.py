"""The run-time type checker of the tests: beartype, with int where float is asked for."""

from typing import Self

from beartype import BeartypeConf, beartype

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def check(function):
    """`function`, its types checked at each call; beartype knows `Self` only inside classes."""
    if Self in getattr(function, "__annotations__", {}).values():
        return function
    return _beartype(function)
