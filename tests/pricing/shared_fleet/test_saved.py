import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rose.cli import app
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.borrowing.comparison import CASH, LET_GO
from rose.pricing.period import Period
from rose.pricing.spend.saved import NOT_ONE_RUN_S, saved
from tests.pricing import any_event
from tests.pricing.closing.conftest import HOUR_NS, T0_NS, us
from tests.pricing.conftest import saved_in_run
from tests.pricing.shared_fleet.ledger import BOOK, RUNS, fleet_events, joined


def test_what_was_saved_counts_once_and_for_the_run_whose_borrow_it_was(root: Path) -> None:
    command = ["saved", "--json", "--ledger", str(root), "--price-book", str(root.parent / "book.toml")]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert {run["run"] for run in answer["runs"]} == {"red", "blue", "fleet"}
    shares = [run["cash_saved_nano"]["if_there_anyway"] for run in answer["runs"]]
    assert sum(shares) == answer["fleet"]["cash_saved_nano"]["if_there_anyway"]


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
    tables = [saved_in_run(root, run_id, BOOK) for run_id in RUNS[:2]]
    whole, red = (table.row(CASH) for table in tables)
    assert [table.row(LET_GO)["value"].value for table in tables] == [3_600_000_000, 0]
    answer = saved(Ledger(root), Period(T0_NS, T0_NS + 24 * HOUR_NS), BOOK)
    runs = {run.run_id: run.saving for run in answer.runs}
    cash = {run_id: saving.cash_nano[0] for run_id, saving in runs.items() if saving.cash_nano}
    assert set(cash) == set(RUNS)
    assert cash["red"] == red["value"].value
    assert (runs["fleet"].capacity_nano, runs["fleet"].why) == (0, NOT_ONE_RUN_S)
    assert cash["fleet"] >= 3_600_000_000 - 2
    assert sum(cash.values()) == whole["value"].value
    assert answer.fleet.cash_nano == (whole["value"].value, whole["value"].value)
