from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rose.pricing.commands.reconcile import reconcile_command
from typer.testing import CliRunner, Result

from tests.pricing.reconcile.conftest import BOOK_TEXT, LEDGER_NANO, charge, fleet_of_four, whole, write_csv

__all__ = ["fleet_of_four"]

app = typer.Typer()
app.command("reconcile")(reconcile_command)


@pytest.fixture
def folder(fleet_of_four: Path, tmp_path: Path) -> Path:
    (tmp_path / "book.toml").write_text(BOOK_TEXT)
    (tmp_path / "ledger").symlink_to(fleet_of_four)
    return tmp_path


def reconcile(folder: Path, path: Path, *options: str) -> Result:
    given = [str(path), "--period", "2026-06-01..2026-06-03", "-b", str(folder / "book.toml"), *options]
    return CliRunner().invoke(app, given, env={"ROSE_LEDGER": str(folder / "ledger"), "COLUMNS": "200"})


@pytest.mark.long
def test_the_exit_code_says_whether_they_agree(folder: Path) -> None:
    path = write_csv(folder / "vendor.csv", [*whole(), charge("GPU-0", 2, "6.00", None)])
    done = reconcile(folder, path, "--json")
    assert done.exit_code == 1, done.output
    data = json.loads(done.stdout)
    assert (data["total"]["ledger_nano"], data["total"]["difference_nano"]) == (LEDGER_NANO, 6_000_000_000)
    assert (data["tolerance"], data["within"]) == (0.005, False)
    command = [sys.executable, "-m", "rose.cli", "reconcile", str(path), "--period", "2026-06-01..2026-06-03"]
    options = ["-b", str(folder / "book.toml"), "--ledger", str(folder / "ledger"), "--tolerance", "1%"]
    ended = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert "within the tolerance of 0.01" in " ".join(ended.stdout.split())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--tolerance", "0.5"), "--tolerance '0.5' is no percentage from 0% to 100%; write it as 0.5%"),
        (("--tolerance", "101%"), "is no percentage"),
        (("--period", "2026-06-01T05"), "give a period of whole UTC days"),
        (("--period", "2026-05"), "nothing is charged"),
    ],
)
def test_what_is_asked_wrongly_is_said(folder: Path, options: tuple[str, ...], says: str) -> None:
    done = reconcile(folder, write_csv(folder / "vendor.csv", whole()), *options)
    assert done.exit_code == 2, done.output
    assert says in " ".join(done.output.split())


def test_a_file_that_cannot_be_used_is_said(folder: Path) -> None:
    done = reconcile(folder, write_csv(folder / "vendor.csv", [charge(BilledCost="\x1b[2Jten")]))
    assert done.exit_code == 2, done.output
    assert "row 1: BilledCost must not be" in done.output
    assert "\x1b[2J" not in done.output
    assert reconcile(folder, folder / "none.csv").exit_code == 2
