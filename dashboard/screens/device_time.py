"""Where the time of each device went."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import charts, data, frame
from dashboard import format as words
from dashboard.data import Run
from rose.events import BUCKETS


def show(ledger: Path, run: Run) -> None:
    totals = data.rows(ledger, "dashboard/time_totals", run)
    if totals.is_empty():
        st.info("No device has joined this run yet.")
        return
    over_time = data.rows(ledger, "dashboard/device_time", run)
    if over_time.is_empty():
        st.info("No device has reported its time yet.")
    else:
        st.subheader("What was each device doing?")
        for index, lane in enumerate(over_time.partition_by("lane")):
            name = lane["lane"][0]
            st.markdown(f"**{name}**")
            chart = charts.device_time(lane, legend=index == 0)
            st.altair_chart(chart, width="stretch", alt=f"Share of time of {name} by bucket, over time")
        st.caption(f"Share of time by bucket, {run.provenances[0]}. Source: `device_slice`, in at most 200 bins.")
    _totals(ledger, run, totals)


def _totals(ledger: Path, run: Run, totals: pl.DataFrame) -> None:
    st.subheader("Where did all of it go?")
    by_bucket = {bucket: int(totals[bucket].sum()) for bucket in BUCKETS}
    provisioned_ns, reported_ns = int(totals["provisioned"].sum()), sum(by_bucket.values())
    by_bucket["unaccounted"] = provisioned_ns - reported_ns
    left, middle, right, last = st.columns(4)
    left.metric("Provisioned device time", words.seconds(provisioned_ns))
    middle.metric("Reported by the devices", words.seconds(reported_ns))
    right.metric("Unaccounted for", words.seconds(provisioned_ns - reported_ns))
    unused_ns = int(data.rows(ledger, "run/leased_unused", run)["leased_unused_ns"][0])
    last.metric("Leased, not used", words.seconds(unused_ns), help="Idle time of serving devices under a lease.")
    rows = [
        {"bucket": bucket, "device-seconds": ns / 1e9, "share": words.share(ns, provisioned_ns),
         "nanoseconds": f"{ns:,}", "what it is": words.BUCKET_WORDS[bucket]}
        for bucket, ns in by_bucket.items()
    ]  # fmt: skip
    total_ns = sum(by_bucket.values())
    total = {"bucket": "sum", "device-seconds": total_ns / 1e9, "share": words.share(total_ns, provisioned_ns),
             "nanoseconds": f"{total_ns:,}", "what it is": "the provisioned time, to the nanosecond"}  # fmt: skip
    frame.table(pl.DataFrame([*rows, total]), f"`device_slice` and `device`, {run.provenances[0]}.")
    st.subheader("By device")
    seconds = totals.select(
        "device_id",
        "pool",
        "device_class",
        *((pl.col(name) / 1e9).round(3).alias(f"{name} (s)") for name in ("provisioned", *BUCKETS)),
    )
    frame.table(seconds, f"`device_slice` and `device`, {run.provenances[0]}.")


frame.page(
    "Device time",
    "Where did every second of every device go? A device serves users first; what is left may be lent to rollouts.",
    show,
)
