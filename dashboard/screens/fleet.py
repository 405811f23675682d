"""Whether serving is safe now, what every device did, and why rollouts got what they got."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, charts, data, display, escape, fleet, frame, lease, timeline, window
from dashboard import format as words
from dashboard.data import Run, Window
from rose.events import BUCKETS


def show(ledger: Path, run: Run) -> None:
    totals = data.rows(ledger, "dashboard/time_totals", run)
    if totals.is_empty():
        st.info("No device has joined this run yet.")
        return
    verdict = fleet.verdict(ledger, run, bar.chosen().target)
    tell = st.info if verdict.safe is None else st.success if verdict.safe else st.error
    if frame.known_trust(ledger).problems:
        st.error(f"**{verdict.text}, by a ledger that does not verify.** {verdict.why}")
    else:
        tell(f"**{verdict.text}.** {verdict.why}")
    devices = fleet.now(ledger, run)
    _counts(run, devices, now=run.going_on and data.quiet_s(ledger) < data.QUIET_S)
    st.header("What happened, and when?")
    shown = window.slider(run)
    _timeline(ledger, run, shown)
    lease.opened(ledger, run)
    _holds(ledger, run, shown)
    st.page_link("screens/preemptions.py", label="What serving took back, and whether weights arrive")
    _devices(run, totals, devices)
    _time(ledger, run, totals)


def _counts(run: Run, devices: pl.DataFrame, *, now: bool) -> None:
    """What serving devices do; of a run that does not go on, what they did last."""
    serving = devices.filter(pool="serving")
    st.header("What are the devices doing?" if now else "What did the devices do last?")
    counted = [
        ("Serving devices", serving.height, "in the pool `serving`"),
        ("Lent", int(serving["lent"].fill_null(False).sum()), "under a lease, whatever they do"),
        *(
            (label, serving.filter(state=state).height, about)
            for label, state, about in (
                ("Serving requests", "serving", "most of the last slice"),
                ("Rollouts", "rollout", "most of the last slice"),
                ("Headroom", "headroom", "kept free for serving although rollouts had work"),
                ("Idle", "idle", "nobody wanted them"),
            )
        ),
        ("Silent", serving["state"].null_count(), f"no slice for {fleet.SILENT // timedelta(minutes=1)} minutes"),
    ]
    for column, (label, count, about) in zip(st.columns(len(counted)), counted, strict=True):
        column.metric(label, f"{count:,}")
        column.caption(about)
    st.caption(f"By the newest slice of each device, {run.provenances[0]}. Source: `device_slice`, `device`.")


def _timeline(ledger: Path, run: Run, shown: Window) -> None:
    whole = data.in_window(ledger, "dashboard/fleet_states", run, window.whole(run))
    if whole.is_empty():
        st.info("No device has reported its time yet.")
        return
    window.strip(run, whole)
    lanes = fleet.lanes(ledger, run, shown)
    if lanes.states.is_empty():
        st.info("No device reported its time between these two: choose a longer time above.")
        return
    if not lanes.states["each_device"].all():
        st.info("More than 40 devices: they are drawn by pool. Every one of them is in the table of devices below.")
    count, drawn = (int(lanes.leases["leases"][0]) if lanes.leases.height else 0), lanes.leases.height
    if drawn < count:
        st.warning(
            f"The newest {drawn:,} of {count:,} leases are drawn; the lent share at the top has all of them. Choose a "
            "shorter time above to see the others."
        )
    if (opened := bar.chosen().lease) is not None:
        st.info(f"Lease {escape.markdown(opened)} is open below, after the table of leases.")
    display.chart(
        timeline.chart(lanes),
        about="Lent share, states of devices, leases, serving latency with its budget, and preemptions over time",
    )
    near = " By the day; percentiles to within 2.2%." if data.by_day(shown) else ""
    st.caption(
        f"A lease is a rollout engine's permission to use a serving device. Yield: a rollout waited for serving; cut: "
        f"its memory was reduced; revoke: the lease ended.{near} {words.trace(run)} {run.provenances[0].capitalize()}. "
        "Source: `device_slice`, `lease`, `request`, `preemption`."
    )
    st.caption(
        "Requests that met a lent device are not set beside the others: late requests end leases, so the two differ "
        "for reasons of their own. The page Risk compares with leases that were withheld at random."
    )
    for title, rows in (
        ("states", timeline.states(lanes.states).drop("each_device")),
        ("leases", lanes.leases),
        ("latency", lanes.latency),
        ("preemptions", lanes.preemptions),
    ):
        frame.download(rows, title, label=f"{title.capitalize()} as CSV")
    lease.table(run, lanes.leases, count)


def _holds(ledger: Path, run: Run, shown: Window) -> None:
    st.header("Why was more not lent?")
    holds = data.in_window(ledger, "dashboard/fleet_holds", run, shown)
    if holds.is_empty():
        st.info("No refusal was recorded in this time: rollouts had no work that waited, or the engines record none.")
        return
    reason = pl.col("reason").replace(fleet.REASONS)
    named = holds.with_columns(why=reason)
    display.chart(charts.holds(named), about="Time that rollouts were refused devices, by reason")
    st.caption(f"Time that rollouts with work were refused, {run.provenances[0]}. Source: `hold`.")
    frame.download(named, "holds")


def _devices(run: Run, totals: pl.DataFrame, devices: pl.DataFrame) -> None:
    st.header("Device by device")
    named = totals.join(devices.select("device_id", "state", "lent", "seen_at"), "device_id", "left")
    shown = named.select(
        "device_id",
        "pool",
        "device_class",
        pl.col("state").fill_null("silent").alias("last state"),
        "lent",
        pl.col("seen_at").alias("last seen"),
        *((pl.col(name) / 1e9).round(3).alias(f"{name} (s)") for name in ("provisioned", *BUCKETS)),
    )
    frame.table(shown, f"`device_slice` and `device`, {run.provenances[0]}; times of the whole run, in seconds.")


def _time(ledger: Path, run: Run, totals: pl.DataFrame) -> None:
    st.header("Where did all of it go?")
    by_bucket = {bucket: int(totals[bucket].sum()) for bucket in BUCKETS}
    provisioned_ns, reported_ns = int(totals["provisioned"].sum()), sum(by_bucket.values())
    by_bucket["unaccounted"] = provisioned_ns - reported_ns
    unused_ns = int(data.rows(ledger, "run/leased_unused", run)["leased_unused_ns"][0])
    left, middle, right, last = st.columns(4)
    left.metric("Provisioned device time", words.seconds(provisioned_ns))
    middle.metric("Reported by the devices", words.seconds(reported_ns))
    right.metric("Unaccounted for", words.seconds(provisioned_ns - reported_ns))
    last.metric("Leased, not used", words.seconds(unused_ns), help="Idle time of serving devices under a lease.")
    rows = [
        {
            "bucket": bucket,
            "device-seconds": ns / 1e9,
            "share": words.share(ns, provisioned_ns),
            "nanoseconds": f"{ns:,}",
            "what it is": words.BUCKET_WORDS[bucket],
        }
        for bucket, ns in by_bucket.items()
    ]
    total_ns = sum(by_bucket.values())
    total = {
        "bucket": "sum",
        "device-seconds": total_ns / 1e9,
        "share": words.share(total_ns, provisioned_ns),
        "nanoseconds": f"{total_ns:,}",
        "what it is": "the provisioned time, to the nanosecond",
    }
    frame.table(pl.DataFrame([*rows, total]), f"`device_slice` and `device`, {run.provenances[0]}, the whole run.")


frame.page("Fleet now", "Is serving safe, what is every device doing, and why was more not lent?", show)
