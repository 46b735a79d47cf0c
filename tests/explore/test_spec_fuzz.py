"""Fuzz: a study in TOML is read, or refused in one line that names the file."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxmem
from jaxmem.core.errors import InputError
from jaxmem.explore import space, spec

SWEEPS = sorted((Path(jaxmem.__file__).parents[1] / "sweeps").rglob("*.toml"))
WORDS = [
    "inf", "nan", "-1", "0", "1e400", "1e9", "true", '"', "[", "]", "[[]]", "{}", "=", "\n", ".",
    '"pim"', '"hbf"', "between", "logspace", "log = true", "[search]", "[space]", "policy",
    "workload.batch", "10000000000000000000000", "\0", "\x1b", "#", '"8xCSI"', "[1, 2, 3]",
]  # fmt: skip


def survives(path: Path) -> bool:
    """Whether it is a study; anything but a study or one clear line is an error."""
    try:
        study = spec.read(path)
        space.bind(study.design, study.workload, study.space)
    except InputError as error:
        text = str(error)
        assert text.isprintable()
        assert ": expected " in text
        return False
    return True


def test_mutations_of_real_studies(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "study.toml"
    passed = 0
    for i in range(200):
        text = SWEEPS[i % len(SWEEPS)].read_text()
        for _ in range(rng.choice([1, 1, 2, 6])):
            at = rng.randrange(len(text))
            to = at + rng.choice([0, 0, 1, 5, 40])
            text = text[:at] + rng.choice([*WORDS, text[at : at + 30]]) + text[to:]
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        passed += survives(path)
    assert 5 < passed < 190  # neither all broken nor all ignored


BASE = {
    "pim": 'system = "pim"\ndesign = {device = "aim-gddr6-16gib", llm = "llama3-8b"}\n',
    "hbf": 'system = "hbf"\ndesign = {device = "8xCSI", llm = "qwen3-235b-a22b"}\n',
}


VALUE = st.recursive(
    st.booleans() | st.integers() | st.floats() | st.sampled_from(["pim", "hbf", "patton", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["between", "linspace", "logspace", "log", "a"]), inner)
    ),
    max_leaves=6,
)
PATH = st.sampled_from(
    [
        "ch_per_head",
        "n_o1p2",
        "policy",
        "llm",
        "sram_bytes",
        "workload.batch",
        "workload.slo_s",
        "x",
    ]
)
NUMBERS = st.lists(st.integers(1, 9) | st.floats(), max_size=3)
SPACE = st.dictionaries(
    PATH,
    st.lists(st.integers(1, 9) | st.floats(), max_size=3)
    | st.dictionaries(
        st.sampled_from([*spec.RANGES, "log"]),
        st.lists(st.integers(1, 9) | st.floats(), max_size=3),
    )
    | VALUE,
    max_size=3,
)
REST = st.dictionaries(st.sampled_from(spec.KEYS[2:]), VALUE, max_size=2)
SEARCH = st.dictionaries(st.sampled_from(spec.SEARCH_KEYS), VALUE, max_size=3)


@settings(max_examples=50)
@given(system=st.sampled_from(["pim", "hbf"]), space=SPACE, search=SEARCH, rest=REST)
def test_any_values_of_known_keys(tmp_path_factory, system, space, search, rest):
    path = tmp_path_factory.mktemp("study") / "study.toml"
    table = {"space": {f'"{k}"': v for k, v in space.items()}, "search": search} | rest
    path.write_text(BASE[system] + "".join(f"{k} = {toml(v)}\n" for k, v in table.items()))
    survives(path)


def toml(value) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


@pytest.mark.parametrize("numbers", ["[1, 2, inf]", "[1, inf, 3]", "[nan, 2, 3]", "[1, 2, 1e400]"])
@pytest.mark.parametrize("kind", ["linspace", "logspace"])
def test_infinite_spaces_are_refused(tmp_path, kind, numbers):
    path = tmp_path / "study.toml"
    path.write_text(BASE["pim"] + f'[space]\n"workload.batch" = {{{kind} = {numbers}}}\n')
    with pytest.raises(InputError, match="batch"):
        spec.read(path)
