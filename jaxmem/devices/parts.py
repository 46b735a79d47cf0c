"""How the fields of a device that are not numbers are read: names and nested devices.

A part may be given as a record, a catalog name or a path, so that
`Node.create(gpu="h200", ...)` works. The catalog is imported only when a name has to be looked up.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxmem.core.design import build
from jaxmem.core.errors import InputError


def text(value: Any) -> str:
    """`value`, which has to be a string.

    Raises:
        InputError: it is something else.
    """
    if not isinstance(value, str):
        raise InputError("name", value, "a string")
    return value


def device(kind: str) -> Callable[[Any], Any]:
    """A parser of a nested device of `kind`: a record, a catalog name or a path."""

    def parse(value: Any) -> Any:
        from jaxmem.devices import catalog  # the catalog imports every device

        return catalog.load(value, kind=kind)

    return parse


def table_of[T](cls: type[T]) -> Callable[[Any], T]:
    """A parser of a nested table: a `cls`, or a mapping of its fields."""

    def parse(value: Any) -> T:
        if isinstance(value, cls):
            return value
        if isinstance(value, Mapping):
            return build(cls, value)
        raise InputError(cls.__name__, value, f"a {cls.__name__} or a table of its fields")

    return parse
