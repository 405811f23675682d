from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from rose.ledger import segments
from rose.ledger.commands import ledger_app
from rose.ledger.growth import compaction, rollup
from rose.ledger.writer import LedgerWriter
from tests.ledger.conftest import copied

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def root_made(tmp_path_factory: pytest.TempPathFactory, lease: Any) -> Path:
    """A ledger of one compacted file that is old and rolled up."""
    root = tmp_path_factory.mktemp("made") / "ledger"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "SEGMENTS_PER_EPOCH", 4)
        with LedgerWriter.open(root, "w", "r") as writer:
            for _ in range(5):
                writer.record(lease(at_us=1_700_000_000_000_000))
    compaction.compact(root, grace_s=0)
    rollup.roll_up(root)
    return root


@pytest.fixture
def run(root_made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `rose ledger` on a copy of `root_made`."""
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 4)
    monkeypatch.setenv("ROSE_LEDGER", str(tmp_path / "ledger"))
    monkeypatch.chdir(tmp_path)
    copied(root_made, tmp_path / "ledger")
    return lambda *arguments, **options: CliRunner().invoke(ledger_app, arguments, **options)


def test_archive_and_restore(run: Run) -> None:
    done = run("archive", "--older-than", "30d", "--to", "away", "--delete", "--grace", "0", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["parts"], said["left"], said["skipped"]) == (1, 1, {})
    assert run("verify").exit_code == 0
    assert "1 files with" in run("restore", "--from", "away").stdout
    assert "0 files with" in run("restore", "--from", "away", "--since", "2026-01-01").stdout


def test_a_file_that_is_not_found_gives_exit_code_1(run: Run) -> None:
    run("archive", "--older-than", "30d", "--to", "away", "--delete")
    done = run("restore", "--from", "elsewhere")
    assert done.exit_code == 1
    assert "Not found: file://" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("archive", "--older-than", "soon", "--to", "x"), "'soon' is not a duration"),
        (("archive", "--older-than", "1d", "--to", "x", "--storage-option", "key"), "not of the form KEY=VALUE"),
        (("verify", "--quarantine", "ledger.json"), "is not a file of the ledger's"),
    ],
)
def test_what_cannot_be_carried_out_gives_exit_code_2(run: Run, arguments: tuple[str, ...], says: str) -> None:
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert says in done.stderr
