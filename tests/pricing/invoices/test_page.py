from __future__ import annotations

import dataclasses
import re
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.invoices import build, page
from rose.pricing.invoices.invoice import Invoice, Line
from tests.pricing.invoices.conftest import SECOND, SECOND_ID


class Page(HTMLParser):
    """The elements of a page, its text, and whether every one is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.words, self.tags, self.opened = "", set[str](), list[str]()
        self.feed(text)
        assert self.opened == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {"src", "href", "onload", "onclick"} & {name for name, _ in attrs}
        if tag != "meta":
            self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.opened and self.opened[-1] != "style":
            self.words += " ".join(data.split()) + " "


@pytest.fixture(scope="module")
def invoice(books: Path) -> Invoice:
    return build.of_team(build.invoices(books, SECOND), "research")


def amount(text: str) -> Decimal:
    return Decimal(text.replace("$", "").replace(",", ""))


def test_a_final_page_has_what_a_team_lead_asks(invoice: Invoice) -> None:
    text = page.render(invoice)
    shown = Page(text)
    assert shown.tags.isdisjoint({"script", "img", "link", "iframe", "object"})
    assert "http" not in text
    assert "url(" not in text
    assert "DRAFT" not in shown.words
    close = invoice.close
    assert close is not None
    for words in (
        f"{SECOND_ID}-research",
        "team research",
        "Compute platform",
        "costs@example.org",
        "2026-06-03 until 2026-06-05",
        "Issued 2026-06-06",
        "Currency USD",
        "Tags: serving_team: chat, team: research",
        "2.000 device-hours",
        "$3.96",
        "Corrections of earlier periods",
        "rollout, of 2026-06-01-to-2026-06-03",
        "contract 18 <b>",
        "by hand 2",
        invoice.stamp.book.sha256,
        close.sha256,
        "-$0.720, on the invoice of the period in which",
    ):
        assert words in shown.words, words
    assert text == page.render(invoice), "the same invoice is the same text"
    assert "size: letter" in page.render(invoice, paper="letter")
    assert "size:" not in re.sub("font-size:", "", text)


@pytest.mark.parametrize(
    ("provenance", "verified", "closed", "marks"),
    [
        ("live", True, False, ["DRAFT"]),
        ("simulated", True, True, ["SIMULATED"]),
        ("live", False, True, ["UNVERIFIED LEDGER"]),
    ],
)
def test_what_is_not_final_is_marked_on_every_page(
    invoice: Invoice, provenance: str, verified: bool, closed: bool, marks: list[str]
) -> None:
    stamp = dataclasses.replace(invoice.stamp, provenance=provenance, verified=verified)
    text = page.render(dataclasses.replace(invoice, stamp=stamp, close=invoice.close if closed else None))
    (watermark,) = re.findall(r'<div class="watermark" aria-hidden="true">(.*?)</div>', text)
    assert re.findall("<span>(.*?)</span>", watermark) == marks
    assert ".watermark { position: fixed;" in text, "what is fixed is printed on every page"
    assert "NOT FINAL" in text
    assert re.search(r'class="warning"', text)


_NANO = st.integers(-(10**13), 10**13) | st.integers(-30_000_000, 30_000_000)


@given(
    st.lists(
        st.tuples(st.sampled_from(["charge", "correction", "shared", "credit"]), st.none() | st.just("run"), _NANO)
    )
)
def test_amounts_add_up_as_they_are_shown(invoice: Invoice, drawn: list[tuple[str, str | None, int]]) -> None:
    drawn.sort(key=lambda line: (line[0], line[1] or ""))
    lines = tuple(Line(kind=kind, what="w", amount_nano=nano, run_id=run) for kind, run, nano in drawn)  # type: ignore[arg-type]
    shown = page.shown(dataclasses.replace(invoice, lines=lines))
    cents = Decimal(max(1, 10 ** -Decimal(amount(shown.total)).as_tuple().exponent))  # type: ignore[operator]
    assert abs(amount(shown.total) - Decimal(sum(nano for *_, nano in drawn)).scaleb(-9)) * cents <= Decimal("0.5")
    assert sum(amount(of_kind) for of_kind, _ in shown.kinds.values()) == amount(shown.total)
    for kind, (of_kind, parts) in shown.kinds.items():
        assert sum(amount(part.amount) for part in parts) == amount(of_kind)
        for part in parts:
            assert sum(amount(row.amount) for row in part.rows) == amount(part.amount)
        exact = [line.amount_nano for line in lines if line.kind == kind]
        rows = [amount(row.amount) for part in parts for row in part.rows]
        assert all(abs(row * 10**9 - nano) * cents < 10**9 for row, nano in zip(rows, exact, strict=True))


def test_cents_go_to_the_largest_remainders(invoice: Invoice) -> None:
    lines = tuple(
        Line(kind="charge", what="serving", amount_nano=nano, run_id="run")
        for nano in (333_335_333_333, 333_335_333_333, 666_666_666_666)
    )
    made = page.shown(dataclasses.replace(invoice, lines=lines))
    ((_, (part,)),) = made.kinds.values()
    assert made.total == part.amount == "$1,333.34"
    assert [row.amount for row in part.rows] == ["$333.34", "$333.33", "$666.67"]


def test_a_small_invoice_is_not_all_zeros(invoice: Invoice) -> None:
    line = Line(kind="charge", what="serving", amount_nano=1_234_567, run_id="run")
    assert page.shown(dataclasses.replace(invoice, lines=(line,))).total == "$0.00123"
