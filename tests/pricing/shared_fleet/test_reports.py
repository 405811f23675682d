import dataclasses
import json
from contextlib import closing
from pathlib import Path

import pytest

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import run_report
from rose.pricing.answers.run_report import HARVEST, HARVEST_OF_UNUSED, UNUSED, Report
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import newest_run
from tests.pricing import any_event
from tests.pricing.closing.conftest import S, us
from tests.pricing.shared_fleet.ledger import BOOK, BOOK_TEXT, RUNS, fleet_events, turn


@pytest.fixture(scope="module")
def reports(root: Path) -> dict[str, Report]:
    return {run_id: run_report.build(Ledger(root), run_id, BOOK) for run_id in RUNS}


def test_a_report_of_the_fleet_lists_what_each_run_has_of_it(reports: dict[str, Report]) -> None:
    made = reports["fleet"]
    shares = made.section.table("runs").records()
    # A run that pays for two teams has a row for each, as `rose cost --by team` has it.
    assert {(row["run"], row["team"]): row["amortized"].value for row in shares[:-1]} == {
        ("fleet", "infra"): 2_300_000_000,
        ("fleet", "chat"): 2_100_000_000,
        ("red", "team red"): 1_770_000_000,
        ("red", "chat"): 50_000_000,
        ("blue", "team blue"): 1_020_000_000,
    }
    assert list(dict.fromkeys(row["run"] for row in shares[:-1])) == list(RUNS)
    for view in ("amortized", "fully loaded"):
        total = made.section.figure("time", "fleet", view).value
        assert sum(row[view].value for row in shares[:-1]) == shares[-1][view].value == total == 7_240_000_000
    assert made.section.figure("fates", "borrowed", "generated").value == 400
    assert json.dumps(made.to_json())


def steps(made: Report) -> list[str]:
    return [row["value"].text for row in made.section.table("glance").records() if row["what"].endswith(" step")]


def test_a_fleet_of_one_rl_run_shows_the_steps_of_that_run(reports: dict[str, Report], tmp_path: Path) -> None:
    assert steps(reports["fleet"]) == []
    alone = tmp_path / "ledger"
    with LedgerWriter.open(alone, "controller", "fleet") as writer:
        for event in fleet_events():
            if "blue" not in dataclasses.asdict(event).values():
                writer.record(event, durable=False)
        writer.record(turn("red", 1501, "s0", "L", 100, trajectory_id="next"), durable=False)
        verdict = any_event.verdict(
            run_id="red", trajectory_id="next", group_id="h", reward=0.0, threshold=0.5, at_us=us(1501)
        )
        writer.record(verdict, durable=False)
    assert steps(run_report.build(Ledger(alone), "fleet", BOOK)) == ["100.0%", "0.0%"]


def test_what_reports_of_the_runs_count_sums_to_the_fleets(reports: dict[str, Report]) -> None:
    made = [reports[run_id].section for run_id in RUNS]
    for name, counts in (
        ("time leased", [2000 * S, 1000 * S, 1000 * S]),
        ("leases granted", [1, 1, 0]),
        ("leases released", [1, 1, 0]),
        ("weight syncs", [2, 1, 1]),
    ):
        assert [section.figure("events", name, "how many").value for section in made] == counts
    assert [section.figure("glance", UNUSED).value for section in made] == [200 * S, 0, 200 * S]


@pytest.mark.parametrize(("run_id", "accepted", "borrowed_s"), [("red", 300, 700), ("blue", 0, 600)])
def test_a_report_of_an_rl_run_is_of_its_own_part(
    reports: dict[str, Report], run_id: str, accepted: int, borrowed_s: int
) -> None:
    made = reports[run_id]
    assert "runs" not in made.section.parts
    assert made.run.run_id == run_id
    assert made.section.figure("fates", "borrowed", "accepted").value == accepted
    assert made.section.figure("borrow", "borrowed time", "in all").value == borrowed_s * S
    # Fully loaded it bears its part of the idle time of the devices.
    whole = made.section.table("time").row("fleet")
    assert whole["fully loaded"].value > whole["amortized"].value
    for name in (HARVEST, HARVEST_OF_UNUSED):
        harvest = made.section.figure("glance", name)
        assert harvest.value is None
        assert "the fleet's run" in str(harvest.why)


def test_where_no_run_is_named_it_is_the_newest_that_has_what_the_report_needs(root: Path) -> None:
    # It neither has a device nor made an answer.
    with LedgerWriter.open(root, "later", "later") as writer:
        writer.record(events.Run(action="started", name="later", at_us=2**51))
    with closing(catalog.connect(root)) as connection:
        assert [newest_run(connection, needs) for needs in ("device", "verdict")] == ["fleet", "red"]


def test_an_rl_run_is_priced_by_the_book_that_its_fleet_names(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    (tmp_path / "book.toml").write_text(BOOK_TEXT)
    named = {"price_book": str(tmp_path / "book.toml"), "price_book_sha256": BOOK.sha256}
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", config_json=json.dumps(named)))
        writer.record(events.Run(action="started", name="grpo", run_id="red"))
    for run_id in ("fleet", "red"):
        assert pricebook.choose(Ledger(root), None, run_id=run_id).sha256 == BOOK.sha256
