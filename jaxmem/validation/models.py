"""Body `models`: parameter counts of public models, published against computed."""

import json
from collections.abc import Iterator
from pathlib import Path

from jaxmem import llm
from jaxmem.core.errors import InputError
from jaxmem.validation.body import Body, Case


def check(path: Path) -> Iterator[Case]:
    """Counts of every model in a file of configurations, by architecture.

    Args:
        path: JSON, `{"models": {name: {"config": {...}, "computed": {"total": n}}}}`.

    Raises:
        InputError: not such a file.
    """
    try:
        models = json.loads(path.read_text())["models"]
        rows = [(name, m["config"], m["computed"]["total"]) for name, m in models.items()]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        rule = 'JSON of the form {"models": {name: {"config": ..., "computed": {"total": ...}}}}'
        raise InputError("file", str(path), rule) from None
    for name, config, total in rows:
        n_param = llm.load(config).n_param
        family = str(config.get("model_type", "unknown"))
        yield Case(name, family, n_param == total, abs(n_param / total - 1))


BODIES = (
    Body(
        "models",
        "parameter counts of public models, counted tensor by tensor from their configurations",
        "golden/model_configs.json",
        check,
    ),
)
