"""What is wrong with a question, apart from what is wrong with what it is asked of."""

from __future__ import annotations

from rose.pricing.money import PricingError


class QuestionError(PricingError):
    """A dimension, a tag or a value that there is none of, or too many of them; the message names it."""
