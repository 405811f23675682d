from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose.ledger import segments
from rose.ledger.commands import ledger_app
from rose.ledger.evidence import keys
from rose.ledger.growth import compaction, rollup
from rose.ledger.writer import LedgerWriter
from tests.ledger.approvals.conftest import by_hand

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    """A ledger with an old compacted file."""
    root = tmp_path_factory.mktemp("pristine") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 4)
        with LedgerWriter.open(root, "w", "june") as writer:
            for _ in range(5):
                writer.record(lease(at_us=1_700_000_000_000_000))
        compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    return root


@pytest.fixture
def run(pristine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, identity: Any) -> Run:
    """Runs `rose ledger` under the key of the first argument, on a copy of it."""
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 4)
    monkeypatch.setenv("ROSE_LEDGER", str(shutil.copytree(pristine, tmp_path / "ledger")))

    def invoke(name: str, *arguments: str) -> Result:
        with identity(name):
            return CliRunner().invoke(ledger_app, arguments)

    return invoke


def _ok(done: Result) -> str:
    assert done.exit_code == 0, done.output
    return done.stdout


def test_rules_are_shown_with_who_set_them_and_set_one_by_one(run: Run) -> None:
    assert "Never set" in _ok(run("ann", "rules"))
    _ok(run("ann", "rules", "--retention-min", "400d", "--approve", "retain,close", "--log-access", "queries"))
    told = json.loads(_ok(run("ben", "rules", "--log-access", "exports", "--json")))
    assert (told["retention_min_days"], told["approve"], told["log_access"]) == (400.0, ["close", "retain"], "exports")
    assert told["set"]["key"] != ""
    assert "Set 20" in _ok(run("ann", "rules"))
    _ok(run("ann", "rules", "--approve", "none", "--retention-min", "0"))
    assert json.loads(_ok(run("ann", "rules", "--json")))["approve"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rules", "--log-access", "all"), "log_access must be one of"),
        (("rules", "--approve", "retain,all"), "approve may name"),
        (("rules", "--retention-min", "soon"), "is not a duration"),
        (("rules", "--approver", "ann"), "64 hexadecimal"),
        (("approve", "abc"), "no proposal begins with 'abc'"),
        (("reject", "abc", "--reason", "no"), "no proposal begins with 'abc'"),
        (("hold", "release", "abc", "--reason", "no"), "`rose ledger hold list` lists them"),
        (("hold", "add", "--reason", "case 5"), "give --run, or --since and --until"),
    ],
)
def test_what_cannot_be_done_gives_exit_code_2(run: Run, arguments: tuple[str, ...], says: str) -> None:
    done = run("ann", *arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr


@pytest.mark.long
def test_retention_is_shown_then_proposed_then_approved_then_done(run: Run) -> None:
    _ok(run("ann", "rules", "--approve", "retain"))
    shown = json.loads(_ok(run("ann", "retain", "--keep", "30d", "--json")))
    assert (shown["files"], shown["needs_approval"]) == (1, True)
    assert shown["parts"][0]["runs"] == ["june"]
    plan = _ok(run("ann", "retain", "--keep", "30d"))
    assert "Nothing was done: --yes proposes it" in plan
    assert f"1 open epochs with {shown['left_out']['open_events']} events are left out" in plan
    assert "open epochs with" in _ok(run("ann", "roll-up"))
    waits = run("ann", "retain", "--keep", "30d", "--yes")
    assert (waits.exit_code, waits.stdout) == (3, "")
    told = json.loads(_ok(run("ben", "proposals", "--json")))
    (proposal,) = told["proposals"]
    assert proposal["id"][:12] in waits.stderr
    assert (proposal["status"], proposal["content"]["events"]) == ("open", shown["events"])
    for row in ("keep_days 30.0", "parts 1", "open"):
        assert row in _ok(run("ben", "proposals"))
    assert run("ann", "approve", proposal["id"][:12]).exit_code == 2
    assert "Approved: retain" in _ok(run("ben", "approve", proposal["id"][:12]))
    done = _ok(run("ann", "retain", "--keep", "30d", "--yes"))
    assert "1 left the ledger" in done
    assert f"under proposal {proposal['id'][:12]}, proposed by" in done
    assert json.loads(_ok(run("ben", "proposals", "--json")))["proposals"][0]["status"] == "carried out"


def test_a_rejection_is_told_with_its_reason(run: Run) -> None:
    _ok(run("ann", "rules", "--approve", "rules"))
    assert run("ann", "rules", "--approve", "none").exit_code == 3
    name = json.loads(_ok(run("ann", "proposals", "--json")))["proposals"][0]["id"]
    assert "Rejected: rules" in _ok(run("ben", "reject", name[:12], "--reason", "not without the auditors"))
    assert "not without the auditors" in _ok(run("ann", "proposals"))


@pytest.mark.long
def test_holds_are_added_listed_and_released(run: Run) -> None:
    assert "on run june" in _ok(run("ann", "hold", "add", "--run", "june", "--reason", "case 5"))
    _ok(run("ann", "hold", "add", "--since", "2023-11-01", "--until", "2024-01-01", "--reason", "audit"))
    held = json.loads(_ok(run("ann", "hold", "list", "--json")))
    assert [one["run_id"] for one in held] == ["june", None]
    assert "case 5" in _ok(run("ann", "hold", "list"))
    assert f"it is under hold {held[0]['id'][:12]}" in _ok(run("ann", "retain", "--keep", "30d"))
    assert "0 files with 0 events" in _ok(run("ann", "retain", "--keep", "30d", "--yes"))
    for one in held:
        _ok(run("ann", "hold", "release", one["id"][:12], "--reason", "over"))
    assert "1 left the ledger" in _ok(run("ann", "retain", "--keep", "30d", "--yes"))


def test_what_was_made_by_hand_is_told_and_gives_exit_code_1(run: Run, tmp_path: Path) -> None:
    _ok(run("ann", "rules", "--approve", "retain"))
    by_hand(tmp_path / "ledger", "approved", {"body": {"proposal": "p"}, "by": "x", "key": "", "signature": ""})
    for command in ("rules", "proposals"):
        done = run("ann", command)
        assert done.exit_code == 1
        assert "event 1 of writer controls (approved) does not count: its signature is wrong" in done.stdout
    assert len(json.loads(run("ann", "proposals", "--json").stdout)["faults"]) == 1
    assert "(approved) does not count" in _ok(run("ann", "verify"))
    assert len(json.loads(run("ann", "verify", "--json").stdout)["approval_faults"]) == 1


@pytest.mark.long
def test_the_documented_example_runs(run: Run) -> None:
    text = (Path(__file__).parents[3] / "docs" / "approvals.md").read_text(encoding="utf-8")
    (block,) = [
        block for block in re.findall(r"^```text\n(.*?)^```$", text, re.DOTALL | re.MULTILINE) if "ann$" in block
    ]
    (shown,) = set(re.findall(r"approve ([0-9a-f]{12})$", block, re.MULTILINE))
    lines = block.splitlines()
    outcomes = []
    for number, line in enumerate(lines):
        if (match := re.fullmatch(r"(ann|ben)\$ rose ledger (.+)", line)) is None:
            continue
        known = json.loads(run("ann", "proposals", "--json").stdout)["proposals"]
        words = [known[0]["id"][:12] if word == shown else word for word in match[2].split()]
        done = run(match[1], *words)
        waits = number + 1 < len(lines) and lines[number + 1].startswith("rose: ")
        assert done.exit_code == (3 if waits else 0), (line, done.output)
        if waits:
            # What it says, but for ids, names and times.
            told, written = (
                re.sub(r"[0-9a-f]{12}|\S+@\S+|\d{4}-\S+Z", "*", text)
                for text in (done.stderr, " ".join(lines[number + 1 : number + 3]))
            )
            assert told.split() == written.split()
        outcomes.append(done.stdout)
    assert "1 left the ledger" in outcomes[-1]


@pytest.mark.long
def test_two_processes_with_a_key_each(run: Run, tmp_path: Path) -> None:
    _ok(run("ann", "rules", "--approve", "retain"))

    def rose(key: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            keys.VARIABLE: str(tmp_path / "keys" / key),
            "ROSE_LEDGER": str(tmp_path / "ledger"),
        }
        command = [sys.executable, "-m", "rose.cli", "ledger", *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert rose("ann", "retain", "--keep", "30d", "--yes").returncode == 3
    name = json.loads(rose("ann", "proposals", "--json").stdout)["proposals"][0]["id"]
    # Another user of the operating system would have another name, and with the same key is the same identity.
    assert rose("ann", "approve", name).returncode == 2
    assert rose("ben", "approve", name).returncode == 0
    assert rose("ben", "retain", "--keep", "30d", "--yes").returncode == 0
    assert rose("ann", "verify").returncode == 0
