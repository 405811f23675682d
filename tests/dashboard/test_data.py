from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from dashboard import data
from rose import events
from rose.events import BUCKETS
from rose.ledger.writer import LedgerWriter
from rose.pricing.document import Report


@pytest.fixture
def run(ended: Path) -> data.Run:
    (run,) = data.runs(ended)
    return run


def test_time_totals_are_the_reports(ended: Path, built: Report, run: data.Run) -> None:
    totals = data.rows(ended, "dashboard/time_totals", run)
    assert totals["provisioned"].sum() == built.provisioned.value
    assert {bucket: totals[bucket].sum() for bucket in BUCKETS} == {b: built.device_time[b].value for b in BUCKETS}


def test_cost_by_step_sums_to_the_measured_cost(ended: Path, built: Report, run: data.Run) -> None:
    steps = data.in_blocks(ended, "dashboard/learning", run)
    useful = sum(int(made["useful"].value or 0) for made in built.tokens.values())
    by_step = data.cost_by_step(built.cost_per_correct["blended"].token_cost, useful, steps)
    dollars = (by_step["usd"] * by_step["accepted"]).sum()
    measured = built.cost_per_correct["blended"].measured.value
    assert measured is not None
    assert dollars / steps["accepted"].sum() == pytest.approx(measured / 1e9, rel=1e-6)
    assert dict(zip(steps["step"], steps["alpha"], strict=True)) == {
        step: figure.value for step, figure in built.accept_by_step.items()
    }


def test_steps_in_fewer_stretches_have_the_same_sums(ended: Path, run: data.Run) -> None:
    each, two = (data.in_blocks(ended, "dashboard/learning", run, blocks=blocks) for blocks in (200, 2))
    assert (each.height, two.height) == (8, 2)
    assert list(two["last_step"]) == [3, 7]
    for name in ("judged", "accepted", "stale", "tokens", "trajectories", "tokens_trained"):
        assert each[name].sum() == two[name].sum(), name
    assert two["reward"].mean() == pytest.approx(each["reward"].mean())


def test_a_long_run_is_shown_by_the_day_with_the_same_totals(
    ended: Path, run: data.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = {query for query in data._DAILY if "fleet_" not in query}
    short = {query: data.rows(ended, query, run) for query in whole}
    monkeypatch.setattr(data, "LONG", timedelta(0))
    assert run.long
    by_day = {query: data.rows(ended, query, run) for query in whole}
    for query, rows in by_day.items():
        assert rows.columns == short[query].columns, query
    assert by_day["dashboard/time_totals"].equals(short["dashboard/time_totals"])
    assert by_day["run/preemption_totals"].equals(short["run/preemption_totals"])


def test_rows_are_read_again_only_after_a_new_event(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "run", "live") as ledger:
        ledger.record(events.Run(action="started", name="first"))
        (run,) = data.runs(root)
        assert data.price(root, run) is data.price(root, run)
        before = data.mark(root)
        assert data.mark(root) == before
        ledger.record(events.Run(action="ended", name="first"))
        assert data.mark(root) != before
        assert [run.status for run in data.runs(root)] == ["ended"]
        assert data.quiet_s(root) < 60


def test_a_page_prices_by_the_book_of_every_command_or_says_why_it_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "run", "live") as ledger:
        ledger.record(events.Run(action="started", name="first"))
    (run,) = data.runs(root)
    book = data.price_book(root, run).value
    assert book is not None
    assert (book.name, book.chosen) == ("example", "from ROSE_PRICE_BOOK")
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    assert data.price_book(root, run).value is None
    assert "there is no price book" in (data.price(root, run).error or "")
