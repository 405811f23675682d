from __future__ import annotations

import csv
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from rose.pricing.commands.price import check
from rose.pricing.commands.spend import cost_command, forecast_command
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, begun, fleet_events, write

app = typer.Typer()
app.command("cost")(cost_command)
app.command("check")(check)
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


def test_shared_costs_and_credits_are_columns(folder: Path) -> None:
    cited = 'source = "board"\nsource_date = 2026-01-01\n'
    with (folder / "book.toml").open("a") as book:
        book.write(f'\n[[shared_cost]]\nname = "desk"\nusd_per_month = 720\nshares = {{ ops = 1 }}\n{cited}')
        book.write(f'\n[[credit]]\nname = "vendor"\nusd = 10\nvalid_from = 2026-06-01\nteam = "ops"\n{cited}')
    shown = cost(folder, *HOUR)
    assert shown.exit_code == 0, shown.output
    for text in (
        "direct cost",
        "shared costs",
        "credits",
        "ops",
        "$1.00",
        "-$1.00",
        "shared cost desk: $720 a month, ops 1",
        "credit vendor: $9.00 left",
    ):
        assert text in shown.output
    rows = {row["team"]: row for row in csv.DictReader(io.StringIO(cost(folder, *HOUR, "--csv").stdout))}
    assert [rows["ops"][name] for name in ("cost", "shared_costs", "credits", "total")] == [
        "0.000000000",
        "1.000000000",
        "-1.000000000",
        "0.000000000",
    ]
    answer = data(cost(folder, *HOUR, "--json"))
    assert answer["total"]["total_nano"] == answer["bill_nano"] == BILL_NANO
    assert answer["shared_costs"] == [{"name": "desk", "team": "ops", "nano": 10**9, "rule": "$720 a month, ops 1"}]
    assert answer["credits"] == [{"name": "vendor", "team": "ops", "nano": -(10**9), "rest_nano": 9 * 10**9}]


def test_a_team_of_the_price_book_that_no_run_names_is_said(folder: Path) -> None:
    cited = 'source = "board"\nsource_date = 2026-01-01\n'
    path = folder / "book.toml"
    with path.open("a") as book:
        book.write(f'\n[[credit]]\nname = "vendor"\nusd = 10\nvalid_from = 2026-06-01\nteam = "reserach"\n{cited}')
    warning = "warning: no run of the ledger has the tag team 'reserach'; did you mean 'research'?"
    shown = cost(folder, *HOUR, "--json")
    assert json.loads(shown.stdout)["lines"]
    assert warning in shown.stderr
    assert "tag team" not in runner.invoke(app, ["check", str(path)]).output
    checked = runner.invoke(app, ["check", str(path), "--ledger", str(folder / "ledger")])
    assert (checked.exit_code, warning in checked.output) == (0, True), checked.output
    path.write_text(path.read_text().replace("reserach", "research"))
    assert "tag team" not in runner.invoke(app, ["check", str(path), "--ledger", str(folder / "ledger")]).output
    assert cost(folder, *HOUR).stderr.count("tag team") == 0


def test_what_has_no_team_and_no_tag_is_shown(folder: Path, tmp_path: Path) -> None:
    day = ("--untagged", "--period", "2026-06-01")
    shown = cost(folder, *day)
    assert shown.exit_code == 0, shown.output
    assert "$0.00 of $3.87 (0.0%) has neither a team nor a tag" in shown.output
    bare = tmp_path / "bare"
    write(bare / "ledger", [*begun(None), *fleet_events()[2:]])
    (bare / "book.toml").write_text(BOOK_TOML)
    shown = cost(bare, *day)
    assert shown.exit_code == 0, shown.output
    for text in ("run/s0", "h100-sxm", "100.0%", "[[device_tag]]"):
        assert text in shown.output
    answer = data(cost(bare, *day, "--json"))
    assert (answer["untagged_nano"], answer["untagged_percent"]) == (BILL_NANO, 100)
    (row,) = csv.DictReader(io.StringIO(cost(bare, *day, "--csv").stdout))
    assert (row["hardware"], row["cost"]) == ("run/s0", f"{Decimal(BILL_NANO).scaleb(-9):f}")
    wrong = cost(bare, *day, "--by", "team")
    assert wrong.exit_code == 2
    assert "leave out --by" in wrong.output


def test_a_closed_month_needs_no_price_book(half_closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    env = {"ROSE_LEDGER": str(half_closed / "ledger")}
    done = runner.invoke(app, ["cost", "--period", "2026-06-01..2026-06-07", "--json"], env=env)
    assert data(done)["open"] == []
    wrong = runner.invoke(app, ["cost", "--period", "2026-06-01..2026-06-08"], env=env)
    assert wrong.exit_code == 2
    assert "there is no price book" in wrong.output


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
