"""An invoice as one HTML page that needs nothing else and prints on A4 and Letter; every amount adds up as it is shown.

[D] The total is rounded to cents once. Its parts are rounded to sum to it, by largest remainder, and the lines of each
part to sum to that one: so an amount is shown less than a cent from what it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import groupby

from rose.clock import utc
from rose.pricing.closing.charge_algebra import UNALLOCATED
from rose.pricing.closing.period import moment
from rose.pricing.export import facts, markup
from rose.pricing.figures import AMORTIZED
from rose.pricing.invoices.invoice import Invoice, Kind, Line
from rose.pricing.money import NS_PER_HOUR, format_money, rounded
from rose.pricing.spend.currency import OWN

TEMPLATE = "invoice.html.j2"
#: Nano-units in one unit of a currency.
_NANO = 10**9
_TITLES: Mapping[Kind, str] = {
    "charge": "Charges of the period",
    "correction": "Corrections of earlier periods",
    "shared": "Shared costs",
    "credit": "Credits",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A line as it is shown."""

    what: str
    detail: str
    quantity: str
    price: str
    amount: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Lines below a heading, with their sum: those of a run, or all of a kind that is no charge of the period."""

    title: str
    says: str
    rows: tuple[Row, ...]
    amount: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """All amounts as they are shown: rows sum to their part, the parts of a kind to it, and kinds to the total."""

    total: str
    kinds: Mapping[Kind, tuple[str, tuple[Part, ...]]]


def render(invoice: Invoice, *, paper: str | None = None) -> str:
    """The page. `paper` is the size it is printed on, `A4` or `letter`; None leaves that to the printer.

    The same invoice gives the same text.
    """
    named = "Invoice" if invoice.final else "Invoice, not final" if invoice.close else "Draft of an invoice"
    return markup.page(
        TEMPLATE,
        invoice=invoice,
        paper=paper,
        named=named,
        warnings=_warnings(invoice),
        about=list(_about(invoice)),
        says=_sentence(invoice),
        shown=shown(invoice),
        titles=_TITLES,
        rests_on=list(_rests_on(invoice)),
        words=list(_words(invoice)),
    )


def shown(invoice: Invoice) -> Shown:
    """What is charged, rounded to be shown."""
    places, currency = _places(invoice), invoice.stamp.currency
    unit = Fraction(_NANO, 10**places)

    def divided(groups: Sequence[Sequence[Line]], whole: int) -> list[int]:
        parts = {place: sum(line.amount_nano for line in lines) / unit for place, lines in enumerate(groups)}
        return list(rounded(parts, whole).values())

    total = round(invoice.total_nano / unit)
    kinds = [kind for kind in _TITLES if invoice.of_kind(kind)]
    made: dict[Kind, tuple[str, tuple[Part, ...]]] = {}
    for kind, of_kind in zip(kinds, divided([invoice.of_kind(kind) for kind in kinds], total), strict=True):
        groups = [tuple(lines) for _, lines in groupby(invoice.of_kind(kind), key=lambda line: line.run_id)]
        parts = []
        for lines, of_part in zip(groups, divided(groups, of_kind), strict=True):
            amounts = [_money(whole, places, currency) for whole in divided([[line] for line in lines], of_part)]
            rows = (_row(line, amount, currency, int(unit)) for line, amount in zip(lines, amounts, strict=True))
            title, says = _heading(invoice, kind, lines[0].run_id)
            parts.append(Part(title=title, says=says, rows=tuple(rows), amount=_money(of_part, places, currency)))
        made[kind] = _money(of_kind, places, currency), tuple(parts)
    return Shown(total=_money(total, places, currency), kinds=made)


def _heading(invoice: Invoice, kind: Kind, run_id: str | None) -> tuple[str, str]:
    """Title and words of a part."""
    if kind != "charge":
        return _TITLES[kind], ""
    label = invoice.runs.get(run_id or "")
    if label is None:
        return f"Run {run_id}" if run_id else "No run", ""
    tags = ", ".join(f"{name}: {value}" for name, value in sorted(label.tags.items()) if value is not None)
    return f"Run {label.name} ({run_id})" if label.name else f"Run {run_id}", f"Tags: {tags}" if tags else "No tags"


def _places(invoice: Invoice) -> int:
    """Decimals of an amount: cents, or what shows three digits of the largest where all are below one unit."""
    largest = max((abs(line.amount_nano) for line in invoice.lines), default=0)
    largest = max(largest, abs(invoice.total_nano))
    return 2 if largest >= _NANO or not largest else min(9, 2 - Decimal(largest).scaleb(-9).adjusted())


def _money(whole: int, places: int, currency: str) -> str:
    text = f"{Decimal(abs(whole)).scaleb(-places):,.{places}f}"
    return f"{'-' if whole < 0 else ''}{'$' if currency == OWN else currency + ' '}{text}"


def _row(line: Line, amount: str, currency: str, unit_nano: int) -> Row:
    quantity, price, what, detail = "", "", line.what, line.detail
    shown_quantity, shown_price = line.shown_quantity(unit_nano), line.shown_price(unit_nano)
    if shown_quantity is not None and shown_price is not None:
        quantity, price = f"{shown_quantity:,f} {line.unit}", format_price(shown_price, currency)
    if (posted := line.posting) is not None:
        what = f"{line.what}, of {posted.period.label}"
        detail = f"{line.detail} ({posted.close_id}/{posted.number}, posted {_day(posted.posted_ns)})"
    return Row(what=what, detail=detail, quantity=quantity, price=price, amount=amount)


def format_price(price: Decimal, currency: str) -> str:
    """A price for one unit, at least to cents."""
    whole, _, decimals = f"{price:,f}".partition(".")
    text = f"{whole}.{decimals.rstrip('0'):0<2}"
    return f"${text}" if currency == OWN else f"{currency} {text}"


def _sentence(invoice: Invoice) -> str:
    """What it is for, in a line."""
    ns = sum(line.count or 0 for line in invoice.lines if line.unit == "device-hours")
    if not invoice.of_kind("charge") and invoice.of_kind("correction"):
        return "No charge of the period: what was posted within it to hours before it."
    runs = len({line.run_id for line in invoice.of_kind("charge")})
    used = f"{ns / NS_PER_HOUR:,.1f} device-hours in {runs:,} {'run' if runs == 1 else 'runs'}"
    if invoice.team == UNALLOCATED:
        return f"{used} that no team pays for: no tag of the runs, or of the price book, says whose they are."
    return f"{used}."


def _warnings(invoice: Invoice) -> list[str]:
    open_ = ["DRAFT: the period is not closed, and what it costs may still change. Not for payment."]
    return [*(open_ if invoice.close is None else []), *facts.warnings(invoice.stamp)]


def _about(invoice: Invoice) -> Iterator[tuple[str, str]]:
    period = invoice.period
    yield "From", invoice.issuer or f"the fleet's owner (price book {invoice.stamp.book.name})"
    yield "To", "nobody: unallocated" if invoice.team == UNALLOCATED else f"team {invoice.team}"
    yield "Period", f"{_instant(period.from_ns)} until {_instant(period.to_ns)} UTC"
    yield "Issued" if invoice.close else "As of", f"{_instant(invoice.made_ns)} UTC"
    yield "Currency", invoice.stamp.currency
    yield "Questions to", invoice.contact or "who sent you this; the price book names no contact"


def _rests_on(invoice: Invoice) -> Iterator[tuple[str, str]]:
    stamp, book, close = invoice.stamp, invoice.stamp.book, invoice.close
    yield "Price book", f"{book.name} {book.version}"
    yield "Price book's SHA-256", book.sha256
    if close is not None:
        yield "Close", f"{close.close_id}, {utc(close.posted_ns)}, by {close.posted_by}"
        yield "Close's SHA-256", close.sha256
    posted = (line.posting for line in invoice.lines if line.posting is not None)
    yield from {
        f"Correction {posting.close_id}/{posting.number}": f"SHA-256 {posting.sha256}" for posting in posted
    }.items()
    yield "Provenance", stamp.provenance
    yield "Ledger", facts.ledger(stamp, "")
    yield "Exact total", f"{invoice.total_nano:,} nano-units of {stamp.currency} (1e-9 of one)"
    if invoice.rate is not None:
        yield "Exchange rate", invoice.rate.text
    again = ", ".join(invoice.closed_again_in)
    if again:
        yield "Closed again", f"in {again}, whose invoices charge these hours anew: pay them once"
    if invoice.later_nano:
        later = format_money(invoice.later_nano, stamp.currency)
        where = f"in the charges of {again}; if that was closed later, also " if again else ""
        yield "Posted since", f"{later}, {where}on the invoice of the period in which it was posted"
    if invoice.corrected and (invoice.of_kind("shared") or invoice.of_kind("credit")):
        as_closed = "as the period was closed; `rose cost` has them by its corrected charges"
        yield "Shared costs and credits", as_closed


def _words(invoice: Invoice) -> Iterator[tuple[str, str]]:
    used = {line.what for line in invoice.lines if line.kind in ("charge", "correction")} | {AMORTIZED}
    used |= {"correction"} if invoice.of_kind("correction") else set()
    used |= {UNALLOCATED} if invoice.team == UNALLOCATED else set()
    yield from (pair for pair in facts.DEFINITIONS if pair[0] in used)


def _instant(ns: int) -> str:
    return f"{moment(ns):%Y-%m-%d %H:%M}".removesuffix(" 00:00")


def _day(ns: int) -> str:
    return f"{moment(ns):%Y-%m-%d}"
