"""What serving's users saw, with rollouts beside them and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from dashboard import charts, data, frame
from dashboard import format as words
from dashboard.data import Run

_P99_SAMPLES = 100
_TTFT, _TPOT = "Time to first token (TTFT)", "Time for each further token (TPOT)"


def show(ledger: Path, run: Run) -> None:
    totals = data.rows(ledger, "run/serving_latency", run)
    everything = totals.filter("everything").to_dicts()
    if not everything or not everything[0]["requests"]:
        st.info("No serving request has been recorded yet.")
        return
    source = f"{words.trace(run)} {run.provenances[0].capitalize()}. Source: `request`."
    _attainment(run, totals, source)
    bins = data.rows(ledger, "dashboard/latency", run)
    for title, name in ((_TTFT, "ttft"), (_TPOT, "tpot")):
        st.subheader(title)
        budget_ns = _budget(everything[0], name)
        chart = charts.latency(_long(bins, name), budget_ns, f"{name.upper()} (ms)")
        st.altair_chart(chart, width="stretch", alt=f"{title} over time")
        far = "" if budget_ns is None else f"Budget (SLO): {budget_ns:,.0f} ms. "
        near = "Percentiles by the day, to within 2.2%. " if run.long else ""
        st.caption(f"Solid: p99 (99 of 100 requests are faster). Dashed: p50 (half are). {near}{far}{source}")


def _attainment(run: Run, totals: pl.DataFrame, source: str) -> None:
    st.subheader("Did users get what they were promised?")
    names = {True: "device lent at arrival", False: "device not lent"}
    rows: list[dict[str, Any]] = []
    for row in totals.sort("everything").to_dicts():
        name = "all requests" if row["everything"] else names[row["lent"]]
        rows.append(
            {
                "requests": name,
                "count": row["requests"],
                "failed": row["failed"],
                "kept both budgets": f"{1 - row['violations'] / row['requests']:.2%}",
                "TTFT p50 (ms)": _ms(row["ttft_p50_ns"]),
                "TTFT p99 (ms)": _ms(row["ttft_p99_ns"]),
                "TPOT p50 (ms)": _ms(row["tpot_p50_ns"]),
                "TPOT p99 (ms)": _ms(row["tpot_p99_ns"]),
            }
        )
    by_name = {row["requests"]: row for row in rows}
    cards = ("all requests", "device lent at arrival", "device not lent")
    for column, name in zip(st.columns(3), cards, strict=True):
        kept = by_name[name]["kept both budgets"] if name in by_name else words.NOT_ENOUGH_DATA
        column.metric(f"SLO attainment, {name}", str(kept))
    st.caption(
        "SLO attainment: the share of requests whose first token and further tokens came within their promised time "
        f"(their budget). {source}"
    )
    few = [str(row["requests"]) for row in rows if row["count"] < _P99_SAMPLES]
    note = f" Fewer than {_P99_SAMPLES} requests ({', '.join(few)}): p99 is the largest value measured." if few else ""
    frame.table(pl.DataFrame(rows), f"`request`. {words.trace(run)} {run.provenances[0].capitalize()}.{note}")


def _long(bins: pl.DataFrame, name: str) -> pl.DataFrame:
    """A row for each bin, lent or not, and percentile."""
    device = pl.when("lent").then(pl.lit("device lent")).otherwise(pl.lit("device not lent"))
    wide = bins.select(
        "t",
        "requests",
        device.alias("device"),
        pl.col(f"{name}_p50_ms").alias("p50"),
        pl.col(f"{name}_p99_ms").alias("p99"),
    )
    long = wide.unpivot(["p50", "p99"], index=["t", "requests", "device"], variable_name="which", value_name="ms")
    return long.drop_nulls("ms")


def _budget(row: dict[str, int], name: str) -> float | None:
    """The budget in milliseconds, or None where requests had different ones."""
    least, most = row[f"{name}_budget_min_ns"], row[f"{name}_budget_max_ns"]
    return least / 1e6 if least == most else None


def _ms(ns: int | None) -> float | None:
    return None if ns is None else round(ns / 1e6, 1)


frame.page(
    "Serving",
    "Did serving's users notice the rollouts? Requests that found their device lent, beside those that did not.",
    show,
)
