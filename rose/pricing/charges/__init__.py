"""The charges of a period. Every nanosecond of a device and every nano-dollar is in exactly one row."""

from rose.pricing.charges.pricing import WORK, Charges, Stay, fully_load, price

__all__ = ["WORK", "Charges", "Stay", "fully_load", "price"]
