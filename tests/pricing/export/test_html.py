from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rose.pricing.document import Report, figures
from rose.pricing.export import drilldown, html
from rose.pricing.export.bill import Bill
from rose.pricing.run import report
from tests.pricing.export.conftest import NAME


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
    html.write_bill(close_bill, path)
    return path.read_text(encoding="utf-8")


@pytest.fixture
def built(sample: Path) -> Report:
    return report.build(sample, "run")


def test_a_page_needs_nothing_but_itself(bill_page: str) -> None:
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script|<link", bill_page)
    assert "@media print" in bill_page


def test_the_ledger_s_text_is_no_markup(period_bill: Bill, tmp_path: Path) -> None:
    html.write_bill(period_bill, tmp_path / "b.html")
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


def test_a_run_shows_every_figure_of_its_report(built: Report, tmp_path: Path) -> None:
    done = html.write_run(built, tmp_path / "r.html")
    page = Page((tmp_path / "r.html").read_text())
    shown = list(figures(built.to_json()))
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


def test_figures_not_to_be_trusted_are_under_a_banner(built: Report, period_bill: Bill, tmp_path: Path) -> None:
    assert 'role="alert"' not in html._page("t", period_bill.stamp, [], [])
    for n, stamp in enumerate(
        dataclasses.replace(built.stamp, **changed)  # type: ignore[arg-type]
        for changed in ({"verified": False}, {"provenance": "simulated"})
    ):
        html.write_run(dataclasses.replace(built, stamp=stamp), tmp_path / f"r{n}.html")
        text = (tmp_path / f"r{n}.html").read_text()
        assert text.index('role="alert"') < text.index("<section>")
        assert ("UNVERIFIED LEDGER", "SIMULATED")[n] in text


def test_a_page_says_up_to_when_the_ledger_was_verified(built: Report, close_bill: Bill, tmp_path: Path) -> None:
    html.write_run(built, tmp_path / "r.html", verification="verified until now: sound")
    assert "verified; now verified until now: sound" in (tmp_path / "r.html").read_text()
    html.write_bill(close_bill, tmp_path / "b.html")
    assert f"verified; now {close_bill.verification}" in (tmp_path / "b.html").read_text()


def test_the_same_report_is_the_same_bytes(built: Report, close_bill: Bill, tmp_path: Path) -> None:
    for write, what in ((html.write_run, built), (html.write_bill, close_bill)):
        write(what, tmp_path / "a.html", force=True)  # type: ignore[operator]
        write(what, tmp_path / "b.html", force=True)  # type: ignore[operator]
        assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_rows_that_a_page_leaves_out_are_counted(
    close_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "ROWS_SHOWN", 2)
    html.write_bill(close_bill, tmp_path / "b.html")
    page = Page((tmp_path / "b.html").read_text())
    table = drilldown.tables(close_bill)[1]
    assert any(
        f"{len(table.rows) - 2:,} more rows are in the workbook and in the total." in word for word in page.words
    )
