from __future__ import annotations

import io
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import polars as pl
from rich.console import Console, RenderableType

from rose.pricing.audit.explain import Question, explain
from rose.pricing.closing import period, store, tables
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import Period
from rose.pricing.closing.records import postings
from rose.pricing.closing.restate import restate
from rose.pricing.closing.statement import state
from rose.pricing.figures import BookFacts
from rose.pricing.watch import anomaly, budget
from tests.pricing.closing.conftest import BOOK, CLOSE_ID, DAY_NS, DEARER, NEXT_DAY_US, T0_NS, charges_of


def shown(parts: Iterable[RenderableType]) -> str:
    console = Console(width=100, file=io.StringIO(), highlight=False, markup=False)
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, str))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def words(text: str) -> str:
    return " ".join(text.split())


def test_a_close_and_its_corrections_are_shown(closed: Path) -> None:
    restate(closed, CLOSE_ID, "contract 18 [signed]", DEARER, by="bob", now_us=NEXT_DAY_US + 1)
    listed = words(shown(tables.closes(postings(closed))))
    assert f"{CLOSE_ID} 2026-06-01 2026-06-01T01 $3.87 1: +$0.360 $4.23" in listed
    text = words(shown(tables.statement(state(store.read(closed, CLOSE_ID), ["team", "bucket"]))))
    assert "closed 2026-06-02T00:00:00.000000Z by ann" in text
    assert "contract 18 [signed] (bob)" in text
    assert "Charges by team by bucket [amortized; USD, live]" in text
    assert "chat serving $1.98 46.8% 30 min 00.0 s 0" in text
    assert "closed $3.87 + corrections $0.360 = $4.23" in text
    plain = words(shown(tables.statement(state(store.read(closed, CLOSE_ID), [], "fully-loaded"))))
    assert "[fully loaded; USD, live]" in plain


def test_forecasts_are_shown_with_the_fleet_first(fleet: Path) -> None:
    june = period.of_month("2026-06")
    text = words(shown(tables.forecasts(budget.expected(fleet, june, BOOK, now_us=NEXT_DAY_US))))
    assert "What 2026-06 will have cost [amortized; USD, live] team spent forecast 95% interval" in text
    assert "the fleet $3.87 - - chat $2.77 - - research $1.10 - -" in text
    assert "not enough days: 1 whole days are known, and it takes 28" in text


def test_budgets_are_shown_with_their_method(fleet: Path) -> None:
    june = period.of_month("2026-06")
    for team, usd in (("chat", "1"), ("nobody", "5")):
        budget.set_budget(fleet, team, usd, june)
    text = words(shown(tables.budgets(budget.show(fleet, june, BOOK, now_us=NEXT_DAY_US))))
    assert "Budgets of 2026-06 [amortized; USD, live]" in text
    assert "chat $1.00 $2.77 $0.00 -$1.77 - - -" in text
    assert "not enough days: 1 whole days are known, and it takes 28; no charge at all: nobody" in text


def test_days_that_stand_out_are_shown_with_their_driver() -> None:
    whole = Period(T0_NS, T0_NS + 9 * DAY_NS)
    rows = [
        {"hour": datetime(2026, 6, 1) + timedelta(days=n), "ns": 10**12 * hours, "cost_nano": 10**9 * hours}
        for n, hours in enumerate([10] * 8 + [25])
    ]
    frame = charges_of(rows).with_columns(closed=pl.lit(False))
    of = Bill(frame=frame, period=whole, provenance="live", book=BookFacts.of(BOOK), verified=True, closes=())
    text = words(shown(tables.watch(anomaly.watch(of, whole))))
    assert "2 days judged (USD, live): a day stands out if" in text
    assert "not enough data for 7 days (2026-06-01 to 2026-06-07)" in text
    assert "2026-06-09: cost $25.00, +$15.00 from $10.00 on 2026-06-08, 150.0 deviations" in text
    assert "all +$15.00 $0.00 $0.00 +$15.00" in text
    assert "mostly volume" in text
    alike = anomaly.watch(of, Period(T0_NS + 7 * DAY_NS, T0_NS + 8 * DAY_NS))
    assert "No day stands out." in shown(tables.watch(alike))


def test_an_explanation_is_a_chain_of_lines(fleet: Path) -> None:
    made = explain(fleet, Question(bucket="rollout"), BOOK)
    text = shown(tables.explanation(made, with_events=True))
    assert "$0.900, as the ledger is now  [amortized; USD, live]" in text
    assert "run run, device s0, hour 2026-06-01; 3 charges" in text
    assert "<- price: $3.60 for each hour of h100-sxm" in text
    assert "   re-adds     900,000,000 x 63.8298% (accepted" in text
    assert "and 3 more sums that re-add" in text
    assert "writer test, 6 events, seq 3 to 10, in live/test/000000/" in text
    assert "its hash chain holds" in text
    assert "slices: 3 events" in text
    assert "slices: 3 events" not in shown(tables.explanation(made, with_events=False))
