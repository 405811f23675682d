"""What drove the change between two periods: a waterfall whose steps sum to it, and a sentence."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl
import streamlit as st

from dashboard import charts, display, escape, frame, spending
from dashboard import format as words
from dashboard.cards import Money
from dashboard.link import AMORTIZED, Link
from dashboard.spending import Spending
from rose.pricing.answers.changes import EFFECTS, Changes
from rose.pricing.answers.report import changes
from rose.pricing.closing.period import Period

#: What each effect is, for who points at it.
_WHY: Mapping[str, str] = {
    "volume": "more or less of it was done",
    "accepted output": "more or fewer tokens were accepted",
    "tokens per accepted token": "more or fewer tokens were made for each accepted one",
    "device time per token": "a token took more or less device time",
    "share borrowed": "work moved between dedicated devices and borrowed ones",
    "mix": "work moved between device classes, teams and kinds of work",
    "price": "an hour of the same device cost more or less",
}
#: A step of a smaller share of the whole cannot be seen.
_SEEN_SHARE = 0.001


def show(spent: Spending, chosen: Link) -> None:
    """The section; nothing where there is nothing to compare with, which the figures above say."""
    if spent.before is None or spent.now.is_empty or spent.before.period.overlaps(spent.now.period):
        return
    st.header("What drove the change?")
    if chosen.view != AMORTIZED:
        st.info("The parts of a change are amortized: choose that view to see them.")
        return
    answer = spending.drivers(spent, chosen)
    made = answer.value
    if made is None:
        st.error(escape.prose(answer.error or words.NOT_ENOUGH_DATA))
        return
    money = Money()
    names = f"{words.period(spent.now.period)}, compared with {words.period(spent.before.period)}"
    st.markdown(words.plain(f"{names}: {changes.sentence(made, money.signed)}"))
    rows = waterfall(made, money)
    drawn = charts.waterfall(rows, f"cost ({money.currency})")
    display.chart(drawn, about="Cost of the period before, its changes, and now")
    st.caption(
        f"All that is chosen, rollouts and all else, {AMORTIZED}, {spent.bill.provenance}. The steps sum to the "
        "change. `rose changes` says by which team, run or device."
    )
    frame.download(rows.select("name", "amount", pl.lit(money.currency).alias("currency")), "drivers")


def waterfall(made: Changes, money: Money) -> pl.DataFrame:
    """The cost before, each effect that can be seen, the others in one, and the cost now.

    Columns: name, amount, and those of `charts.waterfall`.
    In units of the currency; effects begin where the one before them ends, and the last ends at the cost now.
    """
    effects = _effects(made)
    before, *parts = money.together([made.total.before_nano, *(nano for _, nano in effects)])
    rows = [
        _row(
            _label(made.before.from_ns, made.before.to_ns), before, 0, charts.WHOLE, money.text(made.total.before_nano)
        )
    ]
    reached = before
    for (name, nano), part in zip(effects, parts, strict=True):
        rows.append(_row(name, part, reached, charts.MORE if nano > 0 else charts.LESS, money.signed(nano)))
        reached += part
    now = _label(made.stamp.from_ns, made.stamp.to_ns)
    rows.append(_row(now, reached, 0, charts.WHOLE, money.text(made.total.cost_nano)))
    return pl.DataFrame(rows)


def _effects(made: Changes) -> list[tuple[str, int]]:
    seen = max(abs(made.total.before_nano), abs(made.total.cost_nano)) * _SEEN_SHARE
    large = [name for name in EFFECTS if abs(made.total.effects[name]) >= seen]
    rest = sum(nano for name, nano in made.total.effects.items() if name not in large)
    return [*((name, made.total.effects[name]) for name in large), *([("smaller ones", rest)] if rest else [])]


def _label(from_ns: int, to_ns: int) -> str:
    return words.period(Period(from_ns, to_ns))


def _row(name: str, amount: int, start: int, kind: str, text: str) -> dict[str, object]:
    return {
        "name": name,
        "amount": amount / 1e9,
        "from": start / 1e9,
        "to": (start + amount) / 1e9,
        "right": max(start, start + amount) / 1e9,
        "kind": kind,
        "text": text,
        "why": _WHY.get(name, ""),
    }
