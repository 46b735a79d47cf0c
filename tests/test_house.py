"""The house keeps its floors: a module imports from its own room or from a lower floor."""

import ast
from pathlib import Path

import pytest

import jaxmem

ROOT = Path(jaxmem.__file__).parent
FLOOR = {
    "core": 1, "llm": 2, "devices": 2, "serving": 3, "xpu": 3, "pim": 4, "hbf": 4,
    "explore": 5, "claims": 6, "validation": 6, "report": 6, "cli": 7,
}  # fmt: skip
MODULES = sorted(ROOT.rglob("*.py"))


def imports(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{a.name}" for a in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_floors(path):
    parts = path.relative_to(ROOT).parts
    if len(parts) == 1:
        return
    room = parts[0]
    assert room in FLOOR
    for name in imports(path):
        target = name.split(".")
        if target[0] != "jaxmem" or len(target) < 2:
            continue
        other = target[1]
        if other not in FLOOR:  # the public API, for the command line alone
            assert FLOOR[room] == 7, f"{room} imports the public API"
            continue
        assert other == room or FLOOR[other] < FLOOR[room], f"{room} imports {other}"


def test_floors_are_checked():
    source = "from jaxmem.cli import main"
    assert next(iter(imports_of(source))) == "jaxmem.cli.main"


def imports_of(source: str):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{a.name}" for a in node.names)


def test_models_do_not_print():
    for path in MODULES:
        room = path.relative_to(ROOT).parts[0]
        if FLOOR.get(room, 7) <= 5:
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            names = {c.func.id for c in calls if isinstance(c.func, ast.Name)}
            assert not names & {"print", "breakpoint"}, path
