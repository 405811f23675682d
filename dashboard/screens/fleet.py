"""Whether serving is safe, how each device is used, and why leases were refused."""

from fractions import Fraction

import polars as pl
import streamlit as st

from dashboard import bar, charts, data, escape, frame
from dashboard import format as words
from dashboard.data import Run, Window
from rose.ledger.ledger import Ledger
from rose.pricing.period import naive

#: Serving is judged by its requests in this time before the last event.
_JUDGED_MIN = 15
_MINUTE_NS = 60 * 10**9
_SILENT_MIN = 5  # A device without a report for this long has no state.
_BINS = 200
_LEASES = (  # Other ids come last.
    *("granted_at", "device_id", "seconds", "closed_by", "close_reason", "step", "kv_granted_mb", "kv_least_mb"),
    *("renewals", "until", "rl_run_id", "lease_id"),
)
_HOLDS = "device_id leased reason explanation holds held_ns"
_TIME = "day device_id serving_ns rollout_ns train_ns sync_ns activation_ns headroom_ns idle_ns ns"
_ENGINES = "engine_id device_id role model started_at start_ns ended_by ended_at reason"
_SYNCS = "event_time engine_id policy_version route reason made_good_at"
_PHASES = (
    "encoding source route syncs wire_bytes encode_p50_ns fetch_p50_ns verify_p50_ns stage_p50_ns pause_p50_ns "
    "total_p50_ns"
)


def show(ledger: Ledger, run: Run) -> None:
    fleet = run.fleet_run_id
    last_ns = run.whole.to_ns
    devices = data.rows(ledger, "dashboard/devices", run_id=fleet, from_ns=last_ns - _SILENT_MIN * _MINUTE_NS)
    if devices.is_empty():
        st.info("No device has joined this run yet.")
        return
    _verdict(ledger, run)
    _counts(run, devices.filter(~pl.col("has_left")) if run.going_on else devices, now=run.going_on)
    st.header("What happened, and when?")
    window, times = frame.window(run)
    leases = _timeline(ledger, run, window)
    _leases(leases, run)
    _holds(ledger, fleet, run, times)
    _devices(ledger, run, devices)
    _weights(ledger, fleet, times)


def _verdict(ledger: Ledger, run: Run) -> None:
    newest = {"from_ns": run.whole.to_ns - _JUDGED_MIN * _MINUTE_NS, "to_ns": run.whole.to_ns, "blocks": 1}
    promise = data.promise(data.rows(ledger, "dashboard/latency", run_id=run.fleet_run_id, **newest))
    target = words.percent(data.SERVING_TARGET, 0)
    word = "Serving's safety is unknown"
    if promise.kept is not None:
        word = f"Serving {'is' if run.going_on else 'was'} {'safe' if promise.kept else 'NOT safe'}"
    word += " by a ledger that does not verify" if frame.look(ledger).problems else ""
    when = "" if run.going_on else f"No fleet is running. Its last event was {words.when(run.last_event_at)}. "
    minutes = f"in the {_JUDGED_MIN} minutes before the last event"
    why = f"{minutes}, {promise.text}; the target is {target}"
    frame.verdict(promise.kept, f"{when}**{word}**: {why}.", over=not run.going_on)


def _counts(run: Run, devices: pl.DataFrame, *, now: bool) -> None:
    serving = devices.filter(pool="serving")
    st.header("What are the serving devices doing?" if now else "What did the serving devices do last?")
    counted = (
        ("Serving devices", serving.height, "in the pool `serving`"),
        ("Lent", int(serving["lent"].fill_null(False).sum()), "under a lease, in any state"),
        ("Serving requests", serving.filter(state="serving").height, "most of the last slice"),
        ("Rollouts", serving.filter(state="rollout").height, "most of the last slice"),
        ("Headroom", serving.filter(state="headroom").height, "kept for serving while rollouts waited"),
        ("Idle", serving.filter(state="idle").height, "no work"),
        ("Silent", serving["state"].null_count(), f"no slice for {_SILENT_MIN} minutes"),
    )
    frame.figures(*((label, f"{count:,}", about) for label, count, about in counted))
    beside = serving.filter(pl.col("beside_share") > 0)
    if not beside.is_empty():
        means = (float(beside[name].sum()) / beside.height for name in ("beside_share", "slowed_share"))
        share, slowed = map(Fraction, means)
        st.info(
            f"Where rollouts ran beside live requests (serving devices: {beside.height:,}), rollouts had "
            f"{words.percent(share)} of the device, and serving's steps took {words.percent(slowed)} longer "
            "(mean of the newest slices)."
        )
    st.caption(f"Counted by the newest slice of each device, {run.provenances[0]}. Source: `device_slice`, `device`.")


def _timeline(ledger: Ledger, run: Run, window: Window) -> pl.DataFrame:
    within = {"run_id": run.fleet_run_id, "from_ns": window.from_ns, "to_ns": window.to_ns}
    leases = data.rows(ledger, "dashboard/leases", **within)
    states = data.rows(ledger, "dashboard/device_states", blocks=_BINS, **within)
    preemptions = data.rows(ledger, "dashboard/preemptions", blocks=_BINS, **within)
    if states.is_empty():
        st.info("No device reported its time in these hours.")
        return leases
    if not states["each_device"].all():
        st.info("More than 40 devices are drawn by pool. The table below lists each device.")
    for chart in charts.lanes(naive(window.from_ns), naive(window.to_ns), states, leases, preemptions):
        escape.chart(chart, about=str(chart.title.text))
    st.caption(
        "A lease lets a rollout engine use a serving device. Yield: a rollout waited for serving. Cut: its memory was "
        f"reduced. Revoke: the lease ended. {run.provenances[0].capitalize()}. Source: `device_slice`, "
        "`lease`, `preemption`."
    )
    frame.download(charts.most_of_each_bin(states).drop("each_device"), "states", label="States as CSV")
    frame.download(preemptions, "preemptions", label="Preemptions as CSV")
    return leases


def _leases(leases: pl.DataFrame, run: Run) -> None:
    st.header("Which leases?")
    if leases.is_empty():
        st.info("No lease was active in this time.")
        return
    count, shown = int(leases["leases"][0]), leases.select(_LEASES)
    shown = shown.with_columns(pl.col("close_reason").cast(pl.String).replace(words.REASONS))

    def pick(row: int | None) -> None:
        if row is not None:
            bar.choose(run=run.fleet_run_id, by="lease", lease=leases["lease_id"][row])

    which = "all" if count == leases.height else f"the newest {leases.height:,} of {count:,}"
    source = (
        f"`lease`, {which} of this time, newest first, times in UTC, {run.provenances[0]}. Click a row for the lease's "
        "charges and events on the page Cost."
    )
    frame.table(shown, source, name="leases", on_pick=pick)
    if bar.chosen().lease is not None:
        st.page_link("screens/cost.py", label="The lease's charges and events")


def _holds(ledger: Ledger, fleet: str, run: Run, times: dict[str, str]) -> None:
    st.header("Why was more not lent?")
    with frame.errors_shown():
        rows = data.named_rows(ledger, "holds_by_reason", _HOLDS, run_id=fleet, **times)
        if rows.is_empty():
            st.info("No refusal was recorded in this time: no rollout waited for a device.")
            return
        source = (
            f"`rose query holds_by_reason`, {run.provenances[0]}: time in which rollouts with work were refused. "
            "It includes time in which serving worked, so it is not the device's idle time"
        )
        shown = ("device_id", "leased", "why", "holds", "held")
        explained = rows.with_columns(why=pl.coalesce("explanation", pl.col("reason").replace(words.REASONS)))
        frame.table(
            explained.select(name for name in explained.columns if name.split(" (")[0] in shown), source, name="holds"
        )


def _devices(ledger: Ledger, run: Run, devices: pl.DataFrame) -> None:
    st.header("Device by device")
    shown = devices.with_columns(state=pl.col("state").fill_null("silent")).rename({"state": "last_state"})
    frame.table(shown, f"`device` and `device_slice`, {run.provenances[0]}; times in UTC.", name="devices")
    with st.expander("Device time by day and bucket"):
        nothing = "No device has reported its time yet."
        frame.query(ledger, "device_time_by_bucket_and_day", nothing, _TIME, run_id=run.fleet_run_id)


def _weights(ledger: Ledger, fleet: str, times: dict[str, str]) -> None:
    st.header("Are the engines alive, and do weights arrive?")
    frame.query(ledger, "engine_lives", "No engine was recorded.", _ENGINES, run_id=fleet)
    st.subheader("Weight syncs that failed")
    frame.query(ledger, "sync_failures", "No weight sync failed in this time.", _SYNCS, run_id=fleet, **times)
    with st.expander("Time of a sync by phase"):
        frame.query(ledger, "sync_phases", "No weight sync was recorded.", _PHASES, run_id=fleet, **times)


frame.page("Fleet now", "Is serving safe, what is every device doing, and why was more not lent?", show)
