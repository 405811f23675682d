"""Figures as cards: a value in words, how it changed, its course, and a button that opens what it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import streamlit as st

from dashboard import bar, escape
from rose.pricing.money import USD, format_money

#: Whether more is worse, better, or neither.
Sense = Literal["inverse", "normal", "off"]
_COLUMNS = 3
_WRONG = ":material/warning:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """One figure. `name` is what the address calls it; `value` None: it is not known, and `why` says what to do."""

    name: str
    label: str
    value: str | None
    terms: str
    change: str | None = None
    sense: Sense = "inverse"
    course: Sequence[float] = ()
    why: str = ""
    #: Whether it is as it should be, in a word; None where there is nothing to be said.
    good: bool | None = None
    verdict: str = ""


@dataclass(frozen=True, slots=True)
class Money:
    """Amounts as text."""

    currency: str = USD

    def text(self, nano_usd: int | Fraction) -> str:
        return format_money(round(nano_usd), self.currency)

    def signed(self, nano_usd: int) -> str:
        """With a plus above 0."""
        return ("+" if nano_usd > 0 else "") + self.text(nano_usd)

    def together(self, nano_usd: Sequence[int]) -> list[int]:
        """The amounts."""
        return list(nano_usd)


def grid(count: int) -> list[st.delta_generator.DeltaGenerator]:
    """A place for each of so many cards, three in a row, on a phone one."""
    return [place for _ in range(0, count, _COLUMNS) for place in st.columns(_COLUMNS)][:count]


def show(card: Card) -> None:
    """Draw a card."""
    st.metric(
        card.label,
        "unknown" if card.value is None else card.value,
        card.change,
        delta_color=card.sense,
        chart_data=list(card.course) if len(card.course) > 1 else None,
        chart_type="area",
        border=True,
    )
    if card.good is not None:
        st.badge(card.verdict, color="green" if card.good else "red", icon=":material/check:" if card.good else _WRONG)
    st.caption(escape.prose(card.terms if card.value is not None else card.why))
    opened = bar.chosen().figure == card.name
    label = "Close" if opened else "How is it made?"
    st.button(
        label,
        key=f"figure-{card.name}",
        type="tertiary",
        on_click=_toggle,
        args=(None if opened else card.name,),
        icon=":material/expand_less:" if opened else ":material/expand_more:",
    )


def change(now: Fraction | int | None, before: Fraction | int | None, name: str) -> str | None:
    """`+12.3% on 2026-05`; None where it cannot be said."""
    if now is None or not before:
        return None
    return f"{float(Fraction(now) / Fraction(before) - 1):+.1%} on {name}"


def points(now: Fraction | None, before: Fraction | None, name: str) -> str | None:
    """`+1.2 points on 2026-05`, of shares."""
    return None if now is None or before is None else f"{float(now - before) * 100:+.1f} points on {name}"


def percent(share: Fraction | None, digits: int = 1) -> str | None:
    """`41.2%`; 100% only where it is all, 0% only where it is nothing."""
    if share is None:
        return None
    text = f"{float(share):.{digits}%}"
    whole, none = f"{1:.{digits}%}", f"{0:.{digits}%}"
    if (text == whole and share < 1) or (text == none and share > 0):
        return percent(share, digits + 1)
    return text


def _toggle(name: str | None) -> None:
    bar.pick(figure=name)
