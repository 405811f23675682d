import importlib.util
import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import click
import pytest
import typer
from typer.testing import CliRunner

from rose.cli import _harvest, app
from rose.events import BUCKETS, Device, DeviceSlice, Run
from rose.ledger.writer import LedgerWriter
from tests.test_config import MINIMAL

ROSE = str(Path(sys.executable).with_name("rose"))


def rose(*arguments):
    """Run the command in a process of its own, which is slow."""
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run([ROSE, *arguments], capture_output=True, text=True, check=False, timeout=240, env=environment)


def refused(*arguments):
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2, (arguments, done.stderr)
    assert "Traceback" not in done.stderr
    return done.stderr


def test_it_says_which_version_it_is():
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"{metadata.version('rose-serving')}\n")


def test_help_lists_every_command():
    done = rose("--help")
    assert done.returncode == 0
    for command in ("demo", "up", "config", "doctor", "report", "sql", "ledger", "price", "dashboard"):
        assert command in done.stdout


def test_help_drops_no_word_in_brackets():
    def helps(command: click.Command, *names: str):
        yield " ".join(names), CliRunner().invoke(app, [*names, "--help"]).output
        for name, inner in getattr(command, "commands", {}).items():
            yield from helps(inner, *names, name)

    shown = dict(helps(typer.main.get_command(app)))
    assert len(shown) > 40
    assert [name for name, text in shown.items() if "``" in text] == []


@pytest.mark.parametrize("command", [["report"], ["query", "device_time"]])
def test_empty_text_is_refused(command):
    for empty in (("--run", ""), ("--run=",)):
        assert "rose: --run is empty: give a value, or leave it out" in refused(*command, *empty)
    assert "the argument after `sql` is empty" in refused("sql", "")


def test_config_example_can_be_checked(tmp_path):
    (tmp_path / "fleet.toml").write_text(CliRunner().invoke(app, ["config"]).stdout)
    assert CliRunner().invoke(app, ["doctor", "--config", str(tmp_path / "fleet.toml")]).exit_code == 0


@pytest.mark.long
def test_doctor_looks_at_everything():
    done = rose("doctor", "--json")
    findings = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert {"Python", "CPU cores", "memory", "disk", "torch", "sglang", "NVML", "power"} <= set(findings)
    assert findings["power"]["status"] == "ok" or "not measured: " in findings["power"]["detail"]
    assert findings["SGLang with ROSE's hooks"]["status"] == "ok", findings["SGLang with ROSE's hooks"]
    for finding in findings.values():
        assert finding["status"] == "ok" or finding["remedy"]
    missing = any(finding["status"] == "missing" for finding in findings.values())
    assert done.returncode == (1 if missing else 0)


def on_core(core):
    return MINIMAL.replace("cores = [1]", f"cores = [{core}]")


@pytest.mark.parametrize(
    ("fleet", "named"),
    [
        (None, "fleet.toml"),
        ("device = 3", "device"),
        (on_core(999), "cores [999] are not available"),
        (on_core(0), "core 0 belongs to both"),
        (MINIMAL + "[traffic]\ntrace = 'missing.csv'", "missing.csv"),
        ("price_book = 'missing.toml'\n" + MINIMAL, "missing.toml"),
        ("cache = '/proc/none'\n" + MINIMAL, "/proc/none"),
        (MINIMAL.replace("cpu-core", "cpu-cores"), "no price for device class 'cpu-cores'"),
    ],
)
def test_up_refuses_bad_input_before_it_starts_anything(tmp_path, fleet, named, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if fleet is not None:
        (tmp_path / "fleet.toml").write_text(fleet)
    assert named in refused("up", "-c", "fleet.toml")
    if "price" in named or "missing.toml" in named:
        assert named in refused("doctor", "-c", "fleet.toml")
    assert not list(tmp_path.glob("ledger/live/*"))


@pytest.mark.skipif(
    importlib.util.find_spec("torch_memory_saver") is not None, reason="torch-memory-saver is installed"
)
def test_up_refuses_to_move_an_engines_memory_without_the_package_that_does(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fleet = MINIMAL.replace("cores = [0]", "gpu = 0") + "[coserving]\nactivation = 'leased'\n"
    (tmp_path / "fleet.toml").write_text(fleet)
    error = refused("up", "-c", "fleet.toml")
    assert "coserving.activation is 'leased'" in error
    assert "`pip install torch-memory-saver`" in error


def test_a_malformed_trace_is_named_with_its_line(tmp_path, monkeypatch):
    (tmp_path / "trace.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,12,3\n2023-11-16 18:17:04.0,many,3\n"
    )
    monkeypatch.chdir(tmp_path)
    error = refused("demo", "--trace", "trace.csv", "--ledger", "led")
    assert "trace.csv, line 3" in error
    assert "many" in error


def test_a_folder_that_is_no_ledger_is_left_alone(tmp_path):
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.jpg").write_bytes(b"cat")
    for command in (
        ("demo", "--ledger", foreign),
        ("report", "--ledger", foreign),
        ("sql", "--ledger", foreign, "select 1"),
    ):
        assert "photos" in refused(*command)
    assert [path.name for path in foreign.iterdir()] == ["cat.jpg"]


def test_a_ledger_with_a_file_that_is_cut_short_is_said_to_be_damaged(tmp_path):
    with LedgerWriter.open(tmp_path / "ledger", "test", "run") as writer:
        writer.record(Run(at_us=1, action="started", name="short"), durable=True)
    segment = sorted((tmp_path / "ledger" / "live").rglob("*.parquet"))[-1]
    segment.write_bytes(segment.read_bytes()[:-10])
    for command in (["report"], ["query", "harvest_share_by_day"], ["sql", "from run"]):
        done = CliRunner().invoke(app, [*command, "--ledger", str(tmp_path / "ledger")])
        assert isinstance(done.exception, SystemExit), (command, done.exception)
        assert done.exit_code != 0
        assert "rose ledger verify" in done.stderr


def test_a_run_without_a_finished_step_has_a_harvest_share_of_its_own(tmp_path):
    with LedgerWriter.open(tmp_path / "ledger", "test", "run") as writer:
        writer.record(Run(at_us=1, action="started", name="short"))
        assert _harvest(tmp_path / "ledger", "run") == {}
        writer.record(Device(at_us=1, action="joined", t_ns=0, device_id="d", pool="serving", device_class="any"))
        spent = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 0)
        spent |= {"serving_ns": 20, "rollout_ns": 5, "headroom_ns": 5, "idle_ns": 10}
        writer.record(DeviceSlice(device_id="d", t0_ns=0, t1_ns=40, **spent))
    assert _harvest(tmp_path / "ledger", "run") == {"run": 0.25}
