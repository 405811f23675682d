import csv
import hashlib
import json
import re
from decimal import Decimal
from pathlib import Path

import polars as pl
from typer.testing import Result

from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import of_close
from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML
from tests.pricing.conftest import WEEK_CLOSE_ID, data, refused, rose, words
from tests.pricing.reconcile.conftest import BOOK_TEXT, LEDGER_NANO, charge, fleet_of_four, whole, write_csv

__all__ = ["fleet_of_four"]

HOUR = ("--period", "2026-06-01T00")
DAYS = ("--period", "2026-06-15", "--before", "2026-06-14")


def run(ledger: Path, *arguments: str, book: str = BOOK_TOML) -> Result:
    priced = []
    if book:
        path = ledger.parent / f"{hashlib.sha256(book.encode()).hexdigest()[:8]}.toml"
        path.write_text(book)
        priced = ["--price-book", str(path)]
    return rose(*arguments, *priced, ledger=ledger, ROSE_PRICE_BOOK="")


def test_a_period_by_team_and_bucket(fleet_kept: Path, tmp_path: Path) -> None:
    by = ("cost", *HOUR, "--by", "team", "--by", "bucket")
    answer = data(run(fleet_kept, *by, "--json"))
    assert sum(line["cost_nano"] for line in answer["lines"]) == answer["bill_nano"] == BILL_NANO
    assert {line["team"] for line in answer["lines"]} == {"chat", "research"}
    assert answer["open"] == [{"from": "2026-06-01T00:00:00.000000Z", "to": "2026-06-01T01:00:00.000000Z"}]
    shown = run(fleet_kept, *by)
    for text in ("2026-06-01 00:00 to 2026-06-01 01:00, UTC", "open, priced now", "research", "$3.87", "100.0%"):
        assert text in shown.output
    assert run(fleet_kept, *by, "--out", str(tmp_path / "a.csv")).exit_code == 0
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert sum(Decimal(row["cost"]) for row in rows) == Decimal(BILL_NANO).scaleb(-9)
    assert {row["currency"] for row in rows} == {"USD"}


def test_a_closed_month_needs_no_price_book(half_closed_kept: Path) -> None:
    ledger = half_closed_kept / "ledger"
    assert data(run(ledger, "cost", "--period", "2026-06-01..2026-06-07", "--json", book=""))["open"] == []
    refused(run(ledger, "cost", "--period", "2026-06-01..2026-06-08", book=""), "no price book")


def test_a_close_is_a_page_to_send(half_closed_kept: Path, tmp_path: Path) -> None:
    ledger, page = half_closed_kept / "ledger", tmp_path / "week.html"
    by_team = ("cost", "--by", "team", "--close", WEEK_CLOSE_ID)
    done = run(ledger, *by_team, "--out", str(page), book="")
    assert done.exit_code == 0, done.output
    closed = of_close(Ledger(ledger), WEEK_CLOSE_ID)
    answer = data(run(ledger, *by_team, "--json", book=""))
    teams = dict(closed.frame.group_by("team").agg(pl.col("cost_nano").sum()).iter_rows())
    assert {line["team"]: line["cost_nano"] for line in answer["lines"]} == teams
    assert (answer["total"]["closed_nano"], answer["open"]) == (closed.posted[0].cost_nano, [])
    text = page.read_text()
    for team, nano in teams.items():
        assert re.search(rf"<tr [^>]*><td>{team}</td>.*>{nano:,}</td></tr>", text)
    for posting in closed.posted:
        assert posting.sha256 in text
    assert hashlib.sha256(page.read_bytes()).hexdigest() in done.output
    before = data(run(ledger, *by_team, "--as-of", "2026-06-22T12:00Z", "--json", book=""))
    assert before["total"]["corrections_nano"] == 0
    for arguments, says in (
        ((*by_team, "--out", str(page)), "exists"),
        (("cost", "--close", "2026-07-live-1"), "unknown close '2026-07-live-1'"),
        ((*by_team, "--period", "2026-06"), "leave out period"),
        (("cost", "--as-of", "2026-06-22"), "needs a close"),
        (("cost", "--out", "page.txt"), "page.txt must end in .csv or .html"),
    ):
        refused(run(ledger, *arguments, book=""), says)


def test_what_cannot_be_answered_is_said(fleet_kept: Path) -> None:
    for arguments, says in (
        (("--team", "reserch"), "did you mean 'research'?"),
        (("--tag", "team=reserch"), "did you mean 'research'?"),
        (("--tag", "team"), "write NAME=VALUE"),
        (("--by", "buckets"), "did you mean 'bucket'?"),
        (("--tz", "Mars"), "time zone 'Mars' is not known"),
    ):
        refused(run(fleet_kept, "cost", *HOUR, *arguments), says)


def test_a_forecast_of_the_fleet_and_of_every_team(fleet_kept: Path) -> None:
    month = ("forecast", "--month", "2026-06")
    fleet, *teams = data(run(fleet_kept, *month, "--json"))
    assert (fleet["team"], fleet["forecast"]["value"]) == (None, BILL_NANO)
    assert sum(row["spent"]["value"] for row in teams) == BILL_NANO
    assert "the fleet $3.87" in words(run(fleet_kept, *month))
    refused(run(fleet_kept, *month, "--team", "caht"), "did you mean 'chat'?")


def test_a_day_of_more_rollouts_is_told_from_the_day_before(weeks_kept: Path) -> None:
    answer = data(run(weeks_kept, "changes", *DAYS, "--by", "bucket", "--json"))
    groups = {group["group"]: group for group in answer["groups"]}
    # Two hours more of rollouts at $3.60 for as many tokens, and two hours less idle: the bill is the same.
    assert (answer["change_nano"], answer["before_nano"]) == (0, 86_400_000_000)
    assert groups["rollout"]["effects_nano"]["device time per token"] == 7_200_000_000
    assert groups["idle"]["effects_nano"]["volume"] == -7_200_000_000
    assert sum(answer["effects_nano"].values()) == 0
    shown = run(weeks_kept, "changes", *DAYS, "--by", "bucket", "--top", "1")
    for text in ("2026-06-15, UTC, compared with 2026-06-14, UTC", "It cost the same.", "$7.20", "1 others"):
        assert text in shown.output
    for arguments, says in (
        (("--period", "2026-06-15", "--before", "2026-06-15"), "overlap: give periods that do not overlap"),
        ((*DAYS, "--by", "colour"), "changes cannot be shown by 'colour'"),
        (("--period", "soon"), "'soon' is not a period"),
        (("--period", "2026-06-01", "--before", "2026-05-31"), "nothing is charged"),
    ):
        refused(run(weeks_kept, "changes", *arguments), says)


def test_all_of_a_first_month_is_new(weeks_kept: Path) -> None:
    answer = data(run(weeks_kept, "changes", "--period", "2026-06", "--json"))
    assert answer["before"]["period"] == {"from": "2026-05-01T00:00:00.000000Z", "to": "2026-06-01T00:00:00.000000Z"}
    assert (answer["before_nano"], answer["change_nano"]) == (0, answer["cost_nano"])
    assert sum(answer["effects_nano"].values()) == answer["cost_nano"] > 0
    assert "All cost is new" in run(weeks_kept, "changes", "--period", "2026-06").output


def test_an_invoice_is_reconciled_and_what_is_wrong_said(fleet_of_four: Path, tmp_path: Path) -> None:
    path = write_csv(tmp_path / "vendor.csv", [*whole(), charge("GPU-0", 2, "6.00", None)])
    days = ("--period", "2026-06-01..2026-06-03")

    def reconcile(*arguments: str) -> Result:
        return run(fleet_of_four, "reconcile", *arguments, book=BOOK_TEXT)

    done = reconcile(str(path), *days, "--json")
    assert done.exit_code == 1, done.output
    answer = json.loads(done.stdout)
    assert (answer["total"]["ledger_nano"], answer["total"]["difference_nano"]) == (LEDGER_NANO, 6_000_000_000)
    assert (answer["tolerance"], answer["within"]) == (0.005, False)
    assert "within the tolerance of 0.01" in words(reconcile(str(path), *days, "--tolerance", "1%"))
    for arguments, says in (
        ((*days, "--tolerance", "0.5"), "--tolerance '0.5' is not a percentage from 0% to 100%; write it as 0.5%"),
        ((*days, "--tolerance", "101%"), "is not a percentage"),
        (("--period", "2026-06-01T05"), "give a period of whole UTC days"),
        (("--period", "2026-05"), "nothing is charged"),
    ):
        refused(reconcile(str(path), *arguments), says)
    wrong = reconcile(str(write_csv(tmp_path / "wrong.csv", [charge(BilledCost="\x1b[2Jten")])), *days)
    refused(wrong, "row 1: BilledCost must not be")
    assert "\x1b[2J" not in wrong.output
    refused(reconcile(str(tmp_path / "none.csv"), *days), "does not exist")
