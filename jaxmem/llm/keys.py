"""Checked access to the keys of a configuration, remembering which were read."""

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxmem.core.errors import InputError

MAX_SIZE = 10_000_000
"""Largest width, head count or vocabulary that is believed."""


class Keys:
    """A configuration whose keys are read by type; every error names the key."""

    def __init__(self, config: dict[str, Any], where: str, prefix: str = "") -> None:
        self.config, self.where, self.prefix = config, where, prefix
        self.read: set[str] = {"model_type", "architectures"}

    @property
    def model_type(self) -> str:
        """The model type, already checked."""
        return self.config["model_type"]

    def raw(self, key: str) -> Any:
        """The value as it stands; None where absent or null."""
        self.read.add(key)
        return self.config.get(key)

    def size(
        self, key: str, *, default: int | None = None, low: int = 1, high: int = MAX_SIZE
    ) -> int:
        """A whole number in low..high; `default` where absent or null."""
        value = self.raw(key)
        if value is None:
            value = default
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if isinstance(value, float) and value.is_integer():
            value, is_whole = int(value), True
        if not is_whole or not low <= value <= high:
            self.fail(key, value, f"a whole number from {low} to {high}")
        return value

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false; `default` where absent or null."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; `default` where absent or null."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in choices:
            known = choices if isinstance(value, str) else ()
            self.fail(key, value, "one of " + ", ".join(choices), known)
        return value

    def words(self, key: str, choices: Sequence[str], n: int) -> list[str] | None:
        """A list of `n` words; None where absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != n:
            self.fail(key, value, f"a list of {n} (one a layer)")
        for word in value:
            if word not in choices:
                self.fail(key, word, "one of " + ", ".join(choices))
        return value

    def indices(self, key: str) -> list[int]:
        """A list of layer numbers; empty where absent or null."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(type(i) is int for i in value):
            self.fail(key, value, "a list of layer numbers")
        return value

    def table(self, key: str) -> "Keys | None":
        """A nested object; None where absent or null."""
        value = self.raw(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(key, value, "an object")
        return Keys(value, self.where, f"{self.prefix}{key}.")

    def refuse_unknown(self, shapely: re.Pattern[str], harmless: set[str]) -> None:
        """Raise for a key that looks as if it shaped the model and was never read."""
        for key, value in self.config.items():
            unread = key not in self.read and key not in harmless
            if unread and value is not None and shapely.search(str(key)):
                self.fail(str(key), value, "a key that jaxmem understands", self.read)

    def fail(self, key: str, value: Any, expected: str, known: Any = ()) -> NoReturn:
        """Raise for `key`; the hint is drawn from `known`."""
        hint = sorted(known)
        if hint and not isinstance(value, str):
            raise InputError(f"{self.prefix}{key}", value, expected, where=self.where)
        raise InputError(f"{self.prefix}{key}", value, expected, known=hint, where=self.where)
