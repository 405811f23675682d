from pathlib import Path
from typing import Any

import pytest

from rose.ledger.ledger import Ledger
from rose.ledger.upkeep.jobs import run_job
from rose.pricing.commands.jobs import planned_jobs
from tests.pricing.conftest import data, rose
from tests.pricing.test_alerts import Hook, hook

__all__ = ["hook"]


@pytest.fixture
def file(hook: Hook, tmp_path: Path) -> Path:
    path, urls = tmp_path / "alerts.toml", tmp_path / "urls"
    urls.write_text(f"c={hook.url}")
    urls.chmod(0o600)
    path.write_text(
        'urls_file = "urls"\n[[rule]]\nname = "v"\nkind = "ledger"\nto = ["c"]\n'
        '[[rule]]\nname = "s"\nkind = "serving"\ntarget = 0.99\nto = ["c"]\n'
    )
    return path


@pytest.fixture
def run(weeks: Path, file: Path) -> Any:
    return lambda *arguments: rose("alerts", *arguments, ledger=weeks, ROSE_ALERTS=str(file))


def test_a_dry_run_sends_nothing_and_a_round_sends_once(run: Any, hook: Hook) -> None:
    shown = run("--dry-run").output
    assert "v: the ledger was verified never." in shown
    assert "no requests" in shown
    rules = {row["rule"]: row for row in data(run("--dry-run", "--json"))}
    assert rules["v"]["alerts"][0]["key"] == "v/stale"
    assert hook.titles == []
    hook.code = 500
    failed = run()
    assert (failed.exit_code, "the ledger was verified never -> c: " in failed.output) == (1, True)
    hook.code = 200
    assert data(run("--json"))["sent"] == 1
    assert "0 messages sent" in run().output


def test_a_dry_run_refuses_what_could_not_be_sent(run: Any, file: Path) -> None:
    file.with_name("urls").write_text("d=json://localhost")
    refused = run("--dry-run")
    assert (refused.exit_code, "no destination 'c'" in refused.output) == (2, True)


def test_a_test_message_is_sent(run: Any, hook: Hook) -> None:
    assert "c: sent" in run("--test", "c").output
    assert hook.titles == ["ROSE: test"]
    hook.code = 500
    assert run("--test", "c").exit_code == 1
    assert run("--test", "d").exit_code == 2


def test_alerts_are_a_job(weeks: Path, file: Path, hook: Hook) -> None:
    job = planned_jobs(None, None, False, file)["alerts"]
    assert job.every_s == 300
    hook.code = 500
    failed = run_job(Ledger(weeks), job)
    assert (failed.status, "-> c: " in str(failed.error)) == ("failed", True)
    hook.code = 200
    done = run_job(Ledger(weeks), job)
    assert (done.status, dict(done.result or {})["sent"]) == ("ok", 1)
