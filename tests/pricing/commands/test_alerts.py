from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from rose.ledger.upkeep.jobs import Settings, run_job
from rose.pricing.commands.alerts import alerts_app
from rose.pricing.jobs import planned
from tests.pricing.alerts.conftest import hook, secret_file, webhook_channel
from tests.pricing.alerts.servers import Web

__all__ = ["hook", "secret_file", "webhook_channel"]

app = typer.Typer()
app.add_typer(alerts_app, name="alerts")


@pytest.fixture
def file(hook: Web, secret_file: Path, tmp_path: Path) -> Path:
    path = tmp_path / "alerts.toml"
    path.write_text(
        f'[[channel]]\nname = "c"\nkind = "webhook"\nurl = "{hook.url}"\nsecret_file = "{secret_file.name}"\n'
        '[[rule]]\nname = "v"\nkind = "unverified"\nchannels = ["c"]\n'
        '[[rule]]\nname = "s"\nkind = "slo"\ntarget = 0.99\nchannels = ["c"]\n'
        '[[rule]]\nname = "m"\nkind = "meter"\nchannels = ["c"]\n'
    )
    return path


@pytest.fixture
def run(weeks: Path, file: Path) -> Any:
    def invoke(*arguments: str) -> Result:
        env = {"ROSE_LEDGER": str(weeks), "ROSE_ALERTS": str(file), "COLUMNS": "200"}
        return CliRunner().invoke(app, ["alerts", *arguments], env=env)

    return invoke


def data(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_look_sends_nothing(run: Any, hook: Web) -> None:
    shown = run("check")
    assert shown.exit_code == 0, shown.output
    for text in ("v: the ledger was never verified. To verify it, run", "s: not known: 0 requests", "m: nothing holds"):
        assert text in shown.output
    rules = {row["rule"]: row for row in data(run("check", "--json"))}
    assert rules["v"]["alerts"][0]["key"] == "v/stale"
    assert "0 requests were served" in rules["s"]["unknown"]
    assert hook.got == []
    assert "no message was queued yet" in run("list").output


def test_a_round_sends_and_the_list_says_what_became_of_it(run: Any, hook: Web) -> None:
    hook.codes = [404]
    shown = run("run")
    assert shown.exit_code == 1
    assert "given up after 1 tries" in shown.output
    hook.codes = [200]
    assert data(run("send", "--test", "c", "--json"))["state"] == "delivered"
    first, second = data(run("list", "--json"))
    assert (first["kind"], first["state"], second["kind"], second["state"]) == (
        "firing",
        "given up",
        "test",
        "delivered",
    )
    assert "answered 404" in first["error"]
    listed = run("list", "--limit", "1").output
    assert "the newest 1 of 2" in listed
    assert "answered 404" in " ".join(run("list").output.split())
    assert data(run("run", "--json"))["queued"] == 0


def test_a_test_that_is_not_taken_fails(run: Any, hook: Web) -> None:
    hook.codes = [500]
    done = run("send", "--test", "c")
    assert (done.exit_code, "answered 500" in done.output) == (1, True)
    assert run("send", "--test", "d").exit_code == 2


def test_a_file_that_is_wrong_is_said(run: Any, file: Path) -> None:
    file.write_text(file.read_text().replace('"slo"', '"slow"'))
    done = run("check")
    assert done.exit_code == 2
    assert "rule.1: Input tag 'slow'" in done.output


def test_alerts_are_a_job(weeks: Path, file: Path, hook: Web) -> None:
    (job,) = [job for job in planned(Settings(alerts=file, alerts_every_s=60)) if job.name == "alerts"]
    assert job.every_s == 60
    done = run_job(weeks, job)
    assert (done.status, dict(done.result or {})["delivered"]) == ("ok", 1)
    assert len(hook.got) == 1
    daily = '[[report]]\nname = "d"\nchannels = ["c"]\nevery = "day"\nat = "08:00"\n'
    file.write_text(f'price_book = "nowhere.toml"\n{file.read_text()}{daily}')
    failed = run_job(weeks, job)
    assert failed.status == "failed"
    assert "1 reports could not be made: d: " in (failed.error or "")
