"""What the rollouts cost, by whom and for what, and why borrowed ones cost what they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from dashboard import amounts, bar, cards, data, display, escape, frame, link, spending
from dashboard import format as words
from dashboard.access import session
from dashboard.books import Asked
from dashboard.cards import Money
from dashboard.costs import charts, groups, opened, why
from dashboard.costs.groups import GROUPS, Group
from dashboard.data import Run
from dashboard.link import Link
from dashboard.spending import Spending
from rose.pricing.borrowing.report.waterfall import waterfall
from rose.pricing.closing.period import Period, nanoseconds
from rose.pricing.document import Report, to_csv
from rose.pricing.money import NS_PER_HOUR

_BY, _TABLE = "cost-by", "cost-groups"
#: So many rows are drawn; the table has all.
_BARS_MAX = 20
_VIEWS = {
    link.AMORTIZED: "their device time, weight syncs, activations and transfers, at what each second of a device costs",
    link.FULLY_LOADED: "the same, with their part of the devices' idle time and energy",
}


def show(ledger: Path, runs: list[Run]) -> None:
    chosen = bar.chosen()
    known = {run.run_id: run for run in runs}
    run = known.get(chosen.run or "")
    asked = _asked(ledger, chosen, run)
    if asked is None:
        return
    frame.banner(asked.provenance)
    whole_run = run is not None and chosen.period == link.NEWEST
    before = None if whole_run else bar.compared(chosen, asked.period)
    with st.spinner("Adding up the charges …"):
        spent = frame.asked(
            ledger, lambda unverified: spending.ask(replace(asked, unverified=unverified), chosen, before), "cost"
        )
    if spent is None:
        return
    spent = _of_run(spent, run)
    if chosen.by == "model":
        named = groups.with_models(spent.now.frame, data.models(ledger))
        spent = replace(spent, now=replace(spent.now, charges=lambda: named))
    rollouts = groups.total(groups.grouped(spent.now.rollout, "team"))
    _head(spent, rollouts, chosen, run)
    if spent.now.rollout.is_empty():
        st.info("No rollout is charged to what is chosen in the bar.")
        return
    _groups(spent, rollouts, chosen, known)
    if chosen.row is not None and run is None:
        opened.runs(spent, chosen.by, chosen.row, known)
    if run is not None:
        opened.leases(ledger, run, spent)
    _why(ledger, spent, known, run)


def _asked(ledger: Path, chosen: Link, run: Run | None) -> Asked | None:
    """The period of the bar; of a run without a chosen one, the whole hours from its beginning to its last event."""
    if run is None or chosen.period != link.NEWEST:
        return frame.in_period(ledger)
    provenance = frame.provenance(run.provenances)
    book = data.price_book(ledger, run)
    if book.value is None:
        st.error(escape.prose(book.error or words.NOT_ENOUGH_DATA))
    if provenance is None or book.value is None or run.started_at is None:
        return None
    from_ns, to_ns = nanoseconds(run.started_at), nanoseconds(run.ended_at or run.last_event_at)
    hours = Period(from_ns // NS_PER_HOUR * NS_PER_HOUR, (to_ns // NS_PER_HOUR + 1) * NS_PER_HOUR)
    return Asked(ledger=ledger, period=hours, book=book.value, provenance=provenance)


def _of_run(spent: Spending, run: Run | None) -> Spending:
    if run is None:
        return spent
    before = None if spent.before is None else groups.of_run(spent.before, run.run_id)
    return replace(spent, now=groups.of_run(spent.now, run.run_id), before=before)


def _head(spent: Spending, rollouts: Group, chosen: Link, run: Run | None) -> None:
    money, view = Money(), chosen.view.replace("-", " ")
    lent = cards.percent(spent.now.borrowed_share)
    whole = int(spent.now.frame["amount_nano"].sum())
    part = cards.percent(Fraction(rollouts.nano, whole)) if whole else None
    chosen_only = "to the run" if run is not None else "to what is chosen"
    everything = (run, chosen.team, chosen.tag) == (None, None, None)
    whose = "that the fleet cost" if everything else f"charged {chosen_only}"
    when = words.period(spent.now.period)
    if run is not None:
        when = f"run {escape.markdown(run.name)}" + ("" if chosen.period == link.NEWEST else f" in {when}")
    sentence = f"Rollouts cost **{amounts.converted(rollouts.nano, money)}** in {when} ({view})"
    sentence += "" if part is None else f", {part} of the {amounts.converted(whole, money)} {whose}"
    sentence += "." if lent is None else f"; {lent} of their time ran on borrowed serving devices."
    st.markdown(words.plain(sentence))
    before = None if spent.before is None else spent.before.rollout_nano
    name = "" if spent.before is None else words.period(spent.before.period)
    cells = (
        ("Rollout cost", rollouts.nano, _VIEWS[chosen.view], cards.change(rollouts.nano, before, name)),
        ("A device-hour of rollouts", rollouts.per_device_hour, "without weight transfer, which takes no device", None),
        ("A million useful tokens", rollouts.per_million, "those that came to nothing are in the price", None),
    )
    for place, (label, nano, about, change) in zip(st.columns(3), cells, strict=True):
        text = "unknown" if nano is None else amounts.converted(nano, money)
        place.metric(label, text, change, delta_color="inverse")
        place.caption(f"{view}; {about}")
    frame.stamp(replace(spent.bill.stamp, from_ns=spent.now.period.from_ns, to_ns=spent.now.period.to_ns))


def _groups(spent: Spending, rollouts: Group, chosen: Link, known: dict[str, Run]) -> None:
    st.header("Who spent it, and on what?")
    st.session_state[_BY] = chosen.by
    st.radio(
        "Divided by", list(GROUPS), key=_BY, format_func=lambda by: GROUPS[by][0], horizontal=True, on_change=_divide
    )
    rows = groups.grouped(spent.now.rollout, chosen.by)
    money = Money()
    amount = money.together([row.nano for row in rows])
    names = [_name(row.key, chosen.by, known) for row in rows]
    _bars(rows, names, money)
    table = _table(rows, names, amount, money, GROUPS[chosen.by][0])
    display.table(
        table,
        key=f"{_TABLE}-{chosen.by}",
        on_select=lambda: _pick(rows, chosen.by),
        selection_mode="single-row",
        column_config=_columns(table, money),
    )
    st.caption(
        words.plain(
            f"Source: charges of rollouts by {GROUPS[chosen.by][0]}, {chosen.view.replace('-', ' ')}, "
            f"{spent.bill.stamp}. Sums to {amounts.converted(rollouts.nano, money)}, to the nano-dollar. "
            "Unallocated: what has no such thing, such as the task of a weight transfer. Tokens: useful ones. Click a "
            "row to open it. The page Bill has the whole fleet."
        )
    )
    exact = table.with_columns(
        pl.Series("nano-dollars", [row.nano for row in rows]),
        pl.lit(chosen.view).alias("view"),
        pl.lit(spent.bill.provenance).alias("provenance"),
        pl.lit(money.currency).alias("currency"),
    )
    frame.download(exact, "cost-groups")


def _bars(rows: Sequence[Group], names: Sequence[str], money: Money) -> None:
    drawn = list(zip(names, rows, strict=True))[:_BARS_MAX]
    per_unit = 1e9
    parts = pl.DataFrame(
        [
            {
                "name": name,
                "place": place,
                "cost": nano / per_unit,
                "text": amounts.converted(nano, money),
                "nano-dollars": nano,
                "total": row.nano / per_unit,
                "text of total": amounts.converted(row.nano, money),
            }
            for name, row in drawn
            for place, nano in row.places.items()
        ]
    )
    display.chart(charts.ranked(parts, money.currency), about="Cost of rollouts, the dearest first")
    if len(drawn) < len(rows):
        st.caption(f"The dearest {len(drawn)} of {len(rows):,} are drawn; the table has all.")


def _table(
    rows: Sequence[Group], names: Sequence[str], amount: Sequence[int], money: Money, label: str
) -> pl.DataFrame:
    """Numbers that sort as numbers; what is not known is empty."""
    whole = sum(amount)

    def price(nano: Fraction | None) -> float | None:
        return None if nano is None else float(nano) / 1e9

    return pl.DataFrame(
        {
            label: names,
            "cost": [nano / 1e9 for nano in amount],
            "share": [nano / whole if whole else None for nano in amount],
            "device-hours": [row.ns / NS_PER_HOUR for row in rows],
            "a device-hour": [price(row.per_device_hour) for row in rows],
            "tokens": [row.tokens for row in rows],
            "a million tokens": [price(row.per_million) for row in rows],
        },
        schema_overrides=dict.fromkeys(("share", "a device-hour", "a million tokens"), pl.Float64),
    )


def _columns(table: pl.DataFrame, money: Money) -> dict[Any, ColumnConfig]:
    priced = {
        name: amounts.column(name, table[name], money.currency)
        for name in ("cost", "a device-hour", "a million tokens")
    }
    return {**priced, "share": st.column_config.NumberColumn(format="percent"), **opened.columns(table)}


def _why(ledger: Path, spent: Spending, known: dict[str, Run], run: Run | None) -> None:
    """The waterfall of the run that is chosen, else of the one that cost most of those that borrowed."""
    st.header("Why does a borrowed rollout cost what it costs?")
    if run is None:
        dear = groups.grouped(spent.now.rollout, "run")
        run = next((known[row.key] for row in dear if row.key in known and row.places.get(groups.BORROWED)), None)
        if run is None:
            st.info("No run of this period borrowed a device.")
            return
        if len(dear) > 1:
            st.caption("Of the run that cost most of those that borrowed; choose another in the bar.")
    # Whether an unverified ledger will do was asked for the figures above.
    unverified = not spent.bill.verified
    with st.spinner("Comparing with dedicated devices …"):
        made = data.answer(ledger, run, waterfall, unverified=unverified)
    if made.value is None:
        st.error(escape.prose(made.error or words.NOT_ENOUGH_DATA))
        return
    why.show(*made.value, run)
    _download(ledger, run, unverified=unverified)


def _download(ledger: Path, run: Run, *, unverified: bool) -> None:
    """The whole cost report of the run, made when it is asked for."""

    def report() -> Report:
        made = data.price(ledger, run, unverified=unverified)
        if made.value is None:
            raise data.ReadError(made.error or words.NOT_ENOUGH_DATA)
        return made.value

    st.markdown("Every figure of the run's cost report, with its unit, view, currency, period and provenance:")
    name = f"rose-{run.run_id}"
    left, right, _ = st.columns([1, 1, 3])
    with left:
        session.download_button("Download CSV", lambda: to_csv(report().to_json()), f"{name}.csv", "text/csv")
    with right:
        session.download_button("Download JSON", lambda: words.to_json(report()), f"{name}.json", "application/json")


def _name(key: str, by: str, known: dict[str, Run]) -> str:
    """A run by its name and id."""
    return f"{known[key].name} ({key})" if by == "run" and key in known else key


def _divide() -> None:
    bar.pick(by=st.session_state[_BY], row=None)


def _pick(rows: Sequence[Group], by: str) -> None:
    picked = st.session_state[f"{_TABLE}-{by}"]["selection"]["rows"]
    key = rows[picked[0]].key if picked else None
    if by == "run" and key is not None:
        bar.choose(run=key)
    else:
        bar.pick(row=key)


frame.ledger_page(
    "Cost",
    "What did rollouts cost, who spent it and on what, and why does a borrowed one cost what it costs?",
    show,
    uses=("period", "compare", "view", "run", "team", "tag", "provenance"),
)
