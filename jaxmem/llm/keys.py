"""Checked access to the keys of a configuration, remembering which were read."""

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from jaxmem.core.errors import InputError, nearest

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
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        if not isinstance(whole, int) or isinstance(whole, bool) or not low <= whole <= high:
            self.fail(key, value, f"a whole number from {low} to {high}")
        return whole

    def flag(self, key: str, *, default: bool = False) -> bool:
        """True or false; `default` where absent or null."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.fail(key, value, "true or false")
        return value

    def only(self, key: str, value: bool) -> None:
        """Raise where a flag has another value than the only one whose counts are known."""
        if self.flag(key, default=value) != value:
            word = str(value).lower()
            self.fail(key, not value, f"{word} (nothing else is known of {self.model_type})")

    def choice(self, key: str, choices: Sequence[str], default: str | None = None) -> str:
        """One of some words; `default` where absent or null."""
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or value not in choices:
            self.fail(key, value, "one of " + ", ".join(choices), choices)
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

    def texts(self, key: str) -> list[str]:
        """A list of names; empty where absent or null."""
        value = self.raw(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
            self.fail(key, value, "a list of names")
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
            if not isinstance(key, str):
                self.fail("config.json", key, "keys that are text")
            unread = key not in self.read and key not in harmless
            if unread and value is not None and shapely.search(key):
                near = nearest(key, sorted(self.read))
                hint = f" (nearest known: {near})" if near else ""
                self.fail(key[:80], value, f"a key that jaxmem understands{hint}")

    def fail(self, key: str, value: Any, expected: str, known: Any = ()) -> NoReturn:
        """Raise for `key`; where the value is a word, the nearest of `known` is suggested."""
        known = known if isinstance(value, str) else ()
        name = f"{self.prefix}{key}"
        raise InputError(name, value, expected, known=known, where=self.where)
