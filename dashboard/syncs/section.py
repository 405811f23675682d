"""Whether weights arrive: which version each engine holds, what a sync takes, over which route, and what failed."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import data, display, frame
from dashboard.data import Run, Window
from dashboard.syncs import charts
from rose.pricing.closing.period import naive


def show(ledger: Path, run: Run, shown: Window) -> None:
    """The weight syncs of the window."""
    st.header("Do weights arrive?")
    routes = data.in_window(ledger, "dashboard/syncs/routes", run, shown)
    engines = data.in_window(ledger, "dashboard/syncs/engines", run, shown)
    if engines.is_empty():
        st.info("No weight sync was recorded.")
        return
    reached, failed = int(routes["reached"].sum()), int(routes["failed"].sum())
    st.markdown(in_words(engines, reached, failed))
    _held(ledger, run, shown, engines)
    if routes.is_empty():
        return
    _versions(ledger, run, shown)
    _routes(run, routes)
    if failed:
        _failures(ledger, run, shown)
    _newest(ledger, run, shown)


def in_words(engines: pl.DataFrame, reached: int, failed: int) -> str:
    """How the engines stand at the end of the window, all of them where none is there any more, and how syncs went."""
    there = engines.filter(~pl.col("gone"))
    gone = there.is_empty()
    judged = engines if gone else there
    behind, unknown = judged.filter(pl.col("behind") > 0), judged["behind"].null_count()
    if judged.height == 1:
        counted, verb = ("The one engine", "held" if gone else "holds")
    else:
        counted, verb = (f"All {judged.height:,} engines", "held" if gone else "hold")
    first = f"{counted} {verb} the newest version"
    if behind.height or unknown:
        first = f"Of {judged.height:,} engines {behind.height:,} {'were' if gone else 'are'} behind the newest version"
        first += f", by up to {int(str(behind['behind'].max())):,}" if behind.height else ""
        first += f", and {unknown:,} never reached one" if unknown else ""
    first += ", and none is there any more." if gone else "."
    if not reached + failed:
        return f"{first} No sync ended in this time."
    return f"{first} {reached + failed:,} syncs ended in this time, {failed:,} of them failed."


def _held(ledger: Path, run: Run, shown: Window, engines: pl.DataFrame) -> None:
    lines = data.in_window(ledger, "dashboard/syncs/held", run, shown)
    if lines["line"].drop_nulls().len():
        st.subheader("Which engine held which version?")
        display.chart(
            charts.held(lines, naive(shown.from_ns), naive(shown.to_ns)),
            about="The version that each engine held over time, and the newest that was published",
        )
        most = (
            ""
            if engines.height <= charts.ENGINES_MAX
            else (f" The {charts.ENGINES_MAX} of {engines.height:,} engines that are furthest behind are drawn.")
        )
        st.caption(
            "By the last sync that reached a version; dashed: the newest that the run's trainer published."
            f"{most} {run.provenances[0].capitalize()}. Source: `sync`, `step`."
        )
    frame.table(
        engines,
        f"`sync`, `engine` and `step`, {run.provenances[0]}; engines as they stand at the end of this time, in UTC. "
        "Behind: versions published since the one held. Gone: stopped, died, detached, or given another run's weights.",
    )


def _versions(ledger: Path, run: Run, shown: Window) -> None:
    rows = data.in_window(ledger, "dashboard/syncs/versions", run, shown)
    versions = rows.sort("first_at", "rl_run_id", "policy_version").with_columns(
        version=_label(rows), text=_megabytes(pl.col("dense_bytes"))
    )
    count = int(rows["versions"][0]) if rows.height else 0
    which = "" if rows.height == count else f" The newest {rows.height:,} of {count:,} versions."
    left, right = st.columns(2)
    with left:
        st.subheader("What does a sync spend its time on?")
        display.chart(charts.phases(versions), about="Mean time of each phase of a sync, by version")
        st.caption(
            "Means of the syncs that reached the version. A phase that one of them did not record is left out, and is "
            f"in other. The engine stands still for the pause alone.{which} {run.provenances[0].capitalize()}. Source: "
            "`sync`."
        )
    with right:
        st.subheader("How much is sent?")
        display.chart(charts.moved(versions), about="Bytes sent for each version")
        st.caption(f"To all engines, failed syncs too.{which} {run.provenances[0].capitalize()}. Source: `sync`.")
    frame.download(versions.drop("versions", "text"), "versions", label="Versions as CSV")


def _label(rows: pl.DataFrame) -> pl.Expr:
    """The version; with its RL run's name where several share the fleet."""
    version = pl.col("policy_version").cast(pl.String)
    return version if rows["rl_run_id"].n_unique() < 2 else pl.format("{} of {}", version, "rl_run_id")


def _megabytes(column: pl.Expr) -> pl.Expr:
    return pl.format("{} MB", (column / 1e6).round(1)).fill_null("unknown")


def _routes(run: Run, routes: pl.DataFrame) -> None:
    st.subheader("Over which route?")
    timed = [name for name in routes.columns if name.endswith("_ms")]
    shown = routes.with_columns(pl.col(timed).round(3)).with_columns(
        wire_bytes=pl.col("wire_bytes") / 1e6, dense_bytes=pl.col("dense_bytes") / 1e6
    )
    frame.table(
        shown.rename({"wire_bytes": "sent_mb", "dense_bytes": "whole_mb"}),
        f"`sync`, {run.provenances[0]}. Whole: what the same weights would be without deltas, of syncs that reached "
        "their version; sent has those that failed as well.",
    )


def _failures(ledger: Path, run: Run, shown: Window) -> None:
    st.subheader("Which syncs failed?")
    rows = data.in_window(ledger, "dashboard/syncs/failed", run, shown)
    count = int(rows["failures"][0])
    which = "all" if rows.height == count else f"the newest {rows.height:,} of {count:,}"
    frame.table(
        rows.drop("failures"),
        f"`sync`, {which}, newest first, times in UTC, {run.provenances[0]}. Made good: the engine's next sync that "
        "reached that version or a newer one; empty: none has.",
    )


def _newest(ledger: Path, run: Run, shown: Window) -> None:
    opened = st.expander("Every sync of this time", on_change="rerun")
    if not opened.open:
        return
    syncs = data.in_window(ledger, "dashboard/syncs/newest", run, shown)
    count = int(syncs["syncs"][0])
    which = "all" if count == syncs.height else f"the newest {syncs.height:,} of {count:,}; `rose sql` has all"
    with opened:
        frame.table(syncs.drop("syncs"), f"`sync`, {which}, newest first, times in UTC, {run.provenances[0]}.")
