"""`rose report` and `rose price` on the command line."""

from __future__ import annotations

from rose.pricing.commands.price import price_app
from rose.pricing.commands.report import report_command

__all__ = ["price_app", "report_command"]
