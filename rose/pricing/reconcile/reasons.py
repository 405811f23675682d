"""Why the two sides of a line differ, as far as the line tells: what is missing, hours, or the price of an hour."""

from __future__ import annotations

from fractions import Fraction

from rose.pricing.money import NS_PER_HOUR, format_ns, format_usd
from rose.pricing.reconcile.compare import DEVICE_TIME, Line

#: Hours, or the price, are called the reason where they make up this share of what both move the amount by.
_MAIN_SHARE = Fraction(4, 5)


def parts(line: Line) -> tuple[int, int] | None:
    """The difference as (what other hours make at the ledger's price, what another price makes), nano-units.

    They sum to the difference. None where hours are not known on both sides, or a side has nothing.
    """
    if line.item != DEVICE_TIME or not line.invoice_ns or not line.ledger_ns or not line.ledger_nano:
        return None
    hours = round(Fraction(line.invoice_ns - line.ledger_ns, line.ledger_ns) * line.ledger_nano)
    return hours, line.difference_nano - hours


def reason(line: Line, tolerance: Fraction) -> str:
    """One sentence; empty where the line agrees within the tolerance."""
    if abs(line.difference_nano) <= tolerance * abs(line.ledger_nano):
        return ""
    if line.kind == "unknown":
        return "missing in the ledger: nothing there is known by this name"
    if not line.days_both and not line.days_invoice:
        return "missing on the invoice"
    if not line.days_both and not line.days_ledger:
        return f"missing in the ledger: it has no {line.item} of it in the period"
    again = "" if not line.again_nano else f"rows that are there twice make {format_usd(line.again_nano)}"
    if again and 2 * abs(line.difference_nano - line.again_nano) < abs(line.difference_nano):
        return again
    texts = [_hours_or_price(line)]
    if line.days_ledger:
        texts.append(f"not on the invoice on {_days(line.days_ledger)}")
    if line.days_invoice:
        texts.append(f"not in the ledger on {_days(line.days_invoice)}")
    if again:
        texts.append(again)
    return "; ".join(text for text in texts if text)


def _hours_or_price(line: Line) -> str:
    moved = parts(line)
    if moved is None:
        return "the hours billed are not known" if line.item == DEVICE_TIME else "another amount"
    assert line.invoice_ns is not None
    sizes = [abs(part) for part in moved]
    hours = f"hours: {format_ns(line.invoice_ns)} billed, {format_ns(line.ledger_ns)} in the ledger"
    price = (
        f"price: {_per_hour(line.effective_nano, line.invoice_ns)} an hour billed, "
        f"{_per_hour(line.ledger_nano, line.ledger_ns)} in the ledger"
    )
    if sizes[0] >= _MAIN_SHARE * sum(sizes):
        return hours
    return price if sizes[1] >= _MAIN_SHARE * sum(sizes) else f"{hours}; {price}"


def _per_hour(nano: int, ns: int) -> str:
    return format_usd(round(Fraction(nano * NS_PER_HOUR, ns)))


def _days(count: int) -> str:
    return f"{count} day{'s' if count > 1 else ''}"
