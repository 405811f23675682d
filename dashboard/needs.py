"""What needs a look: a ledger that does not verify, days that stand out, missed budgets, alerts that did not arrive,
months not closed."""

from __future__ import annotations

from datetime import datetime
from fractions import Fraction

import streamlit as st

from dashboard import books, escape, spending, trust
from dashboard import format as words
from dashboard.cards import Money, percent
from dashboard.figures import Overview
from rose.pricing.money import signed_usd

#: So many days that stand out, the newest, are listed here; the page Books has all.
_DAYS_SHOWN = 5


def show(made: Overview, now: datetime) -> None:
    """The list, or that there is nothing in it."""
    st.header("What needs you?")
    found = [
        *_untrusted(made),
        *_late(made),
        *_over_budget(made),
        *_days(made, now),
        *_not_delivered(made),
        *_not_closed(made, now),
    ]
    if found:
        st.markdown("\n".join(f"- {line}" for line in found))
    else:
        st.markdown("Nothing: the ledger verifies, and nothing that was looked at is out of line.")


def _untrusted(made: Overview) -> list[str]:
    found = trust.look(made.spending.asked.ledger)
    if found.problems == ():
        return []
    return [f"**The ledger: {escape.prose(found.text)}.** `rose ledger verify` says what is wrong."]


def _late(made: Overview) -> list[str]:
    share, target = made.kept.share, Fraction(made.chosen.target) / 100
    if share is None or share >= target:
        return []
    return [
        f"**Serving missed its target**: {percent(share)} of {made.kept.requests:,} requests came within their latency "
        f"budgets, and the target is {made.chosen.target:f}%."
    ]


def _over_budget(made: Overview) -> list[str]:
    budgets = made.budgets
    if budgets is None:
        return []
    money = Money()
    return [
        f"**Over budget**: {escape.markdown(team)}, by {words.plain(money.text(nano))} in {budgets.counted}, amortized "
        "as all budgets are."
        for team, nano in budgets.over.items()
    ]


def _days(made: Overview, now: datetime) -> list[str]:
    watch = spending.watched(made.spending, now)
    if watch is None:
        return []
    if watch.value is None:
        return [f"Days that stand out are not known: {escape.prose(watch.error or words.NOT_ENOUGH_DATA)}"]
    newest = watch.value.anomalies[::-1]
    lines = []
    for anomaly in newest[:_DAYS_SHOWN]:
        head = escape.markdown(f"{anomaly.day}: {anomaly.metric} {anomaly.value.text}")
        rest = f"{signed_usd(anomaly.change_nano)} from {anomaly.median.text} on {anomaly.compared_with}"
        lines.append(f"**{head}** of the fleet, {escape.markdown(rest)}.")
    if len(newest) > _DAYS_SHOWN:
        lines.append(f"and {len(newest) - _DAYS_SHOWN} more days that stand out, on the page Books.")
    if watch.value.not_judged:
        count = len(watch.value.not_judged)
        lines.append(
            f"Whether {count} day{'s' if count > 1 else ''} stood out is not known: too few charged days come before."
        )
    return lines


def _not_delivered(made: Overview) -> list[str]:
    holding = books.alerting(made.spending.asked.ledger)
    if holding.value is None:
        return [f"Whether alerts arrived is not known: {escape.prose(holding.error or '')}"]
    failed = [entry for entry in holding.value if entry.error is not None]
    return [
        f"**Alert not delivered**: {escape.markdown(f'{entry.title} to {entry.to}: {entry.error}')}" for entry in failed
    ]


def _not_closed(made: Overview, now: datetime) -> list[str]:
    asked = made.spending.asked
    months = [month.label for month in spending.not_closed(asked.ledger, asked.provenance, now)]
    return [
        f"**{month} is not closed**: its cost may still change. `rose books close --month {month}` closes it."
        for month in months
    ]
