"""What was lent, what was taken back, and the weights that were moved for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from dashboard import charts, data, frame
from dashboard import format as words
from dashboard.data import Run


def show(ledger: Path, run: Run) -> None:
    leases = data.rows(ledger, "dashboard/leases", run)
    preemptions = data.rows(ledger, "dashboard/preemption_bins", run)
    syncs = data.rows(ledger, "dashboard/syncs", run)
    if leases.is_empty() and preemptions.is_empty() and syncs.is_empty():
        st.info("Nothing was lent yet: no lease, preemption or weight sync has been recorded.")
        return
    _totals(ledger, run)
    st.subheader("When was each device lent, and when taken back?")
    synced = syncs.with_columns(sync=pl.when("ok").then(pl.lit("succeeded")).otherwise(pl.lit("failed")))
    chart = charts.leases(leases, preemptions, synced)
    st.altair_chart(chart, width="stretch", alt="Leases, preemptions and weight syncs on each device over time")
    st.caption(
        "A lease is a rollout engine's permission to use a serving device. Yield: a rollout waited for serving; cut: "
        "its memory was reduced; revoke: the lease ended. A sync brings new weights to an engine. "
        f"{run.provenances[0].capitalize()}. Source: `lease`, `preemption`, `sync`."
    )
    newest = data.rows(ledger, "dashboard/preemptions", run)
    for title, rows, view, most in (
        ("Leases", leases, "lease", 500),
        ("Preemptions", newest, "preemption", 200),
        ("Weight syncs", syncs, "sync", 500),
    ):
        st.subheader(title)
        if rows.is_empty():
            st.info("None was recorded.")
        else:
            frame.table(rows, f"`{view}`, newest first, at most {most} rows, times in UTC, {run.provenances[0]}.")


def _totals(ledger: Path, run: Run) -> None:
    closings = {row["closing"]: row for row in data.rows(ledger, "run/lease_totals", run).to_dicts()}
    taken = {row["action"]: row for row in data.rows(ledger, "run/preemption_totals", run).to_dicts()}
    granted = sum(int(row["leases"]) for row in closings.values())
    first, second, third, fourth = st.columns(4)
    with first:
        st.metric("Leases granted", f"{granted:,}")
        st.caption(", ".join(f"{row['leases']} {name}" for name, row in closings.items()) or "none")
    with second:
        row = taken.get("yield", {})
        st.metric("Yields", f"{row.get('preemptions', 0):,}")
        st.caption(f"rollouts waited {words.seconds(int(row.get('waited_ns') or 0))} for serving")
    with third:
        row = taken.get("cut", {})
        st.metric("Cuts", f"{row.get('preemptions', 0):,}")
        st.caption(f"{_count(row, 'requests')} requests moved, {_count(row, 'tokens_lost')} tokens lost")
    with fourth:
        row = taken.get("revoke", {})
        st.metric("Leases revoked", f"{row.get('preemptions', 0):,}")
        st.caption(f"tokens kept: {_count(row, 'tokens_kept')}, lost: {_count(row, 'tokens_lost')}")
    st.caption(f"Counts over the whole run, {run.provenances[0]}. Source: `lease`, `preemption`.")


def _count(row: Mapping[str, Any], name: str) -> str:
    """A sum of preemptions: 0 where there were none, unknown where some did not record it."""
    value = row.get(name, 0)
    return "not recorded" if value is None else f"{int(value):,}"


frame.page("Leases", "When were serving devices lent to rollouts, and how did serving take them back?", show)
