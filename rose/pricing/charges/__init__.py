"""Charges: every device-nanosecond and every nano-dollar of a period, each in one row.

Two stages. What the ledger says is kept as sums by UTC hour (`state`), to which new events are added: sums of integers
are the same in whatever order and portions they are made. From these sums and a price book the charges of a period
follow (`pricing`), as a pure function: rounded once for each device and hour, then divided by largest remainder.
"""

from __future__ import annotations

from rose.pricing.charges.loaded import WORK, fully_load
from rose.pricing.charges.pricing import Charges, Stay, price

__all__ = ["WORK", "Charges", "Stay", "fully_load", "price"]
