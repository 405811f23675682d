"""Charges by payer and purpose, down to one lease and its events."""

from collections.abc import Mapping
from typing import Any

import polars as pl
import streamlit as st

from dashboard import bar, charts, data, escape, frame, link
from dashboard import format as words
from dashboard.data import Run, Scope
from rose.ledger.ledger import Ledger
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.period import Period, nanoseconds

_BARS_MAX = 20
_CHARGES_MAX = 200
_WORK = {link.ROLLOUTS: "rollouts alone", link.EVERYTHING: "everything, with serving, training and idle time"}
#: A row's click: the choice, and the next division.
_OPENS = {"team": ("team", "run"), "run": ("run", "lease"), "lease": ("lease", None)}
_AMOUNT = "amount_nano"


def show(ledger: Ledger, runs: list[Run]) -> None:
    chosen = bar.chosen()
    run = next((run for run in runs if run.run_id == chosen.run), None)
    scope = frame.scope(ledger) if run is None or chosen.period != link.NEWEST else _of_run(ledger, run)
    if scope is None:
        return
    with st.spinner("Adding up the charges …"):
        billed = data.bill(scope)
    frame.stamp(billed.stamp)
    spent = data.spent(scope, billed, scope.period, chosen).frame
    if run is not None:
        spent = spent.filter(pl.any_horizontal(pl.col("run_id", "fleet_run_id") == run.run_id))
    if chosen.work == link.ROLLOUTS:
        spent = spent.filter("rollout")
    _total(spent, billed, scope, run)
    left, right = st.columns(2)
    with left:
        by = frame.radio("Divided by", "by", {name: name.replace("-", " ") for name in link.GROUPS})
    with right:
        frame.radio("Of", "work", _WORK)
    if spent.is_empty():
        st.info("No charges match this choice.")
        return
    _rows(spent, billed, by, {run.run_id: run for run in runs})
    if by == "bucket" and "idle" in spent["bucket"]:
        times = data.serving_time(scope)
        if times is not None and times["withheld_idle_ns"]:
            st.caption(f"{words.withheld(times['withheld_idle_ns'])} This time is of the whole fleet.")
    if chosen.lease is not None:
        _lease(ledger, spent, billed, chosen.lease)
    _take(spent, billed)


def _of_run(ledger: Ledger, run: Run) -> Scope | None:
    book = data.price_book(ledger, run)
    if len(run.provenances) > 1:
        return None
    frame.banner(run.provenances[0])
    from_ns, to_ns = nanoseconds(run.started_at or run.last_event_at), run.whole.to_ns
    hours = Period(from_ns // NS_PER_HOUR * NS_PER_HOUR, (to_ns // NS_PER_HOUR + 1) * NS_PER_HOUR)
    return Scope(ledger=ledger, period=hours, book=book, provenance=run.provenances[0])


def _total(spent: pl.DataFrame, billed: Bill, scope: Scope, run: Run | None) -> None:
    chosen, whole = bar.chosen(), words.amount(int(spent[_AMOUNT].sum()))
    what = "Rollouts" if chosen.work == link.ROLLOUTS else "The chosen charges"
    when = words.period(scope.period)
    if run is not None:
        when = f"run {escape.markdown(run.name)}" + ("" if chosen.period == link.NEWEST else f" in {when}")
    part = " in part" if billed.open else ""
    closed = f" Closed{part}: {', '.join(billed.closes)}." if billed.closes else ""
    alone = " Serving's own time is not included: page Books has it." if chosen.work == link.ROLLOUTS else ""
    st.markdown(words.plain(f"{what} cost **{whole}** in {when} ({chosen.view.replace('-', ' ')}).{closed}{alone}"))


def _rows(spent: pl.DataFrame, billed: Bill, by: str, runs: Mapping[str, Run]) -> None:
    chosen = bar.chosen()
    rows = charge_algebra.drill(spent, (by,), _AMOUNT)
    keys = [str(row[by]) for row in rows]
    names = [f"{runs[key].name} ({key})" if by == "run" and key in runs else key for key in keys]
    _bars(spent, dict(zip(keys, names, strict=True)), by)
    whole = sum(row[_AMOUNT] for row in rows)
    columns: dict[str, Any] = {
        by.replace("-", " "): names,
        "cost": [row[_AMOUNT] / 1e9 for row in rows],
        "share": [row[_AMOUNT] / whole if whole else None for row in rows],
    }
    if chosen.view == link.AMORTIZED:  # The fully loaded view spreads rows and has no device time or tokens.
        columns["device-hours"] = [row["ns"] / NS_PER_HOUR for row in rows]
        columns["tokens"] = [row["tokens"] for row in rows]
    columns["nano-dollars"] = [row[_AMOUNT] for row in rows]
    table = pl.DataFrame(columns, schema_overrides={"share": pl.Float64})
    opens = _OPENS.get(by)

    def pick(row: int | None) -> None:
        if row is None or opens is None:
            bar.choose(lease=None)
        elif by == "lease":
            # With its fleet's run: two fleets may have leases of one name.
            fleets = spent.filter(lease_id=keys[row])["fleet_run_id"].unique().to_list()
            run = {} if bar.chosen().run is not None or len(fleets) != 1 else {"run": fleets[0]}
            bar.choose(lease=keys[row], **run)
        elif keys[row] != charge_algebra.UNALLOCATED or by == "team":
            bar.choose(**{opens[0]: keys[row], "by": opens[1]})

    click = f" Click a row for its {opens[1] or 'charge'}s." if opens else ""
    source = (
        f"charges by {by.replace('-', ' ')}, {chosen.view.replace('-', ' ')}, {billed.stamp}. They sum to "
        f"{words.amount(whole)}, to the nano-dollar. Unallocated: no {by.replace('-', ' ')}.{click}"
    )
    shown = {"cost": words.money_column("cost", table["cost"]), "nano-dollars": None}  # The latter for the CSV.
    frame.table(table, source, shown, name=f"cost-{by}", on_pick=pick)


def _bars(spent: pl.DataFrame, names: Mapping[str, str], by: str) -> None:
    kind = "work" if "work" in spent.columns else "bucket"
    parts = charge_algebra.drill(spent, (by,) if by == kind else (by, kind), _AMOUNT)
    totals = {row[by]: row[_AMOUNT] for row in charge_algebra.drill(spent, (by,), _AMOUNT)[:_BARS_MAX]}
    bars = [row for key in totals for row in parts if row[by] == key and row[_AMOUNT]]
    if not bars:
        return
    rows = pl.DataFrame(
        {
            "name": [names[row[by]] for row in bars],
            "bucket": [row[kind] for row in bars],
            "cost": [row[_AMOUNT] / 1e9 for row in bars],
            "text": [words.amount(row[_AMOUNT]) for row in bars],
            "total": [totals[row[by]] / 1e9 for row in bars],
            "text of total": [words.amount(totals[row[by]]) for row in bars],
        }
    )
    escape.chart(charts.ranked(rows), about="Cost, most expensive first")
    if len(names) > _BARS_MAX:
        st.caption(f"The {_BARS_MAX} most expensive of {len(names):,} are drawn; the table lists all.")


def _lease(ledger: Ledger, spent: pl.DataFrame, billed: Bill, lease_id: str) -> None:
    st.header("Lease " + escape.markdown(lease_id))
    charges = spent.filter(lease_id=lease_id).sort(_AMOUNT, descending=True)
    if charges.is_empty():
        st.info("No charge for a lease of that name.")
    else:
        names = ("hour", "run_id", "device_id", "bucket", "fate", "cost", "writer", "first_seq", "last_seq")
        listed = charges.head(_CHARGES_MAX).with_columns(cost=pl.col(_AMOUNT) / 1e9).select(names)
        columns = {"cost": words.money_column("cost", listed["cost"])}
        source = (
            f"the {listed.height:,} most expensive of {charges.height:,} charges of the lease, {billed.stamp}. Their "
            "events are in `event`: those of the writer, from the first to the last seq."
        )
        frame.table(listed, source, columns, name="lease charges")
    st.subheader("What happened")
    run_id = None if charges.is_empty() else charges["fleet_run_id"][0]
    shown = "event_time kind action reason engine_id duration_ns since_grant_ns"
    nothing = "This ledger has no lease of that name."
    frame.query(ledger, "lease_timeline", nothing, shown, lease_id=lease_id, run_id=run_id)
    st.button("Close the lease", on_click=lambda: bar.choose(lease=None))


def _take(spent: pl.DataFrame, billed: Bill) -> None:
    stamp = billed.stamp
    terms = {
        "currency": stamp.currency,
        "view": bar.chosen().view,
        "verified": stamp.verified,
        "price_book": stamp.book.text,
        "price_book_chosen": stamp.book.chosen,
        "example_prices": stamp.book.example,
    }
    charges = spent.drop("rollout").with_columns(pl.lit(value).alias(name) for name, value in terms.items())
    st.markdown("All charges of this page, with their payers and events:")
    name = f"rose-{stamp.provenance}-{billed.period.label}.csv"
    frame.download_button("Download charges (CSV)", lambda: escape.csv(charges), name, "text/csv")


frame.ledger_page(
    "Cost",
    "What was charged, to whom, and for what? Click down from a team to a run, a lease, and its events.",
    show,
    uses=("period", "view", "run", "team", "provenance"),
)
