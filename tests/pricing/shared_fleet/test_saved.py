"""What was saved counts once, for the run whose borrow it was, and what was let go for the fleet."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose.cli import app
from rose.ledger.writer import LedgerWriter
from rose.pricing.borrowing.report import CASH, saved_in_run
from rose.pricing.closing.period import Period
from rose.pricing.spend.saved import LET_GO, RunSaved, saved
from tests.pricing import any_event
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, us
from tests.pricing.shared_fleet.ledger import BOOK, BOOK_TEXT, RUNS, fleet_events, joined


def test_what_was_saved_counts_once_and_for_the_run_whose_borrow_it_was(root: Path) -> None:
    command = ["saved", "--json", "--ledger", str(root), "--price-book", str(root.parent / "book.toml")]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {run["run"] for run in json.loads(done.stdout)["runs"]} == {"red", "blue"}


@pytest.mark.long
def test_what_was_let_go_of_a_fleet_is_in_its_report_and_in_the_sum_of_what_was_saved(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in fleet_events():
            writer.record(event, durable=False)
        for action, at_s in (("joined", -7200), ("left", -3600)):
            writer.record(joined("r1", at_s, action=action, pool="rollout"))
        decided = any_event.scale_down(
            device_id="r1", decision="let_go", t0_ns=T0_NS, t1_ns=T0_NS + HOUR_NS, run_id="red", at_us=us(1)
        )
        writer.record(decided)
    whole, red = (saved_in_run(root, run_id, BOOK).row(CASH) for run_id in RUNS[:2])
    assert "$3.60 of dedicated devices that recorded decisions let go" in whole["rests on"]
    counted = "dedicated devices that recorded decisions let go count for the fleet, not for a run on it"
    assert counted in red["rests on"]
    book, kept = tmp_path / "book.toml", dict[str, RunSaved]()
    book.write_text(BOOK_TEXT)
    runs = {run.run_id: run for run in saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), kept=kept).runs}
    assert set(runs) == set(RUNS)
    cash = {run_id: run.cash_nano[0] for run_id, run in runs.items() if run.cash_nano}
    assert (cash["fleet"], cash["red"]) == (3_600_000_000, red["value"].value)
    assert (runs["fleet"].capacity_nano, runs["fleet"].added_nano, runs["fleet"].why) == (0, 0, LET_GO)
    assert sum(cash.values()) == pytest.approx(whole["value"].value, abs=2)
    # Asked for by name, it counts itself.
    (fleet,) = saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), run_id="fleet", kept=kept).runs
    assert fleet.cash_nano == (whole["value"].value, whole["value"].value)
