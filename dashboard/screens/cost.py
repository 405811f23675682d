"""What the rollouts cost."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, escape, frame
from dashboard import format as words
from dashboard.access import session
from dashboard.data import Run
from rose.pricing.document import Report, to_csv
from rose.pricing.figures import AMORTIZED, FULLY_LOADED, MARGINAL
from rose.pricing.run.tables import gate

_LINES = {
    "serving": "as the serving devices cost (serving)",
    "dedicated": "as dedicated devices cost (dedicated)",
    "opportunistic": "as borrowing cost (opportunistic)",
    "blended": "as the mix that was used cost (blended)",
}


def show(ledger: Path, run: Run) -> None:
    report = frame.priced(ledger, run)
    if report is None:
        return
    frame.stamp(report.stamp)
    _views(report)
    _tokens(report)
    _correct(report)
    _borrow(report)
    _download(report)


def _views(report: Report) -> None:
    st.header("What did the period cost?")
    st.markdown("Three views of the same period. They answer different questions and are **never added together**.")
    frame.metrics(
        ("Marginal", report.marginal["total"],
         "What lending idle devices added to the bill: energy, transfer, scheduling. Does not sum to the bill."),
        ("Amortized", report.amortized["total"],
         "The fleet's whole cost, divided by what each second was used for. Sums to the bill."),
        ("Fully loaded", report.fully_loaded["total"],
         "The same bill with idle time and overhead charged to the work they are there for."),
    )  # fmt: skip
    views = {"amortized": report.amortized, "fully loaded": report.fully_loaded}
    bill = pl.DataFrame(
        [
            {"view": view, "bucket": bucket, "usd": (figure.value or 0) / 1e9, "text": figure.text}
            for view, parts in views.items()
            for bucket, figure in parts.items()
            if bucket != "total" and figure.value
        ],
        schema={"view": pl.String, "bucket": pl.String, "usd": pl.Float64, "text": pl.String},
    )
    if not bill.is_empty():
        chart = charts.stacked_money(bill, report.stamp.currency)
        st.altair_chart(chart, width="stretch", alt="Cost by use of the device, amortized and fully loaded")
        st.caption(
            f"Cost by what the time was used for. Views amortized and fully loaded, {report.stamp.currency}, "
            f"{report.stamp.provenance}. Source: `device_slice`, `device`, `sync`, `power` and the price book."
        )
    _buckets(report)


def _buckets(report: Report) -> None:
    """Device time, and what is billed beside it: transfer and energy."""
    total = int(report.amortized["total"].value or 0)
    rows = [
        {
            "bucket": bucket,
            "amortized": figure.text,
            "share": words.share(int(figure.value or 0), total),
            "fully loaded": report.fully_loaded[bucket].text if bucket in report.fully_loaded else "in the others",
            "what it is": words.BUCKET_WORDS.get(bucket, "each column, the whole bill"),
        }
        for bucket, figure in report.amortized.items()
    ]
    frame.table(
        pl.DataFrame(rows),
        f"`device_slice`, `device`, `sync`, `power` and the price book; {report.stamp}. Transfer and energy take no "
        "device time: they are billed beside it. Energy is here only where it was metered and is not in a device's "
        "price.",
    )


def _tokens(report: Report) -> None:
    st.header("Is a borrowed rollout cheaper than a dedicated one?")
    st.markdown(
        "A rollout is a sample the model generates for training. Only useful tokens count: those thrown away are in "
        "the price of the rest."
    )
    borrowed, dedicated = report.token_cost["borrowed"], report.token_cost["dedicated"]
    frame.metrics(
        ("A million tokens, borrowed", borrowed[AMORTIZED], "Made on serving devices; amortized device time."),
        ("A million tokens, dedicated", dedicated[AMORTIZED], "Made on devices paid for rollouts; amortized."),
        ("Cash saved", report.savings.cash_saved,
         "The bill without borrowing, less the bill. Below zero: borrowing cost more than it kept off the bill."),
        ("Capacity avoided (hypothetical)", report.savings.capacity_avoided,
         "The borrowed tokens at the price of dedicated devices. Nobody would have been billed for it."),
    )  # fmt: skip
    rests_on = (f"- {name.replace('_', ' ')}: {escape.markdown(why)}" for name, why in report.savings.rests_on.items())
    st.markdown("\n".join(rests_on))
    st.caption(
        "Cash saved is marginal, capacity avoided amortized and hypothetical; they price the same tokens and are never "
        "added."
    )
    cost = pl.DataFrame(
        [
            {"name": f"{made}, {view}", "usd": figure.value / 1e9, "text": figure.text, "made": made}
            for made, by_view in (("borrowed", borrowed), ("dedicated", dedicated))
            for view in (MARGINAL, AMORTIZED, FULLY_LOADED)
            if (figure := by_view[view]).value is not None
        ]
    )
    if cost.is_empty():
        st.info("Not enough data: no useful rollout token was made yet.")
        return
    unit = f"{report.stamp.currency} per million useful rollout tokens"
    st.altair_chart(charts.bars(cost, unit), width="stretch", alt="Cost of a million rollout tokens by view")
    st.caption(
        f"{unit}, by where they were made and by view, {report.stamp.provenance}. Bars of different views are not "
        "added. Source: `device_slice`, `turn`, `verdict`, `sync` and the price book."
    )


def _correct(report: Report) -> None:
    st.header("What does an accepted answer cost?")
    st.markdown(
        "Dollars over answers the verifier accepted, with the same rollout tokens priced four ways. Where an audit "
        "knows the truth, also per answer that is really correct."
    )
    lines = report.cost_per_correct
    paid = lines["blended"]
    frame.metrics(
        ("An accepted answer", paid.measured, "What was paid for rollouts, over answers the verifier accepted."),
        ("A correct answer, by audit", paid.per_correct, "The same, over answers that an audit found correct."),
        ("C3, hypothetical", paid.formula,
         "What no bill shows, at the list price of serving's tokens: "
         "the formula with rollout tokens at what they cost: price of a million tokens x output per answer token x "
         "(1 + price ratio x extra samples) / accept rate of the best of a group."),
    )  # fmt: skip
    shown = pl.DataFrame(
        [
            {
                "name": _LINES[name],
                "usd": line.measured.value / 1e9,
                "low": None if line.measured.low is None else line.measured.low / 1e9,
                "high": None if line.measured.high is None else line.measured.high / 1e9,
                "text": line.measured.text,
                "range": line.measured.interval_text or "not enough data",
            }
            for name, line in lines.items()
            if line.measured.value is not None
        ],
        schema_overrides={"low": pl.Float64, "high": pl.Float64},
    )
    if not shown.is_empty():
        unit = f"{report.stamp.currency} per accepted answer"
        st.altair_chart(charts.intervals(shown, unit), width="stretch", alt="Cost per accepted answer by price line")
        st.caption(
            f"{unit}, rollout tokens priced as each line says; grey: 95% interval where there is one, "
            f"{report.stamp.provenance}. Source: `turn`, `trajectory`, `verdict`, `device_slice` and the price book."
        )
    rows = [
        {
            "price line": name,
            "view": line.measured.view,
            "per accepted answer": line.measured.text,
            "95% interval": words.interval(line.measured),
            "per audited correct": line.per_correct.text,
            "hypothetical, at list price: formula, per M answer tokens": line.formula.text,
            "its 95% interval": words.interval(line.formula),
        }
        for name, line in lines.items()
    ]
    factors = report.factors
    frame.table(
        pl.DataFrame(rows),
        f"the cost report, {report.stamp}. Formula: price of a million tokens {factors['cpm'].text} x output per "
        f"answer token {factors['r'].text} x (1 + price ratio x extra samples per kept one {factors['rho'].text}) / "
        f"accept rate of the best of a group {factors['alpha'].text}.",
    )


def _borrow(report: Report) -> None:
    st.header("What is in the price of a borrowed device-hour?")
    borrow = report.borrow
    rows = [
        {
            "part": term.replace("_", " "),
            "per device-hour": borrow.per_device_hour[term].text,
            "in all": report.marginal[term].text,
            "95% interval": report.marginal[term].interval_text,
            "rests on": explained,
        }
        for term, explained in borrow.explained.items()
    ]
    total = {"part": "total", "per device-hour": borrow.per_device_hour["total"].text,
             "in all": report.marginal["total"].text, "95% interval": report.marginal["total"].interval_text,
             "rests on": f"{borrow.borrowed.text} borrowed"}  # fmt: skip
    frame.table(
        pl.DataFrame([*rows, total]),
        f"marginal view, {report.stamp}; `lease`, `sync`, `power` and the price book. {gate(borrow.idle_anyway)} "
        "The page Risk says what each part rests on, and whether it paid.",
    )


def _download(report: Report) -> None:
    st.header("Take it with you")
    st.markdown("Every figure of the report with its unit, view, currency, period and provenance.")
    name = f"rose-{report.run.run_id}"
    left, right, _ = st.columns([1, 1, 3])
    with left:
        session.download_button("Download CSV", lambda: to_csv(report.to_json()), f"{name}.csv", "text/csv")
    with right:
        session.download_button("Download JSON", lambda: words.to_json(report), f"{name}.json", "application/json")


frame.page("Cost", "What did the rollouts of this run cost, and what did borrowing save?", show)
