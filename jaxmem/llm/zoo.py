"""Models by name: the zoo's files, a user's config.json, or a dict.

Each file holds a Hugging Face configuration as published, so that the zoo and users' files take one
road; only the file that is asked for is read.
"""

import dataclasses
import functools
import json
import os
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from jaxmem.core.errors import InputError
from jaxmem.llm import hf
from jaxmem.llm.model import ELEMENT_BYTES, KV_ELEMENT_BYTES, LLM
from jaxmem.llm.table import LayerTable, table

_EXPECTED = "a zoo name, a Hugging Face id of the zoo or the path of a config.json"


def load(what: Any, *, weight_dtype: str | None = None, kv_dtype: str | None = None) -> LLM:
    """A model.

    Args:
        what: a zoo name or Hugging Face id (case does not matter), the path of a config.json (or of
            its folder), a dict as in config.json, or an `LLM`.
        weight_dtype: store matrices in another format of `ELEMENT_BYTES`.
        kv_dtype: store the KV cache in another format of `KV_ELEMENT_BYTES`.

    Raises:
        InputError: no such model or file, or a configuration that is not understood.

    Example:
        >>> load("Qwen/Qwen3-4B").n_param
        4022468096
    """
    model = _load(what)
    if weight_dtype is not None:
        _check("weight_dtype", weight_dtype, ELEMENT_BYTES)
        parts = ("attention_dtype", "matrix_dtype", "expert_dtype")
        model = dataclasses.replace(model, **dict.fromkeys(parts, weight_dtype))
    if kv_dtype is not None:
        _check("kv_dtype", kv_dtype, KV_ELEMENT_BYTES)
        model = dataclasses.replace(model, kv_dtype=kv_dtype)
    return model


def layer_table(what: Any) -> LayerTable:
    """The layer table of anything that `load` takes, or the table itself."""
    return what if isinstance(what, LayerTable) else table(load(what))


def names() -> list[str]:
    """Names in the zoo, in alphabetical order."""
    files = [p.name for p in _folder().iterdir()]
    return sorted(n.removesuffix(".toml") for n in files if n.endswith(".toml"))


def published(name: str) -> dict[str, Any]:
    """What was published of a zoo model: label, exact count where known, sources, confidence."""
    return {k: v for k, v in _entry(_known(name)).items() if k != "config"}


def _load(what: Any) -> LLM:
    if isinstance(what, LLM):
        return what
    if isinstance(what, dict):
        name = what.get("_name_or_path")
        return hf.from_config(what, name=name if name and isinstance(name, str) else "config")
    if not isinstance(what, str | os.PathLike):
        raise InputError("model", what, _EXPECTED)
    text = os.fspath(what)
    path = Path(text)
    if text.endswith(".json") or _is_file(path):
        return hf.read(path)
    if _is_file(path / "config.json"):
        return hf.read(path / "config.json")
    name = _known(text)
    entry = _entry(name)
    return hf.from_config(json.loads(entry["config"]), name=name, source=entry["sources"][0])


def _known(name: str) -> str:
    folded = name.lower()
    if folded in names():
        return folded
    ids = _ids()
    if folded in ids:
        return ids[folded]
    raise InputError("model", name, _EXPECTED, known=names())


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # longer than any name of a file, or with a null in it
        return False


def _check(field: str, value: str, known: dict[str, float]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InputError(field, value, "one of " + ", ".join(known), known=known)


def _folder():
    return resources.files("jaxmem.llm") / "zoo"


@functools.cache
def _entry(name: str) -> dict[str, Any]:
    return tomllib.loads((_folder() / f"{name}.toml").read_text(encoding="utf-8"))


@functools.cache
def _ids() -> dict[str, str]:
    """Zoo name by Hugging Face id, from the first line of each file: whole files are slow."""
    ids = {}
    for name in names():
        with (_folder() / f"{name}.toml").open(encoding="utf-8") as file:
            ids[tomllib.loads(file.readline())["id"].lower()] = name
    return ids
