"""Fuzz: whatever a configuration says, the answer is an `LLM` or one line."""

import json
import math
import random
import tomllib
from importlib import resources

from hypothesis import given, settings
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.llm import LLM, hf, load, names


def config_of(name: str) -> dict:
    text = (resources.files("jaxmem.llm") / "zoo" / f"{name}.toml").read_text(encoding="utf-8")
    return json.loads(tomllib.loads(text)["config"])


SCALAR = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
    | st.sampled_from(["llama", "fp8", "full_attention", "bfloat16", 10**400])
)  # fmt: skip
JSON = st.recursive(
    SCALAR,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=10,
)
KEYS = sorted({k for name in names() for k in config_of(name)})
TYPES = sorted([*hf.FAMILIES, *hf.COMPOSITE])

NEST = [[]]
for _ in range(600):
    NEST = [NEST]
CYCLE: list = []
CYCLE.append(CYCLE)
JUNK = [
    None, True, False, 0, 1, -1, 2, 3, 7, 1.0, 0.5, -0.0, 1e308, math.nan, math.inf, 10**19,
    10**400, 10**5000, "", "0", "4096", "\n", "\ud800", "x" * 10_000, [], [[]], [None], [0, 1],
    {}, {"a": {}}, {1: 2}, ["full_attention"], NEST, CYCLE, (1, 2), b"bytes", {3}, object(),
    2 + 1j, range(3),
]  # fmt: skip


def outcome(read) -> LLM | str:
    """The model that `read` returns, or the text of its refusal; nothing else may be raised."""
    try:
        return read()
    except InputError as error:
        return str(error)


def survives(config) -> bool:
    """Whether it is a model; anything but a model or one clear line is an error."""
    model = outcome(lambda: hf.from_config(config, name="fuzz", where="fuzz.json"))
    if isinstance(model, str):
        assert model.isprintable()
        assert ": expected " in model
        return False
    assert model.n_param >= model.n_param_active > 0
    assert model.kv_bytes(1000) >= 0
    assert math.isfinite(model.weight_bytes)
    return True


@settings(max_examples=60)
@given(JSON)
def test_any_json(value):
    survives(value)


@settings(max_examples=60)
@given(st.sampled_from(TYPES), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_values_of_known_keys(model_type, config):
    survives(config | {"model_type": model_type})


def short(config: dict) -> dict:
    """The configuration with 8 layers: the type checker of the tests makes more of them slow."""
    inner = config.get("text_config", config)
    inner["num_hidden_layers"] = 8
    if "layer_types" in inner:
        inner["layer_types"] = inner["layer_types"][:8]
    return config


def mutated(rng: random.Random, config: dict) -> dict:
    """A copy with one key dropped, spoilt, renamed, nested, copied or grown."""
    config = {
        k: dict(v) if k == "text_config" and type(v) is dict else v for k, v in config.items()
    }
    inner = config.get("text_config") if rng.random() < 0.9 else config
    inner = inner if isinstance(inner, dict) and inner else config
    key = rng.choice(list(inner))
    match rng.randrange(7):
        case 0:
            del inner[key]
        case 1 | 2:
            inner[key] = rng.choice(JUNK)
        case 3:
            inner[rng.choice(["num_", "", "moe_"]) + key + rng.choice(["", "_size", "s"])] = (
                inner.pop(key)
            )
        case 4:
            inner[key] = rng.choice([[inner[key]], {key: inner[key]}])
        case 5:
            inner[rng.choice(KEYS)] = inner[key]
        case 6:
            inner[rng.choice(JUNK[:20])] = inner[key]
    return config


def test_mutations_of_real_configurations(monkeypatch):
    monkeypatch.setattr(hf, "MAX_LAYERS", 128)  # thousands of layers take long to type-check
    rng = random.Random(0)
    configs = [short(config_of(name)) for name in names()]
    passed = 0
    for i in range(306):
        config = configs[i % len(configs)]
        for _ in range(rng.choice([1, 1, 2, 4])):
            config = mutated(rng, config)
        passed += survives(config)
    assert 30 < passed < 280  # neither all broken nor all ignored


def test_mutations_of_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(hf, "MAX_LAYERS", 128)
    rng = random.Random(1)
    path = tmp_path / "config.json"
    configs = [short(config_of(name)) for name in names()]
    passed = 0
    for i in range(136):
        data = bytearray(json.dumps(configs[i % 34]), "utf-8")
        for _ in range(rng.choice([1, 2, 8])):
            at = rng.randrange(len(data))
            match rng.randrange(5):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randrange(1, 9)]
                case 2:
                    data[at:at] = data[at : at + rng.randrange(1, 40)]
                case 3:
                    data[at:at] = rng.choice([b"9", b"-", b"[", b"}", b"1e9", b"\0", b'"', b"null"])
                case 4 if rng.random() < 0.2:
                    del data[at:]
        path.write_bytes(data)
        model = outcome(lambda: hf.read(path))
        if isinstance(model, str):
            assert model.isprintable()
            assert str(path) in model
        else:
            passed += 1
    assert passed > 10


def test_duplicate_keys_read_as_json_does(tmp_path):
    """Python's reader keeps the last."""
    path = tmp_path / "config.json"
    text = json.dumps(config_of("qwen3-4b"))
    path.write_text('{"vocab_size": 5, ' + text[1:])
    assert load(path).n_param == load("qwen3-4b").n_param
