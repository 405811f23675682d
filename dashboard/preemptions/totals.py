"""What serving took back in a window, whole and by how fast rollouts gave way, and in words. Pure but for reading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from dashboard import data, fleet
from dashboard.data import Run, Window
from dashboard.link import ACTIONS

#: Of each action, one and several, as they are said.
_NAMES: Mapping[str, tuple[str, str]] = {
    "yield": ("yield", "yields"),
    "cut": ("cut", "cuts"),
    "revoke": ("revocation", "revocations"),
}
BLOCKS = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Taken:
    """What was taken back: rows of `preemptions/totals`, by action and by bin of the reaction, and over time.

    `by_action` has an action that happened; a value in it is None where some events did not record it.
    """

    by_action: Mapping[str, Mapping[str, Any]]
    reactions: pl.DataFrame
    causes: pl.DataFrame
    over_time: pl.DataFrame
    #: Serving's own budgets, milliseconds; None where requests had different ones, or there were none.
    ttft_budget_ms: float | None
    tpot_budget_ms: float | None

    def count(self, action: str) -> int:
        """How often it happened."""
        return int(self.by_action[action]["preemptions"]) if action in self.by_action else 0

    def total(self, action: str, name: str) -> int | None:
        """A sum over the preemptions of an action: 0 where there were none, None where some did not record it."""
        value = self.by_action[action][name] if action in self.by_action else 0
        return None if value is None else int(value)

    @property
    def budgets(self) -> dict[str, float]:
        """Serving's budgets that are known, milliseconds, by what they are of."""
        known = {"first token": self.ttft_budget_ms, "further token": self.tpot_budget_ms}
        return {name: ms for name, ms in known.items() if ms is not None}


def read(ledger: Path, run: Run, shown: Window) -> Taken:
    """What was taken back in a window. Raises ReadError, LedgerError."""
    rows = data.in_window(ledger, "dashboard/preemptions/totals", run, shown)
    latency = data.in_window(ledger, "dashboard/fleet_latency", run, shown, blocks=1)
    return Taken(
        by_action={row["action"]: row for row in rows.filter(pl.col("bin").is_null()).to_dicts()},
        reactions=rows.filter(pl.col("bin").is_not_null()),
        causes=data.in_window(ledger, "dashboard/preemptions/causes", run, shown),
        over_time=data.in_window(ledger, "dashboard/fleet_preemptions", run, shown, blocks=BLOCKS),
        ttft_budget_ms=fleet.budget_ms(latency, "ttft"),
        tpot_budget_ms=fleet.budget_ms(latency, "tpot"),
    )


def in_words(taken: Taken) -> str:
    """What was taken back, how fast, and what was lost."""
    counted = [_times(action, taken.count(action)) for action in ACTIONS if taken.count(action)]
    if not counted:
        return "Serving took nothing back in this time."
    sentences = [f"Serving took something back by {_listed(counted)}."]
    sentences += [said for action in ACTIONS if (said := reaction(taken, action))]
    if taken.count("cut") or taken.count("revoke"):
        sentences.append(_lost(taken))
    return " ".join(sentences)


def reaction(taken: Taken, action: str) -> str:
    """How fast rollouts gave way, as a sentence; empty where the action did not happen."""
    row = taken.by_action.get(action)
    if row is None:
        return ""
    plural = _NAMES[action][1].capitalize()
    if not row["measured"]:
        return f"How fast rollouts gave way to {plural.lower()} was not recorded."
    part = f" ({row['measured']:,} of {row['recorded']:,} recorded it)" if row["measured"] < row["recorded"] else ""
    return f"{plural}: half within {duration(row['p50_ms'])}, 99% within {duration(row['p99_ms'])}{part}."


def duration(ms: float) -> str:
    """`0.091 ms`, `13 ms`, `2.1 s`; where the rollout was off the device already when serving wished for it, so."""
    if ms == 0:
        return "no time (already off the device)"
    if ms < 0.001:
        return "0.001 ms"
    return f"{ms / 1e3:,.3g} s" if ms >= 1e3 else f"{ms:.3g} ms"


def _lost(taken: Taken) -> str:
    lost = [taken.total(action, "tokens_lost") for action in ("cut", "revoke")]
    if None in lost:
        return "How many tokens were lost is not known: some did not record it."
    tokens = sum(filter(None, lost))
    return "No token was lost." if not tokens else f"{tokens:,} token{' was' if tokens == 1 else 's were'} lost."


def _times(action: str, count: int) -> str:
    one, several = _NAMES[action]
    return f"{count:,} {one if count == 1 else several}"


def _listed(parts: list[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)
