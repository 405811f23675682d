"""Closing a period: freezing its charges, correcting them, and what a period cost as of any moment."""

from __future__ import annotations

from rose.pricing.closing.store import Closed, read

__all__ = ["Closed", "read"]
