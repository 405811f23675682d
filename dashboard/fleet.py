"""What Fleet now reads: how the fleet stands, and what it did in a window of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import polars as pl

from dashboard import data
from dashboard.cards import percent
from dashboard.data import Run, Window
from dashboard.timeline import Lanes
from dashboard.window import bin_width, whole
from rose.pricing.closing.period import naive

#: Serving is judged by the requests of so much time before its last event, if they are enough.
JUDGED = timedelta(minutes=15)
REQUESTS_MIN = 20
#: A device that did not report for so long is not counted as doing anything.
SILENT = timedelta(minutes=5)
_LATENCY_BINS = 120

#: Why rollouts were refused a device, by the ledger's word.
REASONS = {
    "no_lease": "no lease was in force",
    "serving_step": "serving was at work",
    "prefill_slack": "a first token would have come late",
    "decode_slack": "a further token would have come late",
    "next_request": "the next request would not have fit",
    "compute_share": "the lease's share of the device was used up",
    "kv_budget": "the lease's memory was used up",
    "regret": "serving had been delayed enough",
    "unknown_times": "how long a step takes was not known yet",
    "no_serving": "serving did not answer",
    "policy": "the policy said no",
    "withheld": "withheld at random, to measure what lending costs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """Whether serving is safe; None: that is not known. `why` is a sentence."""

    safe: bool | None
    why: str

    @property
    def text(self) -> str:
        if self.safe is None:
            return "Whether serving is safe is not known"
        return "Serving is safe" if self.safe else "Serving is NOT safe"


def verdict(ledger: Path, run: Run, target: Decimal) -> Verdict:
    """By the newest requests; the target is in percent. Raises ReadError, LedgerError."""
    end_ns = whole(run).to_ns
    newest = Window(end_ns - JUDGED // timedelta(microseconds=1) * 1000, end_ns)
    bins = data.in_window(ledger, "dashboard/fleet_latency", run, newest, blocks=1)
    requests, kept = int(bins["requests"].sum()), int(bins["kept"].sum())
    minutes = JUDGED // timedelta(minutes=1)
    if requests < REQUESTS_MIN:
        return Verdict(
            safe=None,
            why=f"{requests} requests were recorded in the {minutes} minutes before its last event, and it takes "
            f"{REQUESTS_MIN}.",
        )
    share = Fraction(kept, requests)
    return Verdict(
        safe=share >= Fraction(target) / 100,
        why=f"{percent(share)} of the {requests:,} requests of the {minutes} minutes before its last event came within "
        f"their latency budgets; the target is {target:f}%.",
    )


def now(ledger: Path, run: Run) -> pl.DataFrame:
    """The devices that are there: pool, what each did last (`state`, NULL where it is silent), and if it was lent then.

    Raises ReadError, LedgerError.
    """
    end_ns = whole(run).to_ns
    silent_ns = SILENT // timedelta(microseconds=1) * 1000
    devices = data.in_window(ledger, "dashboard/fleet_now", run, Window(end_ns - silent_ns, end_ns))
    return devices.filter(~pl.col("has_left")) if run.going_on else devices


def lanes(ledger: Path, run: Run, shown: Window) -> Lanes:
    """What is drawn. Raises ReadError, LedgerError."""
    latency = data.in_window(ledger, "dashboard/fleet_latency", run, shown, blocks=_LATENCY_BINS)
    begin, end = naive(shown.from_ns), naive(shown.to_ns)
    return Lanes(
        begin=begin,
        end=end,
        states=data.in_window(ledger, "dashboard/fleet_states", run, shown),
        leases=data.in_window(ledger, "dashboard/fleet_leases", run, shown),
        latency=_with_gaps(latency, shown),
        preemptions=data.in_window(ledger, "dashboard/fleet_preemptions", run, shown),
        ttft_budget_ms=budget_ms(latency, "ttft"),
        tpot_budget_ms=budget_ms(latency, "tpot"),
    )


def _with_gaps(latency: pl.DataFrame, shown: Window) -> pl.DataFrame:
    """A row for every bin between the first and the last: NULL where there was no request."""
    if latency.is_empty():
        return latency
    width = bin_width(shown, _LATENCY_BINS)
    first, last = int(latency["bin"][0]), int(latency["bin"][-1])
    bins = pl.DataFrame({"bin": range(first, last + 1)}, schema={"bin": latency.schema["bin"]})
    t = pl.lit(latency["t"][0]) + (pl.col("bin") - first) * width
    return bins.join(latency.drop("t"), "bin", "left", maintain_order="left").with_columns(t=t)


def budget_ms(latency: pl.DataFrame, name: str) -> float | None:
    """The budget in milliseconds; None where requests had different ones."""
    least, most = latency[f"{name}_budget_min_ns"].min(), latency[f"{name}_budget_max_ns"].max()
    return float(str(least)) / 1e6 if least is not None and least == most else None
