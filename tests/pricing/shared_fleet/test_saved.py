"""What was saved counts once, for the run whose borrow it was, and what was let go for the fleet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose import events
from rose.cli import app
from rose.ledger.writer import LedgerWriter
from rose.pricing.borrowing.report import CASH, saved_in_run
from rose.pricing.closing.period import Period
from rose.pricing.spend.saved import LET_GO, RunSaved, saved
from tests.long_form import usual
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, S
from tests.pricing.shared_fleet.ledger import BOOK, BOOK_TEXT, RUNS, fleet_events, us


def test_what_was_saved_counts_once_and_for_the_run_whose_borrow_it_was(root: Path) -> None:
    command = ["saved", "--json", "--ledger", str(root), "--price-book", str(root.parent / "book.toml")]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {run["run"] for run in json.loads(done.stdout)["runs"]} == {"red", "blue"}


@pytest.mark.parametrize("decided_for", usual(["red"], long=["fleet", "red"]))
def test_what_was_let_go_of_a_fleet_is_in_its_report_and_in_the_sum_of_what_was_saved(
    tmp_path: Path, decided_for: str
) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in fleet_events():
            writer.record(event, durable=False)
        for action, at_s in (("joined", -7200), ("left", -3600)):
            writer.record(
                events.Device(
                    action=action,
                    device_id="r1",
                    t_ns=T0_NS + at_s * S,
                    pool="rollout",
                    device_class="h100-sxm",  # type: ignore[arg-type]
                    at_us=us(at_s),
                )
            )
        decided = events.ScaleDown(
            device_id="r1",
            device_class="h100-sxm",
            decision="let_go",
            t0_ns=T0_NS,
            t1_ns=T0_NS + HOUR_NS,
            decided_by="Kim",
            run_id=decided_for,
            at_us=us(1),
        )
        writer.record(decided)
    made = {run_id: saved_in_run(root, run_id, BOOK) for run_id in RUNS}
    cash = {run_id: table.row(CASH) for run_id, table in made.items()}
    whole, red, blue = (cash[run_id]["value"].value or 0 for run_id in RUNS)
    assert "$3.60 of dedicated devices that recorded decisions let go" in cash["fleet"]["rests on"]
    counted = "dedicated devices that recorded decisions let go count for the fleet, not for a run on it"
    assert all(counted in cash[run_id]["rests on"] for run_id in RUNS[1:])
    book, kept = tmp_path / "book.toml", dict[str, RunSaved]()
    book.write_text(BOOK_TEXT)
    runs = {run.run_id: run for run in saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), kept=kept).runs}
    assert {run_id: run.cash_nano for run_id, run in runs.items()} == {
        "fleet": (3_600_000_000, 3_600_000_000),
        "red": (red, red),
        "blue": (blue, blue),
    }
    assert (runs["fleet"].capacity_nano, runs["fleet"].added_nano, runs["fleet"].why) == (0, 0, LET_GO)
    assert 3_600_000_000 + red + blue == pytest.approx(whole, abs=2)
    # Asked for by name, it counts itself.
    (fleet,) = saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), run_id="fleet", kept=kept).runs
    assert fleet.cash_nano == (whole, whole)
