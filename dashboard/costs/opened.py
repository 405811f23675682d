"""A row of costs opened: its runs, the leases of a run, and one lease with its events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st
from streamlit.elements.lib.column_types import ColumnConfig

from dashboard import amounts, bar, data, display, escape, frame, lease
from dashboard import format as words
from dashboard.cards import Money
from dashboard.costs import groups
from dashboard.data import Run, Window
from dashboard.spending import BORROWED, Spending
from rose.pricing.money import NS_PER_HOUR

_RUNS, _LEASES = "cost-runs", "cost-leases"
_RUNS_MAX, _LEASES_MAX = 200, 200


def runs(spent: Spending, by: str, key: str, known: Mapping[str, Run]) -> None:
    """The runs of a row; a click on one chooses it in the bar."""
    own = groups.grouped(groups.in_row(spent.now.rollout, by, key), "run")
    label = groups.GROUPS[by][0]
    st.header(f"Which runs are in {label} {escape.markdown(key)}?")
    if not own:
        st.info("Nothing of this period is in that row.")
        return
    money, shown = Money(), own[:_RUNS_MAX]
    table = pl.DataFrame(
        {
            "run": [row.key for row in shown],
            "name": [known[row.key].name if row.key in known else None for row in shown],
            "cost": [nano / 1e9 for nano in money.together([row.nano for row in own])[: len(shown)]],
            "device-hours": [row.ns / NS_PER_HOUR for row in shown],
            "tokens": [row.tokens for row in shown],
        },
        schema_overrides={"name": pl.String},
    )
    display.table(
        table,
        key=_RUNS,
        on_select=lambda: _pick_run(table),
        selection_mode="single-row",
        column_config={"cost": amounts.column("cost", table["cost"], money.currency), **columns(table)},
    )
    which = "all" if len(own) == len(shown) else f"the dearest {len(shown):,} of {len(own):,}"
    st.caption(
        f"Source: charges of the row, {which}, {spent.bill.stamp}. Click a run to see it alone, with its leases."
    )
    st.button("Close the row", on_click=_close_row)


def leases(ledger: Path, run: Run, spent: Spending) -> None:
    """The newest leases of a run in the period with what they cost; a click opens one."""
    st.header("Which leases?")
    window = Window(spent.asked.period.from_ns, spent.asked.period.to_ns)
    newest = data.in_window(ledger, "dashboard/fleet_leases", run, window)
    if newest.is_empty():
        st.info("No lease of this run was in force in this time: it borrowed nothing.")
        return
    count, money = int(newest["leases"][0]), Money()
    cost = (
        spent.now.rollout.filter(BORROWED)
        .group_by("fleet_run_id", "lease_id")
        .agg(
            pl.col("amount_nano").sum().alias("nano"),
            pl.col("ns").filter(kind="capacity").sum(),
            pl.col("tokens").filter(bucket="rollout").sum(),
        )
    )
    # Two fleets may call their leases alike.
    shown = newest.head(_LEASES_MAX).join(
        cost, how="left", left_on=("run_id", "lease_id"), right_on=("fleet_run_id", "lease_id"), maintain_order="left"
    )
    table = shown.select(
        "lease_id",
        "device_id",
        "granted_at",
        "until",
        "closed_by",
        "close_reason",
        (pl.col("nano") / 1e9).alias("cost"),
        (pl.col("ns") / NS_PER_HOUR).alias("device-hours"),
        "tokens",
    )
    display.table(
        table.rename(lambda name: name.replace("_", " ")),
        key=_LEASES,
        on_select=lambda: _pick_lease(table),
        selection_mode="single-row",
        column_config={"cost": amounts.column("cost", table["cost"], money.currency), **columns(table)},
    )
    which = "all" if table.height == count else f"the newest {table.height:,} of {count:,}"
    st.caption(
        words.plain(
            f"Source: `lease` and charges, {which} of this time, newest first, times in UTC, {spent.bill.stamp}. An "
            "empty cost: no rollout ran in the lease. Tokens: all that were made in it. Click a lease to open it."
        )
    )
    frame.download(table.with_columns(shown["nano"].alias("nano-dollars")), "cost-leases")
    lease.opened(ledger, run)


def columns(table: pl.DataFrame) -> dict[Any, ColumnConfig]:
    """How device time and tokens of a table are shown."""
    return {
        "device-hours": amounts.hours(table["device-hours"], "Device time of rollouts, weight syncs and activations."),
        "tokens": st.column_config.NumberColumn(format="localized"),
    }


def _pick_run(table: pl.DataFrame) -> None:
    picked = st.session_state[_RUNS]["selection"]["rows"]
    if picked:
        bar.choose(run=table["run"][picked[0]])


def _pick_lease(table: pl.DataFrame) -> None:
    picked = st.session_state[_LEASES]["selection"]["rows"]
    bar.pick(lease=table["lease_id"][picked[0]] if picked else None)


def _close_row() -> None:
    bar.pick(row=None)
