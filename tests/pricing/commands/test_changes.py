from __future__ import annotations

import csv
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from rose.pricing.commands.changes import changes_command
from typer.testing import CliRunner, Result

from tests.pricing.closing.conftest import BOOK_TOML

app = typer.Typer()
app.command("changes")(changes_command)
DAYS = ("--period", "2026-06-15", "--before", "2026-06-14")


@pytest.fixture
def folder(weeks: Path) -> Path:
    (weeks.parent / "book.toml").write_text(BOOK_TOML)
    return weeks.parent


def changes(folder: Path, *arguments: str) -> Result:
    given = [*arguments, "--price-book", str(folder / "book.toml")]
    return CliRunner().invoke(app, given, env={"ROSE_LEDGER": str(folder / "weeks"), "COLUMNS": "200"})


def data(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_day_of_more_rollouts_is_told_from_the_day_before(folder: Path) -> None:
    answer = data(changes(folder, *DAYS, "--by", "bucket", "--json"))
    groups = {group["group"]: group for group in answer["groups"]}
    # Two hours more of rollouts at $3.60 for as many tokens, and two hours less idle: the bill is the same.
    assert (answer["change_nano"], answer["before_nano"]) == (0, 86_400_000_000)
    assert groups["rollout"]["effects_nano"]["device time per token"] == 7_200_000_000
    assert groups["idle"]["effects_nano"]["volume"] == -7_200_000_000
    assert sum(answer["effects_nano"].values()) == 0
    shown = changes(folder, *DAYS, "--by", "bucket")
    assert shown.exit_code == 0, shown.output
    for text in ("2026-06-15, UTC, compared with 2026-06-14, UTC", "It cost the same.", "$7.20", "-$7.20"):
        assert text in shown.output


def test_the_period_before_is_as_long_and_few_lines_are_shown(folder: Path) -> None:
    answer = data(changes(folder, "--period", "2026-06-15..2026-06-16", "--json"))
    assert answer["before"]["period"]["from"].startswith("2026-06-13T00")
    shown = changes(folder, "--period", "2026-06-15", "--by", "bucket", "--top", "1")
    assert "1 others" in shown.output


def test_rows_are_given_as_by_cost(folder: Path) -> None:
    rows = list(csv.DictReader(changes(folder, *DAYS, "--by", "bucket", "--csv").stdout.splitlines()))
    by_bucket = {row["bucket"]: row for row in rows}
    assert (by_bucket["rollout"]["device_time_per_token"], by_bucket["rollout"]["currency"]) == ("7.200000000", "USD")
    assert sum(Decimal(row["change"]) for row in rows) == 0
    assert "not both" in changes(folder, *DAYS, "--csv", "--json").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--period", "2026-06-15", "--before", "2026-06-15"), "overlap: no change can be told"),
        ((*DAYS, "--by", "colour"), "changes cannot be shown by 'colour'"),
        (
            (
                "--period",
                "2026-06-01",
            ),
            "2026-05-31",
        ),
        (
            (
                "--period",
                "soon",
            ),
            "'soon' is no period",
        ),
    ],
)
def test_what_cannot_be_answered_is_said(folder: Path, arguments: tuple[str, ...], says: str) -> None:
    done = changes(folder, *arguments)
    assert done.exit_code == 2
    assert says in " ".join(done.output.split()), done.output
