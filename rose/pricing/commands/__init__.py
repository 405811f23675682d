"""`rose borrow`, `rose report`, `rose price` and `rose correct` on the command line."""

from __future__ import annotations

from rose.pricing.commands.borrow import borrow_command
from rose.pricing.commands.correct import correct_command
from rose.pricing.commands.price import price_app
from rose.pricing.commands.report import report_command

__all__ = ["borrow_command", "correct_command", "price_app", "report_command"]
