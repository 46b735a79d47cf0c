"""The catalog's files: what they may say, and the one line that comes out when they are wrong."""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxmem.core.errors import InputError
from jaxmem.devices import catalog

SHIPPED = sorted((Path(catalog.__file__).parent / "catalog").glob("*.toml"))
LINK = """name = "mine"
kind = "link"
summary = "a link"

bytes_per_s = {value = 100, unit = "GB/s", source = "me"}
latency_s = {value = 2, unit = "us", source = "me"}
efficiency = {value = 0.9, source = "me"}
"""


@pytest.fixture
def user(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(text, name="mine.toml"):
        Path(name).write_text(text, encoding="utf-8")
        return name

    return write


def message(what, **kw):
    with pytest.raises(InputError) as error:
        catalog.load(what, **kw)
    text = str(error.value)
    assert "\n" not in text
    return text


def test_user_file(user):
    x = catalog.load(user(LINK))
    assert (x.name, float(x.bytes_per_s), float(x.latency_s)) == ("mine", 100e9, 2e-6)
    assert catalog.load(Path("mine.toml")).name == "mine"
    row = catalog.rows("mine.toml")[0]
    assert (row.value, row.unit, row.source, row.confidence) == (100, "GB/s", "me", "assumed")
    assert catalog.summary("mine.toml") == "a link"


def test_base_parts_and_sub_tables(user):
    user(LINK)
    name = user(
        """name = "big"
base = "8xCSI"
scale_up = "mine.toml"
n_gpu = {value = 4, source = "me"}
[gpu]
hbm_bytes = {value = 1, unit = "TB", source = "me"}
[flash]
base = "hbf-h3"
n_die = {value = 8, source = "me"}
""",
        "node.toml",
    )
    x = catalog.load(name)
    assert x.scale_up.name == "mine"
    assert (float(x.gpu.hbm_bytes), x.gpu.name) == (1e12, "h200 (modified)")
    assert (float(x.flash.read_s), float(x.flash.n_die)) == (20e-6, 8.0)
    assert (float(x.n_gpu), float(x.n_stack)) == (4.0, 6.0)
    assert catalog.load("8xCSI").gpu.name == "h200"  # the base is untouched
    pim = user(
        'name = "p"\nbase = "hbm-pim"\ntiming = "aim-gddr6-16gib"\n'
        '[energy]\nread_burst_j = {value = 1, unit = "nJ", source = "me"}\n',
        "pim.toml",
    )
    x = catalog.load(pim)
    assert (float(x.timing.n_rc), float(x.energy.read_burst_j)) == (89.0, 1e-9)


def test_any_case_records_and_kinds():
    x = catalog.load("8XCSI")
    assert x.name == catalog.load("8xcsi").name == "8xCSI"
    assert catalog.load(x) is x
    assert catalog.kind_of(x) == "node"
    assert "8xCSI" in catalog.names("node")
    assert "kind node" in message("h200", kind="node")
    assert "kind node" in message(catalog.load("h200"), kind="node")


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("bytes_per_s =", "byte_per_s =", ["toml:5: field", "did you mean 'bytes_per_s'"]),
        ('latency_s = {value = 2, unit = "us", source = "me"}', "", ["mine.toml: latency_s"]),
        ("value = 100", 'value = "100"', ["mine.toml:5", "bytes_per_s", "'100'", "number"]),
        ("value = 100", "value = true", ["mine.toml:5", "True"]),
        ("value = 100", "value = -3", ["mine.toml:5", "'-3 GB/s'", "> 0"]),
        ("value = 100", "value = nan", ["mine.toml:5", "nan"]),
        ("value = 100", "value = inf", ["mine.toml:5", "inf"]),
        ("value = 100", "value = []", ["mine.toml:5", "[]"]),
        ("value = 100, ", "", ["mine.toml:5", "None"]),
        ('"GB/s"', '"GB"', ["mine.toml:5", "bytes_per_s.unit", "'GB'", "did you mean"]),
        ('"GB/s"', '"parsec"', ["mine.toml:5", "'parsec'"]),
        ('"GB/s"', "7", ["mine.toml:5", "bytes_per_s.unit", "7"]),
        ('unit = "us", ', "", ["mine.toml:6", "latency_s.unit"]),
        ('unit = "us", source = "me"', 'unit = "us"', ["mine.toml:6", "latency_s.source"]),
        ("source", "sauce", ["mine.toml:5", "sauce", "did you mean 'source'"]),
        ('0.9, source = "me"', '0.9, source = "me", confidence = "papr"', ["toml:7", "'paper'"]),
        ('0.9, source = "me"', '0.9, source = "me", confidence = "fitted"', ["toml:7", "note"]),
        (
            '0.9, source = "me"',
            '0.9, source = "me", confidence = "fitted", note = "to x"',
            ["mine.toml:7", "efficiency.unfitted", "None"],
        ),
        ('0.9, source = "me"', '0.9, source = "me", date = 7', ["mine.toml:7", "efficiency.date"]),
        ("{value = 0.9, source = \"me\"}", "0.9", ["mine.toml:7", "efficiency", "inline table"]),
        ('kind = "link"', 'kind = "lnk"', ["mine.toml:2", "kind", "did you mean 'link'"]),
        ('kind = "link"', "kind = 3", ["mine.toml:2", "kind", "3"]),
        ('kind = "link"', "", ["mine.toml", "kind"]),
        ('kind = "link"', 'kind = "link"\nbase = "h200"', ["mine.toml:3", "kind link", "'h200'"]),
        ('kind = "link"', 'base = "nvlnk4"', ["mine.toml:2", "did you mean 'nvlink4'"]),
        ('kind = "link"', 'base = "./mine.toml"', ["mine.toml:2", "base", "itself"]),
        ('kind = "link"', "base = 4", ["mine.toml:2", "base", "4"]),
        ('name = "mine"', 'name = ""', ["mine.toml:1", "name"]),
        ('name = "mine"', "name = mine", ["mine.toml:1", "valid TOML"]),
        ("efficiency", "efficiency =", ["mine.toml:7", "valid TOML"]),
    ],
)  # fmt: skip
def test_errors_say_where_what_and_why(user, old, new, parts):
    assert old in LINK
    text = message(user(LINK.replace(old, new)))
    for part in parts:
        assert part in text


def test_errors_in_sub_tables_and_parts(user):
    head = 'name = "p"\nbase = "aim-gddr6-16gib"\n'
    bad = head + '[timing]\nn_rc = {value = 8.5, unit = "cycles", source = "me"}\n'
    text = message(user(bad))
    assert "mine.toml:4: timing.n_rc" in text
    assert "whole number" in text
    assert "did you mean 'n_rc'" in message(user(head + "[timing]\nn_rcc = 1\n"))
    assert "did you mean 'a100-80gb-pcie'" in message(user(head + 'host = "a100-80gb-pci"\n'))
    assert "kind gpu" in message(user(head + 'host = "nvlink4"\n'))
    assert "mine.toml:3: host" in message(user(head + "host = 3\n"))
    assert "timing table" in message(user(head + 'timing = "h200"\n'))
    new = 'name = "n"\nkind = "node"\n[gpu]\n[flash]\n'
    assert "gpu.bf16_flops" in message(user(new))


def test_base_cycles(user):
    user('name = "a"\nbase = "b.toml"\n', "a.toml")
    user('name = "b"\nbase = "c.toml"\n', "b.toml")
    user('name = "c"\nbase = "a.toml"\n', "c.toml")
    assert "itself" in message("a.toml")
    for i in range(40):
        user(f'name = "d"\nbase = "d{i + 1}.toml"\n', f"d{i}.toml")
    assert "at most 16" in message("d0.toml")


@pytest.mark.parametrize(
    "what", ["8xCSX", "no.toml", "", "a\0.toml", "./", "/", None, 3, b"x", object(), "\ud800.toml"]
)
def test_no_such_device(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message(what)
    assert "did you mean '8xCSI'" in message("8xCSX") or "did you mean '8xC" in message("8xCSX")


@pytest.mark.parametrize(
    "raw",
    [
        b"\xff\xfe",
        b"a" * (2**20 + 1),
        b"name = " + b"[" * 100_000,
        b".".join([b"a"] * 50_000) + b" = 1",
        b".".join([b"a"] * 2_000) + b" = 1",
        b"a" * 5000 + b" = 1",
        b"value = 0x" + b"f" * 10_000,
        b"value = " + b"9" * 10_000,
        LINK.replace("100", "9" * 400).encode(),
        LINK.replace("100", "1e999").encode(),
        b'name = "x"\nkind = "link"\nbytes_per_s = {value = 1e308, unit = "TB/s", source = "a"}',
        LINK.replace('"me"', '"' + "m" * 5000 + '"').encode(),
        b"name = 1979-05-27T07:32:00Z",
        b"",
    ],
    ids=lambda raw: raw[:8].hex(),
)
def test_hostile_bytes(tmp_path, raw):
    path = tmp_path / "x.toml"
    path.write_bytes(raw)
    assert len(message(str(path))) < 2000


def check(path, raw):
    path.write_bytes(raw)
    try:
        catalog.load(str(path))
    except InputError as error:
        text = str(error)
        assert "\n" not in text
        assert "x.toml" in text
    else:
        catalog.rows(str(path))


def test_mutations_of_shipped_files(tmp_path):
    rng = random.Random(0)
    path = tmp_path / "x.toml"
    for i in range(200):
        raw = bytearray(SHIPPED[i % len(SHIPPED)].read_bytes())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(raw))
            end = at + rng.randint(1, 12)
            change = rng.choice(("flip", "drop", "copy", "move"))
            if change == "flip":
                raw[at] = rng.randrange(256)
            elif change == "drop":
                del raw[at:end]
            elif change == "copy":
                raw[at:at] = raw[at:end]
            else:
                other = rng.randrange(len(raw))
                raw[other:other] = raw[at:end]
        check(path, bytes(raw))


SCALAR = st.one_of(
    st.integers(), st.floats().map(repr), st.booleans().map(lambda b: str(b).lower()),
    st.sampled_from(['"GB/s"', '"1"', '"paper"', '"fitted"', "nan", "[]", "{}", "2024-01-01"]),
)  # fmt: skip
KEY = st.sampled_from(["value", "unit", "source", "date", "confidence", "note", "unfitted", "x"])
FIELD = st.sampled_from(
    ["name", "kind", "base", "summary", "bytes_per_s", "latency_s", "gpu", "timing", "isa", "flash"]
)
INLINE = st.dictionaries(KEY, SCALAR, max_size=5).map(
    lambda d: "{" + ", ".join(f"{k} = {v}" for k, v in d.items()) + "}"
)
LINES = st.lists(
    st.one_of(
        st.tuples(FIELD, st.one_of(SCALAR, INLINE)).map(lambda p: f"{p[0]} = {p[1]}"),
        FIELD.map(lambda f: f"[{f}]"),
        st.sampled_from(['kind = "pim"', 'base = "8xCSI"', 'base = "x.toml"', 'name = "n"']),
    ),
    max_size=8,
)
FUZZ = settings(
    derandomize=True, deadline=None, max_examples=300, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip


@FUZZ
@given(lines=LINES)
def test_fuzz_lines(tmp_path, lines):
    check(tmp_path / "x.toml", "\n".join(lines).encode())


@FUZZ
@given(raw=st.binary(max_size=64))
def test_fuzz_bytes(tmp_path, raw):
    check(tmp_path / "x.toml", raw)


def test_shipped_files_are_lower_case_and_hold_no_paths():
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        assert path.name == path.name.lower()
        assert catalog.load(path.stem).name.lower() == path.stem
        assert "/home" not in text
        assert "http" not in text


def test_loading_reads_only_what_is_asked_for(monkeypatch):
    seen = []
    real = catalog.read

    def spy(path, **kw):
        seen.append(path.stem)
        return real(path, **kw)

    monkeypatch.setattr(catalog, "read", spy)
    catalog._shipped.cache_clear()
    catalog.load("h200")
    assert seen == ["h200"]
