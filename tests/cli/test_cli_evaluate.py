"""The contract of the command line (DESIGN section 4), in this process and in real ones."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jaxmem import devices, llm
from jaxmem.cli import main as cli
from jaxmem.core.errors import nearest

JAX_NAMES = (
    "JAX_COMPILATION_CACHE_DIR",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES",
)
NOISE = (
    "Traceback",
    "np.",
    "array(",
    "float64",
    "InputError",
    "<class",
    "<function",
    "\x1b",
)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Runs `jaxmem ARGS` here: (exit status, stdout, stderr)."""
    for name in JAX_NAMES:  # set, so that the command leaves the tests' own alone
        default = str(tmp_path / "cache") if name.endswith("DIR") else "0"
        monkeypatch.setenv(name, os.environ.get(name, default))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["jaxmem", *map(str, args)])
        capsys.readouterr()
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code
        out, err = capsys.readouterr()
        return status, out, err

    return call


def settings(**values):
    return [f"--set={path.replace('__', '.')}={value}" for path, value in values.items()]


def metrics(run, *args):
    status, out, err = run("evaluate", *args, "--json")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 1
    return json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def refused(run, *args):
    """The one line that bad input gets."""
    status, out, err = run(*args)
    assert status == 2, (status, out, err)
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("error: ")
    assert not [noise for noise in NOISE if noise in lines[0]], lines[0]
    return lines[0]


# ---------------------------------------------------------------- what works


def test_no_argument_prints_help(run):
    status, out, err = run()
    assert (status, err) == (0, "")
    assert all(f"  {name} " in out for name in cli.COMMANDS)
    assert (status, out) == run("--help")[:2]


def _leaves():
    """Every command that does something: those of a group stand for it."""
    for name in cli.COMMANDS:
        command = cli.group.get_command(click.Context(cli.group), name)
        inner = command.commands if isinstance(command, click.Group) else {None: command}
        yield from ([name] if part is None else [name, part] for part in inner)


@pytest.mark.parametrize("command", list(_leaves()), ids=" ".join)
def test_every_command_has_help_and_json(run, command):
    status, out, _ = run(*command, "--help")
    assert status == 0
    assert "--json" in out
    assert max(map(len, out.splitlines())) <= 80


def test_version(run):
    assert run("--version")[1].startswith("jaxmem, version ")


def test_jax_is_set_up_but_never_overruled(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for name in JAX_NAMES[1:]:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(name, "kept")
    monkeypatch.setenv(JAX_NAMES[0], "gone")
    monkeypatch.delenv(JAX_NAMES[0])
    cli._set_jax_up()
    assert os.environ[JAX_NAMES[0]] == str(tmp_path / "jaxmem" / "xla")
    assert os.environ[JAX_NAMES[1]] == "kept"
    os.environ.pop(JAX_NAMES[0])


ANCHOR = settings(workload__batch=32, workload__context_tokens=2048, expected_run_blocks=64)


def test_pim_anchor(run):
    """592,896 cycles of 0.5 ns a layer (DESIGN section 6), 32 layers."""
    m = metrics(run, "pim", "--model", "llama3-8b", *ANCHOR)
    assert m["parts"]["qk"] + m["parts"]["sv"] == pytest.approx(592_896 * 32 * 0.5e-9, rel=1e-12)
    assert (m["feasible"], m["limit"], m["hit_rate"]) == (True, "none", None)


def test_hbf_anchor_is_bound_by_capacity(run):
    long = settings(workload__input_tokens=15000, workload__output_tokens=6000)
    m = metrics(run, "hbf", "--model", "llama3.1-405b", "--device", "8xH200", *long)
    assert m["batch"] in (29, 30)
    assert m["limit"] == "capacity"
    m = metrics(
        run, "hbf", "--model", "llama3.1-405b", "--device", "8xCSI", *long,
        *settings(workload__slo_s=0.05),
    )  # fmt: skip
    assert m["limit"] == "slo"
    assert m["latency_s"] <= 0.05


def test_an_infeasible_point_is_null_and_says_why(run):
    bad = ["--device", "8xH200", *settings(workload__slo_s="1e-6")]
    m = metrics(run, "hbf", *bad)
    assert (m["feasible"], m["limit"], m["latency_s"]) == (False, "slo", None)
    assert set(m["parts"].values()) == {None}
    status, out, _ = run("evaluate", "hbf", *bad)
    assert status == 0
    assert out.startswith("infeasible (slo): ")


def test_alias(run):
    by_alias = metrics(run, "pim", *settings(n_o1p2=8))
    assert by_alias == metrics(run, "pim", *settings(policy__own_blocks=8))
    assert by_alias != metrics(run, "pim")


def test_settings_of_every_kind(run):
    whole = metrics(run, "hbf", *settings(workload__slo_s=0.1))
    half = metrics(run, "hbf", *settings(workload__slo_s=0.1, device__n_stack=3))
    assert half["area_mm2"] == pytest.approx(whole["area_mm2"] / 2)
    named = metrics(run, "hbf", *settings(workload__slo_s=0.1, device="8xH200"))
    assert named == metrics(run, "hbf", "--device", "8xh200", *settings(workload__slo_s=0.1))
    assert named["area_mm2"] == 0.0
    touched = metrics(run, "hbf", *settings(workload__batch=8, expert_read="touched"))
    every = metrics(run, "hbf", *settings(workload__batch=8, expert_read="ALL"))
    assert touched["parts"]["expert"] < every["parts"]["expert"]
    small = metrics(run, "pim", *settings(llm="qwen3-4b"))
    assert small == metrics(run, "pim", "--model", "qwen3-4b")
    mixed = metrics(run, "pim", *settings(policy__write_issue="mixed_decoder"))
    assert mixed["parts"]["commit"] != small["parts"]["commit"]


def test_the_last_of_two_settings_holds(run):
    last = metrics(run, "pim", "--set", "workload.batch=4", "--set", "workload.batch = 2")
    assert last["batch"] == 2


# ---------------------------------------------------------------- what is refused

BAD = [
    (["evalute"], ["'evalute'", "did you mean 'evaluate'?"]),
    ([""], ["command", "''"]),
    (["--jsn"], ["--jsn"]),
    (["evaluate"], ["Missing argument", "pim, hbf"]),
    (["evaluate", "gpu"], ["'gpu'", "'pim', 'hbf'"]),
    (["evaluate", ""], ["''", "'pim', 'hbf'"]),
    (["evaluate", "pim", "hbf"], ["hbf"]),
    (["evaluate", "pim", "--modl", "x"], ["--modl", "'--model'"]),
    (["evaluate", "pim", "--set"], ["--set", "requires an argument"]),
    (["evaluate", "pim", "--model", "llama3-8c"], ["'llama3-8c'", "did you mean 'llama3-8b'?"]),
    (["evaluate", "pim", "--model", ""], ["model", "''"]),
    (["evaluate", "pim", "--device", ""], ["device", "''"]),
    (["evaluate", "pim", "--policy", ""], ["policy", "''"]),
    (["evaluate", "hbf", "--policy", ""], ["--policy", "hbf has none"]),
    (["evaluate", "hbf", "--policy", "patton"], ["--policy", "hbf has none"]),
    (["evaluate", "pim", "--policy", "paton"], ["'paton'", "did you mean 'patton'?"]),
    (["evaluate", "hbf", "--device", "8xH20"], ["'8xH20'", "did you mean '8xH200'?"]),
    (["evaluate", "hbf", "--device", "aim-gddr6-16gib"], ["kind node", "'aim-gddr6-16gib'"]),
    (["evaluate", "pim", "--model", "/nowhere/config.json"], ["/nowhere/config.json"]),
    (["evaluate", "pim", "--model", "/"], ["'/'"]),
    (["evaluate", "pim", "--device", "/nowhere.toml"], ["/nowhere.toml"]),
    (["evaluate", "pim", "--device", "/"], ["'/'"]),
    (["models", "llama3-8c"], ["did you mean 'llama3-8b'?"]),
    (["models", "-x"], ["-x"]),
    (["models", "a", "b"], ["b"]),
    (["devices", "h20"], ["did you mean 'h200'?"]),
    (["devices", ""], ["device"]),
    (["policies", "paton"], ["did you mean 'patton'?"]),
    (["policies", ""], ["policy"]),
]  # fmt: skip


@pytest.mark.parametrize(("args", "says"), BAD, ids=lambda x: " ".join(x)[:40])
def test_bad_input_is_one_line(run, args, says):
    line = refused(run, *args)
    assert all(text in line for text in says), line


PIM, HBF = ["evaluate", "pim"], ["evaluate", "hbf"]
BAD_SET = [
    (PIM, "foo", ["'foo'", "PATH=VALUE"]),
    (PIM, "", ["PATH=VALUE"]),
    (PIM, "=1", ["PATH=VALUE"]),
    (PIM, "workload.batch=", ["PATH=VALUE"]),
    (PIM, "workload.batch=-1", ["workload.batch", "-1", ">= 1", "requests"]),
    (PIM, "workload.batch=1.5", ["workload.batch", "whole number", "1.5"]),
    (PIM, "workload.batch=many", ["workload.batch", "'many'"]),
    (PIM, "workload.batch=nan", ["workload.batch", "nan"]),
    (PIM, "workload.batch=1e400", ["workload.batch"]),
    (HBF, "workload.slo_s=0", ["workload.slo_s", "> 0 s"]),
    (PIM, "workload.bacth=1", ["'workload.bacth'", "did you mean 'workload.batch'?"]),
    (PIM, "bacth=1", ["'bacth'", "workload.batch"]),
    (PIM, "batch=1", ["'batch'", "workload.batch"]),
    (PIM, "context_tokens=1", ["workload.context_tokens"]),
    (HBF, "slo=1", ["workload.slo_s"]),
    (PIM, "ch_per_hed=4", ["'ch_per_hed'", "did you mean 'ch_per_head'?"]),
    (PIM, "own_block=4", ["'own_block'", "policy.own_blocks"]),
    (PIM, "n_o1p3=4", ["'n_o1p3'", "policy.own_blocks"]),
    (HBF, "device.n_stak=4", ["did you mean 'device.n_stack'?"]),
    (HBF, "n_stak=4", ["device.n_stack"]),
    (PIM, "ch_per_head=four", ["ch_per_head", "'four'"]),
    (PIM, "ch_per_head=2000", ["ch_per_head", "<= 1024"]),
    (PIM, "policy.write_issue=mixed", ["policy.write_issue", "'mixed_decoder'?"]),
    (HBF, "is_replicated=2", ["is_replicated", "false, true"]),
    (PIM, "llm.n_layer=3", ["llm.n_layer", "each kind of layer"]),
    (HBF, "llm.n_expert=3", ["llm.n_expert", "each kind of layer"]),
    (PIM, "llm=llama3-8c", ["did you mean 'llama3-8b'?"]),
    (PIM, "policy=paton", ["did you mean 'patton'?"]),
    (HBF, "device=8xH20", ["did you mean '8xH200'?"]),
    (HBF, "device=h200", ["kind node"]),
    (HBF, "parallel=8", ["'parallel'", "parallel.tp"]),
    (PIM, "device.timing=5", ["'device.timing'", "device.timing."]),
    (PIM, "workload=5", ["'workload'"]),
    (HBF, "policy.own_blocks=4", ["'policy.own_blocks'"]),
]  # fmt: skip


@pytest.mark.parametrize(("command", "text", "says"), BAD_SET, ids=lambda x: str(x)[:30])
def test_bad_setting_is_one_line(run, command, text, says):
    line = refused(run, *command, "--set", text)
    assert all(part in line for part in says), line


def test_fields_of_two_workloads(run):
    line = refused(run, *PIM, *settings(workload__batch=1, workload__slo_s=1))
    assert "workload.batch, workload.slo_s" in line


def test_every_field_that_is_hinted_at_exists(run):
    """The name after `did you mean` can be set as it stands."""
    for text in ("bacth", "own_blok", "n_o1p", "gb_peice_bursts", "max_contxt_tokens"):
        line = refused(run, *PIM, "--set", f"{text}=1")
        hint = re.search(r"(?:did you mean '|such as )([\w.]+)", line)
        assert hint, line
        assert run(*PIM, "--set", f"{hint[1]}=1", "--json")[0] == 0


def config_file(folder: Path, **changes) -> Path:
    config = {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "intermediate_size": 14336, "torch_dtype": "bfloat16",
    }  # fmt: skip
    path = folder / "config.json"
    path.write_text(json.dumps(config | changes, indent=1))
    return path


def test_a_config_of_ones_own(run, tmp_path):
    path = config_file(tmp_path)
    assert metrics(run, "pim", "--model", path) == metrics(run, "pim")
    assert metrics(run, "pim", "--model", tmp_path) == metrics(run, "pim")


def test_malformed_config(run, tmp_path):
    path = config_file(tmp_path)
    path.write_text(path.read_text().replace('"hidden_size": 4096,', '"hidden_size": 4096'))
    line = refused(run, *PIM, "--model", path)
    assert f"{path} line 4" in line


def test_config_with_a_bad_value(run, tmp_path):
    line = refused(run, *PIM, "--model", config_file(tmp_path, num_hidden_layers=-2))
    assert all(text in line for text in ("num_hidden_layers", "-2", "config.json")), line
    line = refused(run, *PIM, "--model", config_file(tmp_path, model_type="lama"))
    assert "did you mean 'llama'?" in line


def device_file(folder: Path, unit: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(
        'name = "mine"\nbase = "8xH200"\n\n'
        f'n_stack = {{value = 2, unit = "1", source = "me"}}\n'
        f"[gpu]\nhbm_bytes = {{value = 100, unit = {unit!r}, source = 'me'}}\n"
    )
    return path


def test_a_device_of_ones_own(run, tmp_path):
    m = metrics(run, "hbf", "--device", device_file(tmp_path, "GB"))
    assert m["area_mm2"] > 0


def test_wrong_unit_in_a_device(run, tmp_path):
    path = device_file(tmp_path, "GW")
    line = refused(run, *HBF, "--device", path)
    assert f"{path}:6" in line
    assert "'GW'" in line
    assert refused(run, "devices", path) == line


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_unreadable_files(run, tmp_path):
    for path, option in (
        (config_file(tmp_path), "--model"),
        (device_file(tmp_path, "GB"), "--device"),
    ):
        path.chmod(0)
        assert str(path) in refused(run, *HBF, option, path)


def test_binary_files(run, tmp_path):
    for name, option in (("config.json", "--model"), ("d.toml", "--device")):
        path = tmp_path / name
        path.write_bytes(bytes(range(256)))
        assert str(path) in refused(run, *HBF, option, path)


def test_an_error_that_spans_lines_is_folded(run):
    refused(run, *PIM, "--set", "ch_per_head=1\n2\r\n3")
    refused(run, *PIM, "--model", "a\nb\x1b[31m")


# ---------------------------------------------------------------- what is listed


def test_models(run):
    rows = json.loads(run("models", "--json")[1])["models"]
    assert [row["name"] for row in rows] == llm.names()
    one = json.loads(run("models", "deepseek-v3", "--json")[1])
    assert one in rows
    assert one["kv_bytes_token"] == 70272
    assert one["n_param"] == 671_026_419_200
    assert one["source"]


def test_devices(run):
    rows = json.loads(run("devices", "--json")[1])["devices"]
    assert {row["name"] for row in rows} == set(devices.names())
    fields = json.loads(run("devices", "8xCSI", "--json")[1])["fields"]
    assert fields["n_stack"]["value"] == 6
    assert all(row["source"] and row["unit"] for row in fields.values())


def test_policies(run):
    rows = json.loads(run("policies", "--json")[1])["policies"]
    assert "patton" in {row["name"] for row in rows}
    fields = json.loads(run("policies", "patton", "--json")[1])["fields"]
    assert fields["own_blocks"]["value"] == 16
    assert fields["v_write"]["value"] == "commit_zone"


SCREENS = [
    ["models"], ["models", "qwen3-coder-480b-a35b"], ["devices"], ["policies"],
    ["policies", "patton"], ["devices", "8xCSI"], ["devices", "aim-gddr6-16gib"],
    ["evaluate", "pim", *ANCHOR],
    ["evaluate", "hbf", "--model", "llama3.1-405b", *settings(workload__slo_s=0.1)],
]  # fmt: skip


@pytest.mark.parametrize("args", SCREENS, ids=lambda args: " ".join(args)[:30])
def test_human_output_fits_a_terminal(run, args):
    """80 columns; no number, name or unit is broken over two lines."""
    status, narrow, err = run(*args)
    assert (status, err) == (0, "")
    assert max(map(len, narrow.splitlines())) <= 80
    assert not re.search(r"\bnan\b|np\.", narrow.replace("NaN", ""))
    columns = [line.split("  ")[0] for line in narrow.splitlines()]
    names = {c for c in columns if re.fullmatch(r"[a-z_0-9.]+", c)}
    if args[0] == "evaluate":
        assert {"latency_s", "capacity_tokens", "tokens_per_s_per_gpu"} <= names
        assert "Time of a decode step" in narrow
        assert "Energy of a decode step" in narrow
    if args == ["devices", "8xCSI"]:
        fields = json.loads(run(*args, "--json")[1])["fields"]
        assert set(fields) <= names


@pytest.mark.parametrize("name", [*devices.names("pim"), "8xB200-H3"])
def test_every_device_prints(run, name):
    """Also those whose energies are not known."""
    system = "pim" if name in devices.names("pim") else "hbf"
    model = "llama3-8b" if system == "pim" else "qwen3-30b-a3b"
    status, out, err = run("evaluate", system, "--device", name, "--model", model)
    assert (status, err) == (0, "")
    assert "nan" not in out.replace("NaN", "")


# ---------------------------------------------------------------- real processes

JAXMEM = str(Path(sys.executable).with_name("jaxmem"))


def process(*command, **environment):
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_process_prints_help():
    status, out, err = process(JAXMEM)
    assert (status, err) == (0, "")
    assert "evaluate" in out
    assert process(sys.executable, "-m", "jaxmem")[:2] == (0, out)


def test_a_process_refuses_in_one_line():
    status, out, err = process(JAXMEM, "evaluate", "pim", "--set", "workload.bacth=1")
    assert (status, out) == (2, "")
    assert err == (
        "error: --set: expected a field, got 'workload.bacth'; did you mean 'workload.batch'?\n"
    )


def test_a_process_gives_what_this_one_gives(run, tmp_path):
    args = ["pim", *settings(workload__batch=32)]
    status, out, err = process(JAXMEM, "evaluate", *args, "--json", XDG_CACHE_HOME=str(tmp_path))
    assert (status, err) == (0, "")
    assert json.loads(out) == metrics(run, *args)


def test_a_closed_pipe_is_no_error():
    _, out, err = process("bash", "-c", f"{JAXMEM} models | head -1")
    assert (len(out.splitlines()), err) == (1, "")


def test_nearest_is_what_the_errors_use():
    assert nearest("evalute", cli.COMMANDS) == "evaluate"
