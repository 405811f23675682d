from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dashboard import bar, data
from dashboard.answers import prices
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
    by_step = prices.cost_by_step(built.cost_per_correct["blended"].token_cost, useful, steps)
    dollars = (by_step["usd"] * by_step["accepted"]).sum()
    measured = built.cost_per_correct["blended"].measured.value
    assert measured is not None
    assert dollars / steps["accepted"].sum() == pytest.approx(measured / 1e9, rel=1e-6)
    assert dict(zip(steps["step"], steps["alpha"], strict=True)) == {
        step: figure.value for step, figure in built.accept_by_step.items()
    }


def test_steps_in_fewer_stretches_have_the_same_sums(ended: Path, run: data.Run) -> None:
    steps, halves = (data.in_blocks(ended, "dashboard/learning", run, blocks=blocks) for blocks in (200, 2))
    assert (steps.height, halves.height) == (8, 2)
    assert list(halves["last_step"]) == [3, 7]
    for name in ("judged", "accepted", "stale", "tokens", "trajectories", "tokens_trained"):
        assert steps[name].sum() == halves[name].sum(), name
    assert halves["reward"].mean() == pytest.approx(steps["reward"].mean())


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


class Made:
    """Something that takes memory."""


def test_what_was_kept_of_an_older_state_of_the_ledger_is_let_go(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    kept: list[tuple[int, weakref.ref[Made]]] = []
    with LedgerWriter.open(root, "w", "run", "live") as ledger:
        for head in range(4):
            ledger.record(events.Run(action="started", name=f"{head}"))
            for large in (False, True):
                # A key that no later state asks for again, as the window of a run that goes on.
                made = data.kept(Made, root, "made", head, large=large)
                assert made is data.kept(Made, root, "made", head, large=large)
                assert made.value is not None
                kept.append((head, weakref.ref(made.value)))
            del made
    gc.collect()
    assert [head for head, made in kept if made() is not None] == [3, 3]


def test_a_run_that_is_too_old_to_be_listed_opens_by_its_id(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    root, count = tmp_path / "ledger", bar.RUNS_MAX + 3
    names = [f"run-{number}" for number in range(count)]
    started = {"kind": "run", "action": "started", "provenance": "live"}
    with LedgerWriter.open(root, "w", "fleet", "live") as ledger:
        at_us = pa.array(range(10**15, 10**15 + count))
        columns = {name: pa.array([value] * count) for name, value in started.items()}
        ledger.append(pa.table({**columns, "run_id": names, "name": names, "at_us": at_us}))
    assert (len(data.runs(root)), data.run_count(root)) == (bar.RUNS_MAX, count)
    assert [run.run_id for run in data.runs(root, "run-1")][-2:] == ["run-3", "run-1"]
    app = open_page(root, "fleet", run="run-1")
    assert not app.exception
    assert not any("left out" in warning.value for warning in app.warning)
    assert any("run-1" in text.value for text in app.markdown)
    assert f"Run, newest {bar.RUNS_MAX} of {count}" in [box.label for box in app.selectbox]


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


def test_what_is_called_none_is_not_nothing(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    LedgerWriter.open(root, "writer", "run").close()
    assert data.kept(lambda: "of every team", root, "spent", None).value == "of every team"
    assert data.kept(lambda: "of the team None", root, "spent", "None").value == "of the team None"
