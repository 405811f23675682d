"""The evidence on borrowing, question by question, each with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import streamlit as st

from dashboard import charts as shared
from dashboard import display, escape, frame
from dashboard.risk import charts
from rose.pricing.borrowing.report.alternatives import CASH
from rose.pricing.borrowing.report.provision import (
    ACCRUED,
    BREAK_EVEN_CASH,
    BREAK_EVEN_TIME,
    REALISED,
)
from rose.pricing.borrowing.report.risk import HARMED, LATE, LATE_WITHOUT, REQUESTS, WINDOWS, WITHHELD
from rose.pricing.borrowing.report.spikes import ON_DEDICATED
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.figures import Figure
from rose.pricing.table import Section

_DEVICES = "the terms of the borrow, and the device time of dedicated devices"


def verdicts(made: Mapping[str, Section]) -> None:
    """Both answers in a sentence, coloured by what they say."""
    risk, saved = made["risk"], made["compare"].figure("savings", CASH)
    told(_harmed(risk))(escape.prose(risk.text("says")))
    # A success or a failure only where its interval lies on one side of 0.
    judged: Callable[[str], object] = st.info
    if saved.low is not None and saved.high is not None:
        judged = st.success if saved.low >= 0 < saved.high else st.error if saved.high <= 0 else st.info
    judged(escape.prose(risk.text("saves")))


def _harmed(risk: Section) -> bool | None:
    added = risk.figure("harm", HARMED)
    return None if added.low is None else added.low > 0


def told(harmed: bool | None) -> Callable[[str], object]:
    """How harm is told: as a success only where none can be told from chance."""
    return st.warning if harmed is None else st.error if harmed else st.success


def not_told(harmed: bool | None) -> None:
    """The heading on harm, and, where nothing can be told, what would tell it."""
    st.header("What does lending do to serving?")
    if harmed is None:
        st.markdown(
            "Late requests of lent devices and of others are not set side by side: leases follow load, and a late "
            "request ends its lease. Leases that are withheld at random for a small share of the time tell what "
            "lending costs: set `coserving.holdout_share` in the fleet file."
        )


def windows(withheld: str, drawn: str, provenance: str) -> None:
    """What the comparison rests on."""
    st.caption(
        f"{withheld} of {drawn} windows were withheld at random, {provenance}. Source: `holdout`, `request`, `lease`."
    )


def harm(made: Mapping[str, Section]) -> None:
    """What lending does to serving."""
    table, totals = made["risk"].table("harm"), made["provision"].table("totals")
    figures: dict[str, Figure] = dict(table.rows)
    harmed = _harmed(made["risk"])
    not_told(harmed)
    if harmed is not None:
        realised = totals.row(REALISED)
        frame.metrics(
            ("Late with lending", figures[LATE], f"Of {figures[REQUESTS].text} requests while leases were allowed."),
            ("Late without", figures[LATE_WITHOUT], "By the windows in which leases were withheld at random."),
            ("Late because of lending", figures[HARMED], "Requests, over the run; below zero: fewer were late."),
            ("What they came to", realised["value"], realised["rests on"]),
        )
        compared = {"with lending": figures[LATE], "without lending": figures[LATE_WITHOUT]}
        rows = [
            {"name": name, "share": figure.value, "low": figure.low, "high": figure.high}
            for name, figure in compared.items()
        ]
        shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("share", "low", "high"), pl.Float64))
        display.chart(charts.late(shown), about="Late requests with lending and without, with 95%")
    windows(figures[WITHHELD].text, figures[WINDOWS].text, figures[WINDOWS].stamp.provenance)


def saved(compare: Section) -> None:
    """What borrowing kept off the bill, against each other way."""
    st.header("What did borrowing save?")
    bill, cash = compare.table("bill"), compare.table("savings").row(CASH)
    ways = {name: figure for name, _, figure in bill.rows if name not in (NOTHING, LOADED)}
    if not any(figure.value is not None for figure in ways.values()):
        ends = [row for row in compare.table("savings").rows if row[0].startswith(f"{CASH} ")]
        for name, figure, _ in ends:
            st.markdown(f"- {escape.prose(figure.text)} {name.removeprefix(f'{CASH} ')}.")
        if not ends:
            st.info(escape.prose(cash["value"].text))
            return
    known = {name: figure for name, figure in ways.items() if figure.value is not None}
    title = f"cash saved against it ({cash['value'].stamp.currency}, marginal), 95% interval"
    if known:
        display.chart(shared.intervals(shared.interval_rows(known), title), about=title)
    st.caption(escape.markdown(f"Against dedicated devices: {cash['rests on']}."))
    source = "charges, `turn`, `verdict` and the price book"
    st.subheader("On the bill")
    frame.show_table(bill, source)
    with st.expander("Device time of the same tokens, amortized: what it is worth, on nobody's bill"):
        frame.show_table(compare.table("device_time"), source)
    with st.expander("How each was worked out"):
        frame.show_table(compare.table("how"), source)


def depends(made: Mapping[str, Section]) -> None:
    """What cash saved rests on, and where borrowing stops paying."""
    st.header("What does that depend on?")
    if "depends" not in made["risk"].parts:
        st.info("Nothing that it rests on has a range in this run.")
    else:
        table = made["risk"].table("depends")
        rows = [
            {
                "name": name,
                "worse": _usd(worse),
                "better": _usd(better),
                "worse_text": worse.text,
                "better_text": better.text,
            }
            for name, worse, _, better in table.rows
        ]
        now = table.rows[0][2]
        display.chart(
            charts.depends(pl.DataFrame(rows), now.value / 1e9, now.stamp.currency),
            about="Cash saved at either end of the range of each thing that it depends on",
        )
        st.caption(escape.markdown(f"Green: more than now, purple: less. Marginal, {now.stamp}."))
        frame.show_table(table, _DEVICES)
    if "flips" in made["compare"].parts:
        st.subheader("Where does borrowing stop paying?")
        frame.show_table(made["compare"].table("flips"), _DEVICES)


def added(price: Section) -> None:
    """What borrowing added to the bill, term by term."""
    st.header("What did borrowing add to the bill?")
    frame.show_table(price.table("terms"), "`lease`, `sync`, `power`, `request` and the price book")


def bursts(provision: Section) -> None:
    """What is set aside for load that rises while a device is lent, and what it came to."""
    st.header("What may a later burst cost?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. What that is expected to cost is accrued as "
        "devices are lent, and what it came to is set against it."
    )
    realised = provision.table("totals").row(REALISED)
    frame.metrics(
        ("Accrued", provision.figure("totals", ACCRUED), "By the rates that were known when each day began."),
        ("Realised", realised["value"], realised["rests on"]),
        (
            f"{BREAK_EVEN_TIME[0].upper()}{BREAK_EVEN_TIME[1:]}",
            provision.figure("totals", BREAK_EVEN_TIME),
            "Above it a borrowed device-hour costs more than its work at the amortized price of dedicated ones. "
            f"The {BREAK_EVEN_CASH} is above, where borrowing stops paying.",
        ),
    )
    rates = provision.table("rates")
    hazards = [(row["load"], row["bursts an hour"], row["windows"]) for row in rates.records()]
    rows = [
        {"load": load, "an_hour": hazard.value, "low": hazard.low, "high": hazard.high, "windows": count.value}
        for load, hazard, count in hazards
        if hazard.value is not None
    ]
    if any(row["bursts"].value for row in rates.records()):
        shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("an_hour", "low", "high"), pl.Float64))
        display.chart(charts.bursts(shown), about="Bursts an hour by serving load, with 95%")
    source = "`request`, `lease`, `device_slice` and the price book"
    if rates.rows:
        frame.show_table(rates, source)
    if provision.table("days").rows:
        with st.expander("Day by day"):
            frame.show_table(provision.table("days"), source)


def together(spikes: Section) -> None:
    """What borrowing would cost if serving load and rollout demand rose together; all of it simulated."""
    st.header("And if load and demand rose together?")
    st.warning("**SIMULATED.** The run's own hours are paired anew: this did not happen.")
    says = spikes.text("says")
    st.markdown(escape.markdown(f"Where borrowing becomes as dear as dedicated devices (r*): {says}."))
    if "coupled" not in spikes.parts:
        return
    table, dedicated = spikes.table("coupled"), spikes.figure("windows", ON_DEDICATED)
    prices = [(row["r"], row["per million tokens"]) for row in table.records()]
    rows = [{"r": float(r), "usd": _usd(price), "text": price.text} for r, price in prices if price.value is not None]
    if rows:
        display.chart(
            charts.coupled(pl.DataFrame(rows), _usd(dedicated), dedicated.stamp.currency),
            about="Simulated price of a million borrowed tokens, by how load and demand rise together",
        )
    frame.show_table(table, "the windows of the run, paired anew: simulated")


def _usd(figure: Figure) -> float | None:
    return None if figure.value is None else figure.value / 1e9
