"""Charges have every device-nanosecond and nano-dollar of a period in one row."""

from rose.pricing.charges.pricing import WORK, Charges, Stay, fully_load, price

__all__ = ["WORK", "Charges", "Stay", "fully_load", "price"]
