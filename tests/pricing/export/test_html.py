from __future__ import annotations

import dataclasses
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

from rose.pricing.closing import period
from rose.pricing.closing.bill import bill as bill_of
from rose.pricing.document import Report, figures
from rose.pricing.export import bill, context, drilldown, facts, html
from rose.pricing.export.bill import Bill
from rose.pricing.export.context import Before, Context, Point, TeamBudget
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.watch import budget
from tests.pricing.export.conftest import HOUR_NS, NAME, PERIOD

BEFORE = Before(name="the period before, 2026-02", total_nano=10**9, by_bucket={"serving": 9 * 10**8, "sync": 10**8})
CONTEXT = Context(
    before=BEFORE,
    months=("2026-02", "2026-03"),
    budgets=(TeamBudget(team="research", month="2026-03", budget_nano=5 * 10**9, spent_nano=7 * 10**9),),
    course=(
        Point(label="2026-02-27", cost_nano=10**9, before=True),
        Point(label="2026-02-28", cost_nano=2 * 10**9, before=False),
    ),
)
NO_CONTEXT = Context(before=Before(name="the run before", why="no run of its provenance began earlier"))


class Page(HTMLParser):
    """The text of a page, its elements, and whether every one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


@pytest.fixture(scope="module")
def bill_page(close_bill: Bill, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("html") / "b.html"
    html.write_bill(close_bill, path, CONTEXT)
    return path.read_text(encoding="utf-8")


def test_a_page_needs_nothing_but_itself(bill_page: str) -> None:
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script|<link", bill_page)
    assert "@media print" in bill_page


def test_the_ledger_s_text_is_no_markup(period_bill: Bill, tmp_path: Path) -> None:
    html.write_bill(period_bill, tmp_path / "b.html", NO_CONTEXT)
    text = (tmp_path / "b.html").read_text()
    page = Page(text)
    assert "script" not in page.tags
    assert f"Run {NAME} (busy), not closed" in page.words
    assert "&lt;script&gt;" in text


def test_a_close_shows_every_drill_down(bill_page: str, close_bill: Bill) -> None:
    page = Page(bill_page)
    assert f"Closed period {close_bill.close_id}" in page.words
    for table in drilldown.tables(close_bill):
        assert table.title in page.words
    assert f"{close_bill.charges.total_nano:,}" in page.words
    assert f"{close_bill.total_nano:,}" in page.words
    assert "svg" in page.tags
    assert "live" in page.words
    assert sum("USD, live" in word for word in page.words) > len(drilldown.tables(close_bill))


def test_a_run_shows_every_figure_of_its_report(sample_report: Report, tmp_path: Path) -> None:
    done = html.write_run(sample_report, tmp_path / "r.html", NO_CONTEXT)
    page = Page((tmp_path / "r.html").read_text())
    shown = list(figures(sample_report.to_json()))
    assert done.rows == len(shown) > 100
    for name, figure in shown:
        assert name in page.words
        assert figure["text"] in page.words
        if figure["value"] is not None:
            assert str(figure["value"]) in page.words
    # What the terminal shows, too.
    for title in ("At a glance", "Where the fleet's time and money went", "Serving latency", "Devices"):
        assert title in page.words
    assert any("prompts x0.1" in word for word in page.words)


def test_figures_not_to_be_trusted_are_under_a_banner(sample_report: Report, period_bill: Bill, tmp_path: Path) -> None:
    assert 'role="alert"' not in html._page("t", period_bill.stamp, [], [])
    for n, stamp in enumerate(
        dataclasses.replace(sample_report.stamp, **changed)  # type: ignore[arg-type]
        for changed in ({"verified": False}, {"provenance": "simulated"})
    ):
        html.write_run(dataclasses.replace(sample_report, stamp=stamp), tmp_path / f"r{n}.html", NO_CONTEXT)
        text = (tmp_path / f"r{n}.html").read_text()
        assert text.index('role="alert"') < text.index("<section>")
        assert ("UNVERIFIED LEDGER", "SIMULATED")[n] in text


def test_a_page_says_up_to_when_the_ledger_was_verified(
    sample_report: Report, close_bill: Bill, tmp_path: Path
) -> None:
    html.write_run(sample_report, tmp_path / "r.html", NO_CONTEXT, verification="verified until now: sound")
    assert "verified; now verified until now: sound" in (tmp_path / "r.html").read_text()
    html.write_bill(close_bill, tmp_path / "b.html", CONTEXT)
    assert f"verified; now {close_bill.verification}" in (tmp_path / "b.html").read_text()


def test_the_same_report_is_the_same_bytes(sample_report: Report, close_bill: Bill, tmp_path: Path) -> None:
    for write, what in ((html.write_run, sample_report), (html.write_bill, close_bill)):
        write(what, tmp_path / "a.html", CONTEXT, force=True)  # type: ignore[operator]
        write(what, tmp_path / "b.html", CONTEXT, force=True)  # type: ignore[operator]
        assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_rows_that_a_page_leaves_out_are_counted(
    close_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "ROWS_SHOWN", 2)
    html.write_bill(close_bill, tmp_path / "b.html", CONTEXT)
    page = Page((tmp_path / "b.html").read_text())
    table = drilldown.tables(close_bill)[1]
    assert any(
        f"{len(table.rows) - 2:,} more rows are in the workbook and in the total." in word for word in page.words
    )


def test_a_page_opens_with_what_it_cost_and_what_came_before(bill_page: str, close_bill: Bill) -> None:
    total, lead = close_bill.total_nano, bill_page[: bill_page.index("<dl>")]
    assert f"This period cost {format_usd(total)}, corrections included" in lead
    assert f"{format_usd(total - 10**9)} ({(total - 10**9) / 10**9:.1%}) more than the period before" in lead
    assert "research is $2.00 over its budget of 2026-03" in lead
    assert re.search(r"Borrowing put .* of serving devices to rollouts", lead)
    page = Page(bill_page)
    assert {"Beside what came before", "The course of the cost", "Budgets"} <= set(page.words)
    assert bill_page.count('fill="#a9c4d8"') == 1
    assert bill_page.count('<tr class="alarm">') == 1, "the budget that did not last"


def test_without_a_time_before_a_page_says_why(sample_report: Report, tmp_path: Path) -> None:
    html.write_run(sample_report, tmp_path / "r.html", NO_CONTEXT)
    text = (tmp_path / "r.html").read_text()
    lead = text[: text.index("<dl>")]
    assert "This run cost" in lead
    assert f"Cash saved: {sample_report.savings.cash_saved.text}" in lead
    assert f"Capacity avoided (hypothetical, on no bill): {sample_report.savings.capacity_avoided.text}" in lead
    assert "cannot be compared with the run before: no run of its provenance began earlier" in lead


def test_every_symbol_of_a_page_is_defined_and_what_auditors_want_is_in_its_appendix(
    sample_report: Report, close_bill: Bill, bill_page: str, tmp_path: Path
) -> None:
    html.write_run(sample_report, tmp_path / "r.html", NO_CONTEXT)
    for text in (bill_page, (tmp_path / "r.html").read_text()):
        body, appendix = text.split("Appendix", 1)
        assert "SHA-256" not in body
        assert "SHA-256" in appendix
        for symbol, meaning in facts.SYMBOLS:
            assert f"<td>{symbol}</td><td>{meaning}</td>" in body
    body = bill_page.split("Appendix", 1)[0]
    assert f"{close_bill.total_nano:,}" not in body
    assert "What the devices did, by UTC day" not in body


@pytest.mark.long
def test_the_context_of_a_period_is_the_time_before_it(busy: Path, book: PriceBook) -> None:
    whole = bill.of_period(busy, book, from_ns=PERIOD.from_ns, to_ns=PERIOD.to_ns)
    later = bill.of_period(busy, book, from_ns=PERIOD.from_ns + 2 * HOUR_NS, to_ns=PERIOD.to_ns)
    surroundings = context.of_bill(later)
    assert surroundings.before.total_nano == whole.total_nano - later.total_nano
    assert sum((surroundings.before.by_bucket or {}).values()) == surroundings.before.total_nano
    assert [point.before for point in surroundings.course] == [True, True, False, False]
    assert sum(point.cost_nano for point in surroundings.course) == whole.total_nano
    assert surroundings.months == ("2026-03",)
    first = context.of_bill(whole).before
    assert first.total_nano is None
    assert "no device time was provisioned in" in first.why


@pytest.mark.long
def test_budgets_stand_beside_what_their_month_cost(closed: tuple[Path, str], tmp_path: Path, book: PriceBook) -> None:
    root = tmp_path / "ledger"
    shutil.copytree(closed[0], root)
    budget.set_budget(root, "research", "5", period.of_month("2026-02"), by="lead")
    surroundings = context.of_bill(bill.of_close(root, closed[1]))
    month = bill_of(root, period.of_month("2026-02"), book).frame.filter(pl.col("team") == "research")
    assert [(b.team, b.month, b.budget_nano, b.spent_nano) for b in surroundings.budgets] == [
        ("research", "2026-02", 5 * 10**9, month["cost_nano"].sum())
    ]


@pytest.mark.long
def test_a_run_stands_beside_the_run_before(sample_kept: Path, sample_report: Report) -> None:
    book = pricebook.load("example")
    surroundings = context.of_run(sample_kept, "run", book, provenance=sample_report.stamp.provenance)
    assert surroundings.before.total_nano is None
    assert "no run of its provenance began earlier" in surroundings.before.why
