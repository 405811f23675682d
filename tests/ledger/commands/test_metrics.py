from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from rose.events import Sync
from rose.ledger.commands import ledger_app
from rose.ledger.upkeep.jobs import Settings, ledger_jobs, run_job
from rose.ledger.writer import LedgerWriter

ROSE = str(Path(sys.executable).with_name("rose"))
DOCUMENT = Path(__file__).parents[3] / "docs" / "ledger-jobs.md"


@pytest.fixture(autouse=True)
def root(tmp_path: Path, lease: Any, request_event: Any, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ledger in which every metric has a value."""
    monkeypatch.chdir(tmp_path)
    for variable in ("ROSE_LEDGER", "ROSE_METRICS_TOKEN"):
        monkeypatch.delenv(variable, raising=False)
    with LedgerWriter.open("ledger", "w", "r") as writer:
        writer.record(lease(device_id="d"))
        writer.record(request_event(device_id="d"))
        writer.record(
            Sync(
                device_id="d",
                ok=True,
                base_version=0,
                encoding="delta",
                wire_bytes=1,
                dense_bytes=1,
                total_ns=1,
                source="relay",
                route="loopback",
            )
        )
    return tmp_path / "ledger"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(ledger_app, ["metrics", *(str(argument) for argument in arguments)])


def test_without_an_address_it_prints_once() -> None:
    done = run()
    assert done.exit_code == 0
    names = {family.name for family in text_string_to_metric_families(done.stdout)}
    assert {"rose_ledger_events", "rose_leases_open", "rose_requests"} <= names


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--ledger", "nowhere"], "nowhere is not a ledger"),
        (["--ledger", "nowhere", "--listen", "127.0.0.1:0"], "nowhere is not a ledger"),
        (["--listen", "localhost"], "'localhost' is not an address; give HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "is not an address"),
        (["--listen", "0.0.0.0:0"], "can be reached from other machines: give a token"),
        (["--listen", "0.0.0.0:0", "--token-file", "nowhere"], "--token-file nowhere: "),
        (["--listen", "0.0.0.0:0", "--token-file", "/dev/null"], "--token-file /dev/null is empty"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_message(arguments: list[str], says: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("rose: ")
    assert says in done.stderr


@pytest.mark.long
def test_it_serves_those_who_have_the_token_until_it_is_stopped(root: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("token-of-the-tests\n")
    command = [ROSE, "ledger", "metrics", "--ledger", root, "--listen", "127.0.0.1:0", "--token-file", "token"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split(" at ")[1].split()[0]
        request = urllib.request.Request(url, headers={"Authorization": "Bearer token-of-the-tests"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert 'rose_ledger_events_total{writer="w"} 3.0' in answer.read().decode()
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(url, timeout=60)
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)
    assert (process.returncode, output, errors) == (0, "", "")


def documents() -> Iterator[Any]:
    text = DOCUMENT.read_text(encoding="utf-8")
    for block in re.findall(r"^```yaml\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield yaml.safe_load(block)


def exported(root: Path) -> dict[str, set[str]]:
    """Each metric that can be scraped, with its labels; those of jobs once jobs ran."""
    for job in ledger_jobs(Settings()):
        run_job(root, job)
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(run().stdout):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found[name] = {label for sample in family.samples for label in sample.labels}
    return found


@pytest.mark.long
def test_the_documented_rules_speak_of_metrics_that_are_there(root: Path) -> None:
    scrape, alerts = documents()
    ((job,),) = scrape.values()
    assert job["static_configs"] == [{"targets": ["127.0.0.1:9464"]}]
    names = exported(root)
    ((group,),) = alerts.values()
    assert len(group["rules"]) >= 5
    for rule in group["rules"]:
        assert {"alert", "expr", "labels", "annotations"} <= rule.keys()
        asked = re.findall(r"(rose_\w+)(?:\{([^}]*)\})?", rule["expr"])
        assert asked, rule["alert"]
        for name, selector in asked:
            assert name in names, f"{rule['alert']}: nothing is exported as {name}"
            labels = set(re.findall(r"(\w+)=~?\"", selector))
            if names[name]:
                assert labels <= names[name], f"{rule['alert']}: {name} has no such label"
        assert rule["expr"].count("(") == rule["expr"].count(")")


@pytest.mark.long
def test_every_metric_is_documented(root: Path) -> None:
    table = DOCUMENT.read_text(encoding="utf-8")
    for name, labels in exported(root).items():
        (line,) = [line for line in table.splitlines() if line.startswith("|") and f"`{name}`" in line]
        documented = set(re.findall(r"`(\w+)`", line.rsplit("|", 2)[1]))
        assert labels in (documented, set()), name
