from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from rose.pricing.money import NS_PER_HOUR
from rose.pricing.reconcile.compare import Line
from rose.pricing.reconcile.reasons import parts, reason

NANO = 10**9
HALF_PERCENT = Fraction(5, 1000)


def line(**fields: Any) -> Line:
    """A device that cost $100 in 50 hours, and was billed so."""
    given: dict[str, Any] = {
        "kind": "device",
        "name": "GPU-0",
        "item": "device time",
        "device_ids": ("s0",),
        "days_both": 3,
        "days_ledger": 0,
        "days_invoice": 0,
        "ledger_nano": 100 * NANO,
        "ledger_ns": 50 * NS_PER_HOUR,
        "billed_nano": 0,
        "effective_nano": 100 * NANO,
        "invoice_ns": 50 * NS_PER_HOUR,
        "again_nano": 0,
        "corrections_nano": 0,
    }
    return Line(**(given | fields))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ""),
        ({"effective_nano": 100_500_000_000}, ""),
        (
            {"effective_nano": 104 * NANO, "invoice_ns": 52 * NS_PER_HOUR},
            "hours: 52 h 00 min 00 s billed, 50 h 00 min 00 s in the ledger",
        ),
        ({"effective_nano": 110 * NANO}, "price: $2.20 an hour billed, $2.00 in the ledger"),
        (
            {"effective_nano": 121 * NANO, "invoice_ns": 55 * NS_PER_HOUR},
            "hours: 55 h 00 min 00 s billed, 50 h 00 min 00 s in the ledger; price: $2.20 an hour billed, $2.00 in the "
            "ledger",
        ),
        (
            {"effective_nano": 66 * NANO, "invoice_ns": 33 * NS_PER_HOUR, "days_both": 2, "days_ledger": 1},
            "hours: 33 h 00 min 00 s billed, 50 h 00 min 00 s in the ledger; not on the invoice on 1 day",
        ),
        (
            {"effective_nano": 110 * NANO, "invoice_ns": None, "days_invoice": 2},
            "the hours billed are not known; not in the ledger on 2 days",
        ),
        ({"effective_nano": 130 * NANO, "again_nano": 29 * NANO}, "rows that are there twice make $29.00"),
        (
            {"effective_nano": 130 * NANO, "again_nano": 9 * NANO},
            "price: $2.60 an hour billed, $2.00 in the ledger; rows that are there twice make $9.00",
        ),
        ({"item": "energy", "effective_nano": 7 * NANO, "invoice_ns": None}, "another amount"),
        ({"effective_nano": 0, "days_both": 0, "days_ledger": 3}, "missing on the invoice"),
        (
            {"ledger_nano": 0, "ledger_ns": 0, "days_both": 0, "days_invoice": 3},
            "missing in the ledger: it has no device time of it in the period",
        ),
        ({"ledger_nano": 0, "kind": "unknown"}, "missing in the ledger: nothing there is known by this name"),
    ],
    ids=str,
)
def test_the_likely_reason(fields: dict[str, Any], says: str) -> None:
    assert reason(line(**fields), HALF_PERCENT) == says


def test_hours_and_price_sum_to_the_difference() -> None:
    other = line(effective_nano=123_456_789_123, invoice_ns=51 * NS_PER_HOUR + 7)
    moved = parts(other)
    assert moved is not None
    assert sum(moved) == other.difference_nano
    assert parts(line(invoice_ns=None)) is None
