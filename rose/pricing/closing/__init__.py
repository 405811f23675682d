"""The books: closing a period, correcting it, as-of questions, budgets, days that stand out, and the audit trail."""

from __future__ import annotations

from rose.pricing.closing.store import Closed, read

__all__ = ["Closed", "read"]
