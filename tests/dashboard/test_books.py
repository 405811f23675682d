from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from dashboard import books
from rose import events
from rose.pricing import alerts
from rose.pricing.closing import bill, close, period, restate, store
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook
from rose.pricing.watch import anomaly, budget

BOOK = pricebook.parse(pricebook.load("example").text.replace('name = "example"', 'name = "ours"'), "ours.toml")
JUNE = period.of_month("2026-06")
CLOSE = "2026-06-simulated-1"
DAY_S = 86_400


@pytest.fixture(scope="module")
def closed(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ended run's month, closed and corrected once, with two budgets of which one does not last."""
    root = shutil.copytree(ended, tmp_path_factory.mktemp("closed") / "ledger")
    assert close.close(root, JUNE, BOOK, by="finance").close_id == CLOSE
    dearer = BOOK.text.replace("usd_per_gb = 0.02", "usd_per_gb = 0.03").replace(BOOK.version, "dearer")
    restate.restate(root, CLOSE, "the carrier raised its price", pricebook.parse(dearer, "dearer.toml"), by="audit")
    budget.set_budget(root, "research", "0.40", JUNE)
    budget.set_budget(root, "chat", "0.10", JUNE)
    return root


def labelled(app: Any, kind: str, label: str) -> Any:
    (found,) = [each for each in getattr(app.main, kind) if each.label == label]
    return found


@pytest.mark.long
def test_a_close_its_correction_and_what_it_was_before(
    closed: Path, open_page: Any, values: Any, page_text: Any
) -> None:
    now, app = store.read(closed, CLOSE), open_page(closed, "books")
    assert not app.exception
    assert not app.error
    first, second = (posting.cost_nano for posting in now.posted)
    assert (first, second) == (now.charges.total_nano, 160_000)
    assert list(app.dataframe[0].value["nano-dollars"]) == [first + second]
    assert list(app.dataframe[0].value["total"]) == [(first + second) / 1e9]
    assert values(app) == {
        "As it was closed": format_usd(first),
        "Corrections since": "$0.000160",
        "As it is known": format_usd(first + second),
    }
    assert "the carrier raised its price" in list(app.dataframe[1].value["why"])
    assert f"closed {first:,} + corrections 160,000 = {first + second:,}" in page_text(app)
    *rows, whole = app.dataframe[2].value["nano-dollars"]
    assert sum(rows) == whole == first + second
    as_of = labelled(app, "selectbox", "As it was known")
    app = as_of.set_value(now.posted[0].posted_ns).run()
    assert not app.exception
    assert list(app.dataframe[0].value["corrections"]) == [0]
    assert values(app)["As it is known"] == format_usd(first)
    app = labelled(app, "radio", "View").set_value("fully-loaded").run()
    assert app.dataframe[1].value["nano-dollars"].iloc[-1] == first


@pytest.mark.long
def test_budgets_are_those_of_the_books(closed: Path, open_page: Any) -> None:
    app = open_page(closed, "books")
    found = budget.show(closed, JUNE, BOOK)
    table = app.dataframe[-1].value
    assert list(table["team"]) == [each.team for each in found] == ["chat", "research"]
    for column, field in (("spent", "spent"), ("left", "left"), ("forecast", "forecast")):
        assert list(table[column]) == [getattr(each, field).value / 1e9 for each in found]
    assert list(table["chance of going over"]) == ["100.0%", "0.0%"]
    assert len(app.get("vega_lite_chart")) == 1


def test_what_was_frozen_is_checked_and_a_changed_byte_is_found(closed: Path, tmp_path: Path, open_page: Any) -> None:
    root = shutil.copytree(closed, tmp_path / "ledger")
    app = open_page(root, "books")
    app = labelled(app, "button", "Check every frozen byte").click().run()
    assert "1 closes, 1 corrections" in app.success[0].value
    frozen = root / "closes" / CLOSE / "charges.parquet"
    frozen.write_bytes(frozen.read_bytes()[:-1] + b"?")
    app.run()
    assert not app.exception
    assert "was changed after it was frozen" in app.error[0].value
    app = labelled(app, "button", "Check every frozen byte").click().run()
    assert sum("was changed after it was frozen" in error.value for error in app.error) >= 2
    assert not app.success


def test_the_bill_of_a_closed_month_is_what_was_closed(
    closed: Path, open_page: Any, values: Any, page_text: Any
) -> None:
    app = open_page(closed, "bill")
    total = store.read(closed, CLOSE).frame["cost_nano"].sum()
    assert values(app)["The bill"] == values(app)["Of it in closed periods"] == format_usd(total)
    assert CLOSE in page_text(app)
    (button,) = [button for button in app.button if button.label == "Prepare workbook"]
    assert "Download rose-simulated-2026-06.xlsx" in [b.label for b in button.click().run().get("download_button")]


def test_nothing_closed_and_no_budget_is_said_with_what_to_do(ended: Path, open_page: Any) -> None:
    app = open_page(ended, "books")
    assert not app.exception
    assert not app.error
    told = "\n".join(info.value for info in app.info)
    assert "No period is closed yet" in told
    assert "rose books budget" in told
    assert "Not enough data for 1 of the 1 days" in told


@pytest.mark.long
def test_a_day_that_stands_out_is_named(tmp_path: Path, open_page: Any, page_text: Any, kit: Any) -> None:
    def device(action: Any, name: str, day: int) -> events.Device:
        return events.Device(
            action=action,
            device_id=name,
            t_ns=kit.T0_NS + day * DAY_S * kit.S,
            pool="rollout",
            device_class="h100-sxm",
            at_us=kit.us(day * DAY_S),
        )

    days = 9
    made = [
        device("joined", "r0", 0),
        device("joined", "r1", days - 1),
        device("left", "r0", days),
        device("left", "r1", days),
    ]
    end = events.Run(action="ended", name="little fleet", at_us=kit.us(days * DAY_S))
    root = kit.write(tmp_path / "ledger", [kit.started(), *made, end])
    app = open_page(root, "books")
    of = bill.bill(tmp_path / "ledger", JUNE, BOOK)
    found = anomaly.watch(of, JUNE).anomalies
    assert [(each.day, each.metric) for each in found] == [(date(2026, 6, 9), "cost")]
    assert not app.exception
    assert f"**2026-06-09: cost {found[0].value.text}**" in page_text(app)
    assert f"from {found[0].median.text} on {found[0].compared_with}" in page_text(app)
    assert list(app.dataframe[-1].value["day"]) == ["2026-06-09"]
    assert "2026-06-09: cost" in page_text(open_page(root, "overview"))


def test_alerts_that_hold_are_those_of_the_last_round(ended: Path, tmp_path: Path) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    assert books.alerting(root).value == []
    entry = alerts.Entry(rule="r", to="mail", key="r/k", title="spent", level=None, at_us=1, error="refused")
    (root / alerts.FILE).write_text(json.dumps([asdict(entry)]))
    assert books.alerting(root).value == [entry]
    (root / alerts.FILE).write_text("[{}]")
    assert "remove it" in str(books.alerting(root).error)


def test_months_are_those_of_the_span_and_the_current_one_newest_first() -> None:
    def label(of: list[period.Period]) -> list[str]:
        return [month.label for month in of]

    span = period.parse("2026-06-30", "2026-08-02", None)
    assert label(books.months(span, datetime(2026, 12, 5, tzinfo=UTC))) == ["2026-12", "2026-08", "2026-07", "2026-06"]
    assert label(books.months(span, datetime(2026, 7, 5, tzinfo=UTC))) == ["2026-08", "2026-07", "2026-06"]
    to_midnight = period.parse("2026-06-30", "2026-08-01", None)
    assert label(books.months(to_midnight, datetime(2026, 7, 5, tzinfo=UTC))) == ["2026-07", "2026-06"]


def test_only_days_that_are_over_are_judged() -> None:
    assert books.over(JUNE, datetime(2026, 6, 1, 5, tzinfo=UTC)) is None
    assert books.over(JUNE, datetime(2026, 6, 4, 5, tzinfo=UTC)) == period.parse("2026-06-01", "2026-06-04", None)
    assert books.over(JUNE, datetime(2026, 9, 4, tzinfo=UTC)) == JUNE
