"""Charges: every device-nanosecond and nano-dollar of a period, each in one row.

`state` keeps integer sums of the ledger by UTC hour and adds new events to them, in any order and portions. `pricing`
makes charges from these sums and a price book: a pure function.
"""

from __future__ import annotations

from rose.pricing.charges.pricing import WORK, Charges, Stay, fully_load, price

__all__ = ["WORK", "Charges", "Stay", "fully_load", "price"]
