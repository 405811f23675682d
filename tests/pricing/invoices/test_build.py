from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import get_args

import openpyxl
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from rose.pricing.audit.check import check
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.closing.restate import restate
from rose.pricing.export import workbook
from rose.pricing.export.bill import of_close
from rose.pricing.invoices import build, page
from rose.pricing.invoices.invoice import Invoice, Kind
from rose.pricing.invoices.summary import summary
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.choice import NoPriceBookError
from rose.pricing.spend.cost import Question, ask
from rose.pricing.spend.tables import rules_text
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, FIRST_HOUR, T0_NS, S, close, fleet_events, write
from tests.pricing.invoices.conftest import DAY_NANO, DEARER, DEARER_DAY_NANO, FIRST, FIRST_ID, OURS, SECOND, SECOND_ID
from tests.pricing.random_ledger import BOOK as RANDOM_BOOK
from tests.pricing.random_ledger import MIDNIGHT_NS, ledgers
from tests.pricing.recorded import HOUR_NS, PORTIONS, Made

#: A ledger takes a while to write: few of them, and one that fails is shown as it is.
FEW = settings(
    max_examples=max(1, int(os.environ.get("IDENTITY_EXAMPLES", "4")) // 4),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.reuse, Phase.generate],
)


def total(made: tuple[Invoice, ...]) -> int:
    return sum(invoice.total_nano for invoice in made)


def test_the_invoices_of_a_close_sum_to_it_and_what_is_posted_since_is_invoiced_later(books: Path) -> None:
    closed = store.read(books, SECOND_ID)
    made = build.invoices(books, SECOND)
    charges = sum(invoice.sum_nano("charge") for invoice in made)
    assert charges == closed.charges.total_nano == 2 * DEARER_DAY_NANO
    assert charges + sum(invoice.later_nano for invoice in made) == charge_algebra.total(closed.frame) == 2 * DAY_NANO
    assert [invoice.team for invoice in made] == ["chat", "research"]
    assert all(invoice.final for invoice in made)


def test_a_correction_is_on_the_invoice_of_the_period_it_was_posted_in_with_its_own(books: Path) -> None:
    correction = 2 * (DEARER_DAY_NANO - DAY_NANO)
    first, second = build.invoices(books, FIRST), build.invoices(books, SECOND)
    assert total(first) == 2 * DAY_NANO, "what was sent stays as it was"
    assert sum(invoice.later_nano for invoice in first) == correction
    assert total(second) == 2 * DEARER_DAY_NANO + correction
    lines = [line for invoice in second for line in invoice.of_kind("correction")]
    assert {(line.to_json()["original_period"], line.detail) for line in lines} == {
        ("2026-06-01-to-2026-06-03", "contract 18 <b>")
    }
    assert {line.to_json()["posting"] for line in lines} == {f"{FIRST_ID}/1"}
    assert sum(line.amount_nano for line in lines) == correction


@pytest.mark.long
def test_an_invoice_stays_as_it_was_when_its_hours_and_those_that_it_corrects_are_closed_again(
    books: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(books, tmp_path / "ledger"))
    sent = [build.invoices(root, period) for period in (FIRST, SECOND)]
    assert total(sent[1]) == 2 * DEARER_DAY_NANO + 2 * (DEARER_DAY_NANO - DAY_NANO)
    # The whole time takes the first days over, corrections with them.
    whole = Period(FIRST.from_ns, SECOND.to_ns)
    close(root, whole, DEARER, now_us=(SECOND.to_ns + 3 * DAY_NS) // 1000)
    assert [build.invoices(root, period) for period in (FIRST, SECOND)] == sent
    (again,) = {invoice.closed_again_in for invoice in build.invoices(root, FIRST)}
    assert again == (build.invoices(root, whole)[0].close.close_id,)  # type: ignore[union-attr]
    text = page.render(build.invoices(root, FIRST)[0])
    assert f"in the charges of {again[0]}; if that was closed later, also on the invoice" in text
    assert total(build.invoices(root, whole)) == 4 * DEARER_DAY_NANO


def test_lines_are_of_run_and_bucket_with_time_and_price(books: Path) -> None:
    research = build.of_team(build.invoices(books, FIRST), "research")
    (line,) = research.lines
    assert (line.kind, line.what, line.run_id, line.unit) == ("charge", "rollout", "run", "device-hours")
    assert (line.detail, line.quantity) == ("h100-sxm, serving pool, 1-year reserved", 2)
    assert line.price_nano == 3_600_000_000
    assert research.runs["run"].tags == {"team": "research", "serving_team": "chat"}
    assert (research.issuer, research.contact) == ("Compute platform", "costs@example.org")
    assert research.number == f"{FIRST_ID}-research"


def test_every_line_says_in_which_pool(tmp_path: Path) -> None:
    write(tmp_path / "ledger", fleet_events())
    (tmp_path / "book.toml").write_text(BOOK_TOML)
    made = build.invoices(tmp_path / "ledger", FIRST_HOUR, str(tmp_path / "book.toml"))
    details = {line.what: line.detail for invoice in made for line in invoice.lines}
    assert (details["transfer"], details["energy"]) == ("inter-region, serving pool", "h100-sxm, serving pool")


@pytest.mark.long
def test_an_open_period_is_a_draft_by_the_prices_that_are_named(books: Path, tmp_path: Path) -> None:
    path = tmp_path / "ours.toml"
    path.write_text(OURS.text)
    # A closed day with its correction, and one that nothing was charged in.
    period = Period(SECOND.to_ns - NS_PER_DAY, SECOND.to_ns + NS_PER_DAY)
    made = build.invoices(books, period, str(path), now_us=T0_NS // 1000)
    # And the correction that was posted within it.
    assert total(made) == DAY_NANO + 2 * (DEARER_DAY_NANO - DAY_NANO)
    assert {invoice.marks for invoice in made} == {("DRAFT",)}
    assert made[0].number == "2026-06-04-to-2026-06-06-live-draft-chat"
    example = build.invoices(books, period, "example", now_us=T0_NS // 1000)
    assert example[0].marks == ("DRAFT", "EXAMPLE PRICES, not yours")


@pytest.mark.long
def test_a_period_without_a_charge_has_the_corrections_that_were_posted_in_it(books: Path) -> None:
    # The first correction was posted on the third day, and the second two days after the second period.
    later = Period(SECOND.to_ns + DAY_NS, SECOND.to_ns + 3 * DAY_NS)
    made = build.invoices(books, later, now_us=later.to_ns // 1000)
    sent = build.invoices(books, SECOND)
    assert {invoice.team: invoice.total_nano for invoice in made} == {
        invoice.team: invoice.later_nano for invoice in sent
    }
    assert {line.kind for invoice in made for line in invoice.lines} == {"correction"}
    assert [invoice.marks for invoice in made] == [("DRAFT",)] * 2
    assert "No charge of the period" in page.render(made[0])
    assert total(build.invoices(books, later, currency="USD", provenance="live")) == total(made)
    with pytest.raises(PricingError, match="nothing is charged"):
        build.invoices(books, Period(later.to_ns, later.to_ns + DAY_NS))


@pytest.mark.long
def test_a_period_that_has_corrections_alone_is_closed_and_then_its_invoices_are_final(
    books: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(books, tmp_path / "ledger"))
    later = Period(SECOND.to_ns + DAY_NS, SECOND.to_ns + 3 * DAY_NS)
    drafts = build.invoices(root, later, now_us=later.to_ns // 1000)
    closed = close(root, later, OURS, now_us=later.to_ns // 1000)
    assert (closed.charges.total_nano, closed.charges.stays, closed.verified) == (0, (), True)
    made = build.invoices(root, later)
    assert all(invoice.final for invoice in made)
    assert {invoice.team: invoice.lines for invoice in made} == {invoice.team: invoice.lines for invoice in drafts}
    assert (
        total(made)
        == 2 * (DAY_NANO - DEARER_DAY_NANO)
        == sum(invoice.later_nano for invoice in build.invoices(root, SECOND))
    )
    summed = summary(made)
    assert (summed.close, summed.total_nano) == (closed.posted[0], total(made))
    assert not check(root).problems
    # It is closed: neither again, nor is there anything to correct.
    with pytest.raises(PricingError, match="lies in"):
        close(root, later, OURS, now_us=later.to_ns // 1000)
    assert restate(root, closed.close_id, "nothing came", OURS) is None
    empty = Period(later.to_ns, later.to_ns + DAY_NS)
    with pytest.raises(PricingError, match="nothing can be priced"):
        close(root, empty, OURS, now_us=empty.to_ns // 1000)


@pytest.mark.long
def test_open_charges_that_no_book_prices_are_not_left_off_beside_a_correction(
    unclosed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    root = Path(shutil.copytree(unclosed, tmp_path / "ledger"))
    close(root, FIRST, OURS, now_us=(FIRST.to_ns + S) // 1000)
    assert restate(root, FIRST_ID, "dearer", DEARER, now_us=(FIRST.to_ns + DAY_NS) // 1000)
    with pytest.raises(NoPriceBookError):
        build.invoices(root, SECOND)
    later = Period(SECOND.to_ns, SECOND.to_ns + DAY_NS)
    assert restate(root, FIRST_ID, "cheaper", OURS, now_us=later.from_ns // 1000)
    assert total(build.invoices(root, later)) == 2 * (DAY_NANO - DEARER_DAY_NANO)


RULES = """
[[shared_cost]]
name = "network"
usd_per_month = 3000.01
split = "usage"
source = "contract 4"
source_date = 2026-05-01

[[shared_cost]]
name = "idle time"
share_of = "idle"
shares = { research = 0.7, chat = 0.3 }
source = "agreed"
source_date = 2026-05-01

[[credit]]
name = "launch"
usd = 400.10
valid_from = 2026-06-01
source = "letter of May"
source_date = 2026-05-01
"""


@pytest.fixture(scope="module")
def ruled(unclosed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both periods closed by a book with rules; the first one corrected after the second was closed."""
    root = Path(shutil.copytree(unclosed, tmp_path_factory.mktemp("ruled") / "ledger"))
    book, dearer = (pricebook.parse(plain.text + RULES, "ruled.toml") for plain in (OURS, DEARER))
    for period in (FIRST, SECOND):
        close(root, period, book, now_us=(period.to_ns + DAY_NS) // 1000)
    assert restate(root, FIRST_ID, "dearer", dearer, now_us=(SECOND.to_ns + 2 * DAY_NS) // 1000)
    return root


@pytest.mark.long
def test_shared_costs_and_credits_are_lines_and_all_is_close_with_them(ruled: Path) -> None:
    invoices = {period: build.invoices(ruled, period) for period in (FIRST, SECOND)}
    shared = credits = 0
    for period, made in invoices.items():
        sums = {kind: sum(invoice.sum_nano(kind) for invoice in made) for kind in ("charge", "shared", "credit")}
        # Two of the thirty days of June.
        assert sums["shared"] in (200_000_666_666, 200_000_666_667)
        assert sums["charge"] == store.read(ruled, FIRST_ID if period is FIRST else SECOND_ID).charges.total_nano
        assert total(made) == sums["charge"] + sums["shared"] + sums["credit"]
        shared, credits = shared + sums["shared"], credits + sums["credit"]
    assert credits == -400_100_000_000, (
        "what the first period took, the second has no more, and a correction changes none"
    )
    first = build.of_team(invoices[FIRST], "research")
    assert {(line.what, line.detail) for line in first.of_kind("shared")} == {
        ("network", "$3000.01 a month, by usage"),
        ("idle time", "idle cost moved, research 0.7, chat 0.3"),
    }
    says = "`rose cost` has them by its corrected charges"
    assert says in page.render(first)
    assert says not in page.render(build.of_team(invoices[SECOND], "research"))
    for period, corrected in ((FIRST, True), (SECOND, False)):
        cost = ask(ruled, Question(period=period, by=("team",)))
        assert any("invoices keep them" in text for text in rules_text(cost)) is corrected
    euros = build.invoices(ruled, FIRST, currency="EUR")
    assert total(euros) == round(total(invoices[FIRST]) * 10_000 / 10_843)


def test_the_workbook_of_a_close_re_adds_to_its_invoices(ruled: Path, tmp_path: Path) -> None:
    for close_id, period in ((FIRST_ID, FIRST), (SECOND_ID, SECOND)):
        workbook.write(of_close(ruled, close_id), tmp_path / f"{close_id}.xlsx")
        book = openpyxl.load_workbook(tmp_path / f"{close_id}.xlsx", data_only=True)
        header, *rows, footer = list(book["Invoices"].iter_rows(min_row=5, values_only=True))
        assert header[1:] == ("charges", "corrections of earlier periods", "shared costs", "credits", "invoiced")
        made = build.invoices(ruled, period)
        assert {row[0]: row[-1] for row in rows} == {one.team: pytest.approx(one.total_nano / 1e9) for one in made}
        sums = (*(sum(one.sum_nano(kind) for one in made) for kind in get_args(Kind)), total(made))
        assert footer[1:] == pytest.approx([nano / 1e9 for nano in sums])
        (line,) = (row for row in book["Summary"].values if row[0] == "on the invoices of the period")
        assert line[2] == str(total(made))


@pytest.mark.long
def test_what_was_shared_and_taken_off_stays_when_the_hours_are_closed_again(ruled: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(ruled, tmp_path / "ledger"))
    sent = [build.invoices(root, period) for period in (FIRST, SECOND)]
    close(root, Period(FIRST.from_ns, SECOND.to_ns), DEARER, now_us=(SECOND.to_ns + 3 * DAY_NS) // 1000)
    assert [build.invoices(root, period) for period in (FIRST, SECOND)] == sent


@pytest.mark.long
def test_a_draft_has_the_rules_of_the_books_that_closed_a_part_of_it(ruled: Path, tmp_path: Path) -> None:
    path = tmp_path / "unruled.toml"
    path.write_text(OURS.text)
    period = Period(SECOND.from_ns, SECOND.to_ns + NS_PER_DAY)
    draft, cost = build.invoices(ruled, period, str(path)), ask(ruled, Question(period=period, by=("team",)), str(path))
    sums = [sum(invoice.sum_nano(kind) for invoice in draft) for kind in ("shared", "credit")]
    assert sums == [cost.total.shared_nano, cost.total.credits_nano]
    assert sums[0] > 0 > sums[1]


def test_another_currency_sums_as_the_whole_does(books: Path) -> None:
    dollars, euros = build.invoices(books, SECOND), build.invoices(books, SECOND, currency="EUR")
    assert total(euros) == round(total(dollars) * 10_000 / 10_843)
    assert {invoice.stamp.currency for invoice in euros} == {"EUR"}
    assert euros[0].to_json()["exchange_rate"]["usd_per_unit"] == "1.0843"
    assert euros[0].number == f"{dollars[0].number}-EUR", "two pages, two numbers"


@pytest.mark.long
def test_a_close_is_converted_by_the_book_that_was_frozen_with_it_and_by_no_other(books: Path, tmp_path: Path) -> None:
    other, none = tmp_path / "other.toml", OURS.text.partition("[[exchange_rate]]")[0]
    other.write_text(OURS.text.replace("1.0843", "1.2"))
    assert build.invoices(books, SECOND, str(other), currency="EUR") == build.invoices(books, SECOND, currency="EUR")
    root = Path(shutil.copytree(books, tmp_path / "ledger"))
    whole = Period(FIRST.from_ns, SECOND.to_ns)
    closed = close(root, whole, pricebook.parse(none, "none.toml"), now_us=(SECOND.to_ns + 3 * DAY_NS) // 1000)
    with pytest.raises(PricingError, match=f"no rate of exchange for EUR .* frozen with {closed.close_id}"):
        build.invoices(root, whole, str(other), currency="EUR")


@pytest.mark.parametrize(
    ("period", "options", "says"),
    [
        (Period(FIRST.from_ns, SECOND.to_ns), {}, "was closed as 2026-06-01-to-2026-06-03-live-1, 2026-06-03-to"),
        (SECOND, {"currency": "GBP"}, "no rate of exchange for GBP on 2026-06-04"),
        (SECOND, {"provenance": "replay"}, "nothing is charged"),
    ],
)
def test_what_cannot_be_invoiced_is_refused(books: Path, period: Period, options: dict[str, str], says: str) -> None:
    with pytest.raises(PricingError, match=says):
        build.invoices(books, period, **options)  # type: ignore[arg-type]


@pytest.mark.long
def test_what_rests_on_a_ledger_that_did_not_verify_is_invoiced_only_if_asked_and_marked(
    books: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(books, tmp_path / "ledger"))
    (root / "live" / "test" / "000000" / "foreign.txt").write_text("not ours")
    within_second_us = (FIRST.to_ns + 3 * DAY_NS // 2) // 1000
    assert restate(root, FIRST_ID, "again", OURS, allow_unverified=True, now_us=within_second_us)
    for period, name in ((FIRST, FIRST_ID), (SECOND, f"correction 2 of {FIRST_ID}")):
        with pytest.raises(PricingError, match=f"^{name} was made from a ledger that did not verify"):
            build.invoices(root, period)
        made = build.invoices(root, period, allow_unverified=True)
        assert {invoice.marks for invoice in made} == {("UNVERIFIED LEDGER",)}


def test_a_team_that_has_no_charge_is_an_error(books: Path) -> None:
    with pytest.raises(PricingError, match="has team 'reserch'; did you mean 'research'"):
        build.of_team(build.invoices(books, FIRST), "reserch")


@FEW
@given(made=ledgers())
def test_on_any_ledger_every_nano_dollar_is_invoiced_once(made: Made) -> None:
    text = RANDOM_BOOK + RULES.replace("2026-06-01", "2026-02-01")
    book = pricebook.parse(text, "awkward.toml")
    dear = pricebook.parse(text.replace("1.700000001", "1.9").replace('version = "1"', 'version = "2"'), "dear")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "ledger"
        made.write(root, 0, 0)
        first = Period(MIDNIGHT_NS - 48 * HOUR_NS, MIDNIGHT_NS)
        second = Period(MIDNIGHT_NS, MIDNIGHT_NS + 48 * HOUR_NS)
        closes = []
        for period in (first, second):
            try:
                closes.append(close(root, period, book, now_us=period.to_ns // 1000 + 1, with_open_runs=True).close_id)
            except PricingError:
                continue  # nothing was charged in it
            if period is first:
                made.write(root, 1, PORTIONS - 1)
                restate(root, closes[0], "late, and dearer", dear, now_us=period.to_ns // 1000 + 2)
        posted = {close_id: store.read(root, close_id) for close_id in closes}
        for closed in posted.values():
            invoices = build.invoices(root, Period(closed.charges.from_ns, closed.charges.to_ns))
            kinds: tuple[Kind, ...] = ("charge", "correction", "shared", "credit")
            charges, corrections, shared, credits = (
                sum(invoice.sum_nano(kind) for invoice in invoices) for kind in kinds
            )
            assert charges == closed.charges.total_nano
            assert total(invoices) == charges + corrections + shared + credits
            assert -400_100_000_000 <= credits <= 0 < shared
            assert charges + sum(invoice.later_nano for invoice in invoices) == charge_algebra.total(closed.frame)
            assert corrections == sum(
                other.posted[-1].cost_nano
                for other in posted.values()
                if len(other.posted) > 1 and closed.charges.from_ns <= other.posted[-1].posted_ns < closed.charges.to_ns
            )
