"""What reports of a fleet and of its RL runs say, each of its own part."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing.run import report
from rose.pricing.run.tables import tables
from tests.pricing.closing.conftest import S
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, fleet_events, turn, us


def test_a_report_of_the_fleet_lists_what_each_run_has_of_it(root: Path) -> None:
    made = report.build(root, "fleet", BOOK)
    shares = {row.run_id: (row.team, row.amortized.value) for row in made.runs}
    assert shares == {
        "fleet": ("infra", 4_400_000_000),
        "red": ("team red", 1_820_000_000),
        "blue": ("team blue", 1_020_000_000),
    }
    assert [row.run_id for row in made.runs] == list(RUNS)
    for view in ("amortized", "fully_loaded"):
        total = getattr(made, view)["total"].value
        assert sum(getattr(row, view).value for row in made.runs) == total == 7_240_000_000
    assert made.tokens["borrowed"]["generated"].value == 400
    assert "Who shared the fleet" in [getattr(element, "title", "") for element in tables(made)]
    assert json.dumps(made.to_json())


def test_a_fleet_of_one_rl_run_shows_the_steps_of_that_run(root: Path, tmp_path: Path) -> None:
    assert report.build(root, "fleet", BOOK).accept_by_step == {}
    alone = tmp_path / "ledger"
    with LedgerWriter.open(alone, "controller", "fleet") as writer:
        for event in fleet_events():
            if "blue" not in dataclasses.asdict(event).values():
                writer.record(event, durable=False)
        writer.record(turn("red", 1501, "s0", "L", 100, trajectory_id="next"), durable=False)
        verdict = events.Verdict(
            run_id="red",
            trajectory_id="next",
            group_id="h",
            step=1,
            verifier="v",
            reward=0.0,
            threshold=0.5,
            accepted=False,
            at_us=us(1501),
        )
        writer.record(verdict, durable=False)
    for run_id in ("fleet", "red"):
        made = report.build(alone, run_id, BOOK)
        assert {step: figure.value for step, figure in made.accept_by_step.items()} == {0: 1.0, 1: 0.0}
        assert [figure.text for figure in made.accept_by_step.values()] == ["100.0%", "0.0%"]


def test_what_reports_of_the_runs_count_sums_to_the_fleets(root: Path) -> None:
    """The lease is granted once, for red, and each run has half of its time."""
    fleet, red, blue = (report.build(root, run_id, BOOK) for run_id in RUNS)
    assert [made.leases["leased"].value for made in (fleet, red, blue)] == [2000 * S, 1000 * S, 1000 * S]
    assert [made.leases["granted"].value for made in (fleet, red, blue)] == [1, 1, 0]
    assert [made.leases["released"].value for made in (fleet, red, blue)] == [1, 1, 0]
    assert [made.leased_unused.value for made in (fleet, red, blue)] == [200 * S, 0, 200 * S]
    assert [made.syncs.count.value for made in (fleet, red, blue)] == [2, 1, 1]


@pytest.mark.parametrize(("run_id", "accepted", "borrowed_s"), [("red", 300, 700), ("blue", 0, 600)])
def test_a_report_of_an_rl_run_is_of_its_own_part(root: Path, run_id: str, accepted: int, borrowed_s: int) -> None:
    made = report.build(root, run_id, BOOK)
    assert made.runs == ()
    assert made.run.run_id == run_id
    assert made.tokens["borrowed"]["accepted"].value == accepted
    assert made.borrow.borrowed.value == borrowed_s * S
    # Fully loaded it bears its part of the idle time of the devices.
    assert made.fully_loaded["total"].value > made.amortized["total"].value  # type: ignore[operator]
    assert made.harvest_share.value is None
    assert "the fleet's run" in str(made.harvest_share.why)
