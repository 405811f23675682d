"""The evidence on borrowing, question by question, each with what it rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import polars as pl
import streamlit as st

from dashboard import charts as shared
from dashboard import display, escape, frame
from dashboard import format as words
from dashboard.risk import charts
from rose.pricing.borrowing.report import tables
from rose.pricing.borrowing.report.common import BREAK_EVEN_CASH, BREAK_EVEN_TIME
from rose.pricing.borrowing.report.risk import RiskDocument
from rose.pricing.borrowing.savings import LOADED, NOTHING
from rose.pricing.figures import Figure
from rose.pricing.table import Table


def verdicts(document: RiskDocument) -> None:
    """Both answers in a sentence, coloured by what they say."""
    told(document.harm.told)(escape.prose(document.harm.says))
    judged(document)(escape.prose(document.compare.in_short))


def told(harmed: bool | None) -> Callable[[str], object]:
    """How harm is told: as a success only where none can be told from chance."""
    return st.warning if harmed is None else st.error if harmed else st.success


def judged(document: RiskDocument) -> Callable[[str], object]:
    """How what borrowing saved is told: as a success or a failure only where its interval lies on one side of 0."""
    saved = document.compare.savings.cash_saved
    if saved.low is None or saved.high is None:
        return st.info
    return st.success if saved.low >= 0 < saved.high else st.error if saved.high <= 0 else st.info


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


def harm(document: RiskDocument) -> None:
    """What lending does to serving."""
    row = document.harm
    not_told(row.told)
    if row.told is not None:
        frame.metrics(
            ("Late with lending", row.late, f"Of {row.requests.text} requests while leases were allowed."),
            ("Late without", row.late_without, "By the windows in which leases were withheld at random."),
            ("Late because of lending", row.added, "Requests, over the run; below zero: fewer were late."),
            ("What they came to", document.provision.realised, tables.rests_on(document.provision)),
        )
        compared = {"with lending": row.late, "without lending": row.late_without}
        rows = [
            {"name": name, "share": figure.value, "low": figure.low, "high": figure.high}
            for name, figure in compared.items()
        ]
        shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("share", "low", "high"), pl.Float64))
        display.chart(charts.late(shown), about="Late requests with lending and without, with 95%")
    windows(row.withheld.text, row.windows.text, document.head.stamp.provenance)


def saved(document: RiskDocument) -> None:
    """What borrowing kept off the bill, against each other way."""
    compare = document.compare
    st.header("What did borrowing save?")
    ways = {name: way.cash_saved for name, way in compare.ways.items() if name not in (NOTHING, LOADED)}
    if not any(figure.value is not None for figure in ways.values()):
        for name, figure in compare.savings.cash_saved_if.items():
            st.markdown(f"- {escape.prose(figure.text)} {name}.")
        if not compare.savings.cash_saved_if:
            st.info(escape.prose(compare.savings.cash_saved.text))
            return
    _intervals(ways, f"cash saved against it ({document.head.stamp.currency}, marginal), 95% interval")
    st.caption(escape.markdown(f"Against dedicated devices: {compare.savings.rests_on['cash_saved']}."))
    bill, time, how, *_ = [made for made in tables.compare(compare) if isinstance(made, Table)]
    source = "charges, `turn`, `verdict` and the price book"
    st.subheader("On the bill")
    frame.show_table(bill, source)
    with st.expander("Device time of the same tokens, amortized: what it is worth, on nobody's bill"):
        frame.show_table(time, source)
    with st.expander("How each was worked out"):
        frame.show_table(how, source)


def depends(document: RiskDocument) -> None:
    """What cash saved rests on, and where borrowing stops paying."""
    st.header("What does that depend on?")
    stamp = document.head.stamp
    if not document.swings or document.cash_saved.value is None:
        st.info("Nothing that it rests on has a range in this run.")
    else:
        rows = [
            {
                "name": name.replace("_", " "),
                "worse": _usd(swing.worse),
                "better": _usd(swing.better),
                "worse_text": swing.worse.text,
                "better_text": swing.better.text,
            }
            for name, swing in document.swings.items()
        ]
        shown = pl.DataFrame(rows)
        display.chart(
            charts.depends(shown, document.cash_saved.value / 1e9, stamp.currency),
            about="Cash saved at either end of the range of each thing that it depends on",
        )
        st.caption(escape.markdown(f"Green: more than now, purple: less. Marginal, {stamp}."))
        frame.show_table(tables.depends(document), "the terms of the borrow, and the device time of dedicated devices")
    if document.compare.flips:
        st.subheader("Where does borrowing stop paying?")
        frame.show_table(
            tables.flips(document.compare), "the terms of the borrow, and the device time of dedicated devices"
        )


def added(document: RiskDocument) -> None:
    """What borrowing added to the bill, term by term."""
    price = document.price
    st.header("What did borrowing add to the bill?")
    st.markdown(escape.prose(price.gate))
    rows = [
        {
            "term": name.replace("_", " "),
            "in all": row.in_all.short_text,
            "95% interval": row.in_all.short_interval,
            "per device-hour": row.per_device_hour.short_text,
            "basis": row.in_all.basis,
            "rests on": escape.cell(row.rests_on),
        }
        for name, row in {**price.terms, "m, the marginal price": price.total}.items()
    ]
    source = "`lease`, `sync`, `power`, `request` and the price book; marginal view"
    frame.table(pl.DataFrame(rows), f"{source}, {price.head.stamp}. Absent: unknown, and not in the sum.")
    if price.avoidable.value:
        st.markdown(
            escape.markdown(
                f"Device time that would not have been paid for otherwise: {price.avoidable.text} (amortized), so the "
                f"borrow is charged {price.charged.text}."
            )
        )


def bursts(document: RiskDocument) -> None:
    """What is set aside for load that rises while a device is lent, and what it came to."""
    provision = document.provision
    st.header("What may a later burst cost?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. What that is expected to cost is accrued as "
        "devices are lent, and what it came to is set against it."
    )
    frame.metrics(
        ("Accrued", provision.accrued, "By the rates that were known when each day began."),
        ("Realised", provision.realised, tables.rests_on(provision)),
        (
            f"{BREAK_EVEN_TIME[0].upper()}{BREAK_EVEN_TIME[1:]}",
            provision.break_even,
            "Above it a borrowed device-hour costs more than its work at the amortized price of dedicated ones. "
            f"The {BREAK_EVEN_CASH} is above, where borrowing stops paying.",
        ),
    )
    rows = [
        {
            "load": f"{load_bin * 20} to {load_bin * 20 + 20}%",
            "an_hour": rate.hazard_per_hour.value,
            "low": rate.hazard_per_hour.low,
            "high": rate.hazard_per_hour.high,
            "windows": rate.windows.value,
        }
        for load_bin, rate in provision.rates.items()
        if rate.hazard_per_hour.value is not None
    ]
    if any(rate.bursts.value for rate in provision.rates.values()):
        shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("an_hour", "low", "high"), pl.Float64))
        display.chart(charts.bursts(shown), about="Bursts an hour by serving load, with 95%")
    source = "`request`, `lease`, `device_slice` and the price book"
    if provision.rates:
        frame.show_table(tables.rates(provision), source)
    if provision.days:
        with st.expander("Day by day"):
            frame.show_table(tables.roll_forward(provision), source)


def together(risk: RiskDocument) -> None:
    """What borrowing would cost if serving load and rollout demand rose together; all of it simulated."""
    document = risk.spikes
    st.header("And if load and demand rose together?")
    st.warning("**SIMULATED.** The run's own hours are paired anew: this did not happen.")
    st.markdown(escape.markdown(f"Where borrowing becomes as dear as dedicated devices (r*): {document.says}."))
    rows = [
        {"r": float(r), "usd": _usd(row.token_cost), "text": row.token_cost.text}
        for r, row in document.by_r.items()
        if row.token_cost.value is not None
    ]
    if rows:
        display.chart(
            charts.coupled(pl.DataFrame(rows), _usd(document.dedicated), document.head.stamp.currency),
            about="Simulated price of a million borrowed tokens, by how load and demand rise together",
        )
    if document.by_r:
        frame.show_table(tables.paired(document), "the windows of the run, paired anew: simulated")


def _intervals(figures: Mapping[str, Figure], title: str) -> None:
    rows = [
        {
            "name": name,
            "text": figure.text,
            "range": words.interval(figure),
            "usd": _usd(figure),
            "low": None if figure.low is None else figure.low / 1e9,
            "high": None if figure.high is None else figure.high / 1e9,
        }
        for name, figure in figures.items()
        if figure.value is not None
    ]
    if rows:
        shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("usd", "low", "high"), pl.Float64))
        display.chart(shared.intervals(shown, title), about=title)


def _usd(figure: Figure) -> float | None:
    return None if figure.value is None else figure.value / 1e9
