"""How lending harms serving: missed latency budgets, compared with times without leases, and preemptions."""

from datetime import timedelta
from fractions import Fraction

import polars as pl
import streamlit as st

from dashboard import charts, data, escape, frame
from dashboard import format as words
from dashboard.data import Run, Window
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing import risk
from rose.pricing.period import naive

_BINS = 120
_BY_LEASE = "lent requests failed slo_share ttft_p50_ns ttft_p99_ns tpot_p50_ns tpot_p99_ns"
_SLOWEST = "event_time device_id lent outcome slo_ok ttft_ns tpot_max_ns e2e_ns prompt_tokens yields_waited revocations"
_REACTIONS = "device_id action reason preemptions latency_p50_ns latency_p99_ns latency_max_ns off_device_max_ns"
_TAKEN = "event_time device_id action lease_id reason times duration_ns tokens_lost"


def show(ledger: Ledger, run: Run) -> None:
    fleet = run.fleet_run_id
    with frame.errors_shown():
        _harm(ledger, fleet, run.provenances[0])
    st.header("How did serving do?")
    window, times = frame.window(run)
    within = {"from_ns": window.from_ns, "to_ns": window.to_ns, "blocks": _BINS}
    latency = data.rows(ledger, "dashboard/latency", run_id=fleet, **within)
    if latency.is_empty():
        st.info("No serving request was recorded in this time.")
    else:
        _latency(latency, window, run)
        with st.expander("Requests on lent and on other devices (not comparable)"):
            frame.query(ledger, "slo_attainment_by_lease", "No request.", _BY_LEASE, run_id=fleet, **times)
        with st.expander("Slowest requests"):
            frame.query(ledger, "slowest_requests", "No request.", _SLOWEST, run_id=fleet, **times)
    st.header("What did serving take back?")
    st.markdown(
        "Yield: a rollout waited for serving between two layers. Cut: its memory was reduced. Revoke: the lease ended."
    )
    nothing = "Serving took nothing back in this time."
    if frame.query(ledger, "preemption_latency", nothing, _REACTIONS, run_id=fleet, **times):
        with st.expander("Every cut and revocation"):
            only = "Serving made rollouts wait and took nothing else back."
            frame.query(ledger, "who_preempted_whom", only, _TAKEN, run_id=fleet, without="yield", **times)


def _harm(ledger: Ledger, fleet: str, provenance: str) -> None:
    st.header("What does lending do to serving?")
    measured = data.kept(lambda: risk.without_prices(ledger, fleet), ledger, "harm", fleet)
    harmful = risk.harmful(measured)
    frame.verdict(None if harmful is None else not harmful, escape.prose(risk.says(measured)))
    if measured.confounded:
        st.markdown(
            "Late requests on lent and on other devices are not comparable: leases follow load, and a late request "
            "ends its lease. Leases withheld at random measure the cost of lending: set `coserving.holdout_share` in "
            "the fleet file."
        )
    st.caption(
        f"{measured.withheld:,} of {measured.windows:,} windows were withheld at random in the whole run, "
        f"{provenance}. Source: `holdout`, `request`, `lease`. The page Borrowing shows the harm as money."
    )


def _latency(latency: pl.DataFrame, window: Window, run: Run) -> None:
    requests = int(latency["requests"].sum())
    late = words.percent(Fraction(requests - int(latency["kept"].sum()), requests))
    shown = [("Missed a latency budget", str(late), f"of {requests:,} requests, whole fleet")]
    budgets = {name: _budget_ms(latency, name) for name in ("ttft", "tpot")}
    for label, (name, budget) in zip(("First token", "Further token"), budgets.items(), strict=True):
        tail = latency[f"{name}_p99_ms"].max()
        worst = words.milliseconds(None if tail is None else float(str(tail)))
        budget_text = "budgets differ" if budget is None else f"budget {words.milliseconds(budget)}"
        shown.append((f"{label}, worst p99", worst, f"over the points below; {budget_text}"))
    frame.figures(*shown)
    whole = _with_gaps(latency, window)
    for name, budget in budgets.items():
        chart = charts.latency(whole, name, naive(window.from_ns), naive(window.to_ns), budget)
        escape.chart(chart, about=f"Serving latency over time, {name}, with its budget")
    st.caption(
        f"All requests, on lent and other devices. In a gap, there were no requests. {words.trace(run)} "
        f"{run.provenances[0].capitalize()}. Source: `request`."
    )
    frame.download(latency, "latency", label="Latency as CSV")


def _with_gaps(latency: pl.DataFrame, window: Window) -> pl.DataFrame:
    width = timedelta(microseconds=max(10**6, (window.to_ns - window.from_ns) // 1000 // _BINS + 1))
    first, last = int(latency["bin"][0]), int(latency["bin"][-1])
    bins = pl.DataFrame({"bin": range(first, last + 1)}, schema={"bin": latency.schema["bin"]})
    t = pl.lit(latency["t"][0]) + (pl.col("bin") - first) * width
    return bins.join(latency.drop("t"), "bin", "left", maintain_order="left").with_columns(t=t)


def _budget_ms(latency: pl.DataFrame, name: str) -> float | None:
    least, most = latency[f"{name}_budget_min_ns"].min(), latency[f"{name}_budget_max_ns"].max()
    return float(str(least)) / 1e6 if least is not None and least == most else None


frame.page(
    "Serving", "Does lending harm serving, does serving keep its latency budgets, and what did it take back?", show
)
