from __future__ import annotations

import csv
import hashlib
import io
import json
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import typer
from typer.testing import CliRunner, Result

from rose.pricing.closing import store
from rose.pricing.commands.spend import cost_command, forecast_command
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML
from tests.pricing.conftest import WEEK_CLOSE_ID

app = typer.Typer()
app.command("cost")(cost_command)
app.command("forecast")(forecast_command)
runner = CliRunner()
HOUR = ("--period", "2026-06-01T00")


@pytest.fixture
def folder(fleet: Path) -> Path:
    (fleet.parent / "book.toml").write_text(BOOK_TOML)
    return fleet.parent


def cost(folder: Path, *arguments: str) -> Result:
    return run(folder, "cost", *arguments)


def run(folder: Path, *arguments: str) -> Result:
    given = [*arguments, "--price-book", str(folder / "book.toml")]
    return runner.invoke(app, given, env={"ROSE_LEDGER": str(folder / "ledger"), "COLUMNS": "200"})


def data(done: Result) -> Any:
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_period_by_team_and_bucket(folder: Path) -> None:
    by = ("--by", "team", "--by", "bucket")
    answer = data(cost(folder, *HOUR, *by, "--json"))
    assert sum(line["cost_nano"] for line in answer["lines"]) == answer["bill_nano"] == BILL_NANO
    assert {line["team"] for line in answer["lines"]} == {"chat", "research"}
    assert answer["open"] == [{"from": "2026-06-01T00:00:00.000000Z", "to": "2026-06-01T01:00:00.000000Z"}]
    shown = cost(folder, *HOUR, *by)
    assert shown.exit_code == 0, shown.output
    for text in ("2026-06-01 00:00 to 2026-06-01 01:00, UTC", "open, priced now", "research", "$3.87", "100.0%"):
        assert text in shown.output
    rows = list(csv.DictReader(io.StringIO(cost(folder, *HOUR, *by, "--csv").stdout)))
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal(BILL_NANO).scaleb(-9)
    assert {row["currency"] for row in rows} == {"USD"}


def test_a_closed_month_needs_no_price_book(half_closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    env = {"ROSE_LEDGER": str(half_closed / "ledger")}
    done = runner.invoke(app, ["cost", "--period", "2026-06-01..2026-06-07", "--json"], env=env)
    assert data(done)["open"] == []
    wrong = runner.invoke(app, ["cost", "--period", "2026-06-01..2026-06-08"], env=env)
    assert wrong.exit_code == 2
    assert "there is no price book" in wrong.output


def test_a_close_is_a_page_to_send(half_closed: Path) -> None:
    env = {"ROSE_LEDGER": str(half_closed / "ledger")}
    page = half_closed / "week.html"
    asked = ["cost", "--by", "team", "--close", WEEK_CLOSE_ID]
    done = runner.invoke(app, [*asked, "--html", str(page)], env=env)
    assert done.exit_code == 0, done.output
    closed = store.read(half_closed / "ledger", WEEK_CLOSE_ID)
    answer = data(runner.invoke(app, [*asked, "--json"], env=env))
    teams = dict(closed.frame.group_by("team").agg(pl.col("cost_nano").sum()).iter_rows())
    assert {line["team"]: line["cost_nano"] for line in answer["lines"]} == teams
    assert (answer["total"]["closed_nano"], answer["open"]) == (closed.posted[0].cost_nano, [])
    text = page.read_text()
    for team, nano in teams.items():
        assert re.search(rf"<tr [^>]*><td>{team}</td>.*>{nano:,}</td></tr>", text)
    for posting in closed.posted:
        assert posting.sha256 in text
    assert hashlib.sha256(page.read_bytes()).hexdigest() in done.output
    again = runner.invoke(app, [*asked, "--html", str(page)], env=env)
    assert (again.exit_code, "exists" in again.output) == (2, True)
    assert runner.invoke(app, [*asked, "--html", str(page), "--force"], env=env).exit_code == 0
    assert page.read_text() == text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--close", "2026-07-live-1"), "there is no close '2026-07-live-1'"),
        (("--close", WEEK_CLOSE_ID, "--period", "2026-06"), "leave out --period"),
        (("--html", "page.txt"), "page.txt: a page is written as .html"),
        (("--html", "page.html", "--json"), "leave out --csv and --json"),
    ],
)
def test_a_page_that_cannot_be_made_is_refused(half_closed: Path, arguments: tuple[str, ...], says: str) -> None:
    done = runner.invoke(app, ["cost", *arguments], env={"ROSE_LEDGER": str(half_closed / "ledger")})
    assert done.exit_code == 2
    assert says in " ".join(done.output.split())


def test_what_cannot_be_answered_is_said(folder: Path) -> None:
    for arguments, says in (
        (("--team", "reserch"), "did you mean 'research'?"),
        (("--tag", "team=reserch"), "did you mean 'research'?"),
        (("--tag", "team"), "write NAME=VALUE"),
        (("--by", "buckets"), "did you mean 'bucket'?"),
        (("--tz", "Mars"), "time zone 'Mars' is not known"),
        (("--json", "--csv"), "not both"),
    ):
        done = cost(folder, *HOUR, *arguments)
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.output.split()), done.output


def test_a_forecast_of_the_fleet_and_of_every_team(folder: Path) -> None:
    fleet, *teams = data(run(folder, "forecast", "--month", "2026-06", "--json"))
    assert (fleet["team"], fleet["forecast"]["value"]) == (None, BILL_NANO)
    assert sum(row["spent"]["value"] for row in teams) == BILL_NANO
    assert "What 2026-06 will have cost" in run(folder, "forecast", "--month", "2026-06").output
    rows = list(csv.DictReader(io.StringIO(run(folder, "forecast", "--month", "2026-06", "--csv").stdout)))
    assert [row["team"] for row in rows] == ["", "chat", "research"]
    assert Decimal(rows[0]["forecast"]) == Decimal(BILL_NANO).scaleb(-9)
    wrong = run(folder, "forecast", "--month", "2026-06", "--team", "caht")
    assert wrong.exit_code == 2
    assert "did you mean 'chat'?" in wrong.output
