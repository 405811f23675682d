"""What happened while devices were lent: leases, preemptions, weight syncs, and what serving's clients saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.pricing.figures import Figure, Figures
from rose.pricing.money import PricingError

CLOSINGS: tuple[str, ...] = ("released", "preempted", "expired", "open")

#: Stands where a figure would be that some events did not record.
NOT_RECORDED = "not recorded"
#: With fewer samples than this, a 99th percentile is the largest one measured.
P99_SAMPLES = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Preemptions:
    """Preemptions of one action."""

    count: Figure
    waited: Figure
    requests: Figure
    tokens_kept: Figure
    tokens_lost: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Syncs:
    """Weight syncs to every device; the ratio is dense bytes over wire bytes of those that succeeded."""

    count: Figure
    failed: Figure
    wire: Figure
    dense_over_wire: Figure
    pause: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Serving latency of some requests. The budgets are None where requests had different ones."""

    requests: Figure
    failed: Figure
    missed_budget: Figure
    ttft_p50: Figure
    ttft_p99: Figure
    tpot_p50: Figure
    tpot_p99: Figure
    ttft_budget: Figure
    tpot_budget: Figure
    #: Too few for a 99th percentile to mean more than the largest value.
    few_samples: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineEnd:
    """An engine that ended although nobody stopped it. Times are UTC text; None: not seen, or not started again."""

    engine_id: str
    ended: str | None
    restarted: str | None
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Engines:
    """Engines that died, and how many of them were started again."""

    restarts: Figure
    ends: tuple[EngineEnd, ...]


def engines(make: Figures, ends: Sequence[Mapping[str, Any]]) -> Engines:
    """In the order in which they ended."""
    return Engines(
        restarts=make.number(sum(row["restarted_ns"] is not None for row in ends), "count"),
        ends=tuple(
            EngineEnd(
                engine_id=row["engine_id"],
                ended=None if row["ended_ns"] is None else utc(row["ended_ns"]),
                restarted=None if row["restarted_ns"] is None else utc(row["restarted_ns"]),
                reason=row["reason"],
            )
            for row in ends
        ),
    )


def leases(make: Figures, totals: Sequence[Mapping[str, Any]], leased_ns: int) -> dict[str, Figure]:
    """Counts by closing, `granted`, and `leased` time. Raises PricingError for a closing that no lease can have."""
    counts = dict.fromkeys(CLOSINGS, 0)
    for row in totals:
        if row["closing"] not in counts:
            raise PricingError(f"{row['leases']} leases closed by {row['closing']!r}, which is not one of {CLOSINGS}")
        counts[row["closing"]] += row["leases"]
    return {
        "granted": make.number(sum(counts.values()), "count"),
        **{closing: make.number(number, "count") for closing, number in counts.items()},
        "leased": make.number(leased_ns, "ns"),
    }


def preemptions(make: Figures, totals: Sequence[Mapping[str, Any]]) -> dict[str, Preemptions]:
    """By action, the three that exist always there."""
    by_action = {row["action"]: row for row in totals}
    result = {}
    for action in ("yield", "cut", "revoke"):
        row = by_action.get(action, {})
        result[action] = Preemptions(
            count=make.number(row.get("preemptions", 0), "count"),
            waited=make.number(row.get("waited_ns", 0), "ns", why=NOT_RECORDED),
            requests=make.number(row.get("requests", 0), "count", why=NOT_RECORDED),
            tokens_kept=make.number(row.get("tokens_kept", 0), "tokens", why=NOT_RECORDED),
            tokens_lost=make.number(row.get("tokens_lost", 0), "tokens", why=NOT_RECORDED),
        )
    return result


def syncs(make: Figures, totals: Sequence[Mapping[str, Any]]) -> Syncs:
    """All syncs together; bytes of failed ones count, since they were sent."""
    good = [row for row in totals if row["ok"]]
    return Syncs(
        count=make.number(sum(row["syncs"] for row in totals), "count"),
        failed=make.number(sum(row["syncs"] for row in totals if not row["ok"]), "count"),
        wire=make.number(sum(row["wire_bytes"] for row in totals), "bytes"),
        dense_over_wire=make.part(
            int(sum(row["dense_bytes"] for row in good)), int(sum(row["wire_bytes"] for row in good)), unit="ratio"
        ),
        pause=make.number(sum(row["pause_ns"] for row in totals), "ns"),
    )


def latency(make: Figures, totals: Sequence[Mapping[str, Any]]) -> dict[str, Latency]:
    """Requests that arrived while the device was lent, while it was not, and all."""
    by_name = {"all" if row["everything"] else "lent" if row["lent"] else "not lent": row for row in totals}
    return {name: _latency(make, by_name.get(name)) for name in ("all", "lent", "not lent")}


def _latency(make: Figures, row: Mapping[str, Any] | None) -> Latency:
    if row is None or not row["requests"]:
        none, zero = make.number(None, "ns"), make.number(0, "count")
        return Latency(
            requests=zero,
            failed=zero,
            missed_budget=make.part(0, 0),
            ttft_p50=none,
            ttft_p99=none,
            tpot_p50=none,
            tpot_p99=none,
            ttft_budget=none,
            tpot_budget=none,
            few_samples=False,
        )
    return Latency(
        requests=make.number(row["requests"], "count"),
        failed=make.number(row["failed"], "count"),
        missed_budget=make.part(row["violations"], row["requests"]),
        ttft_p50=make.number(row["ttft_p50_ns"], "ns"),
        ttft_p99=make.number(row["ttft_p99_ns"], "ns"),
        tpot_p50=make.number(row["tpot_p50_ns"], "ns"),
        tpot_p99=make.number(row["tpot_p99_ns"], "ns"),
        ttft_budget=_budget(make, row["ttft_budget_min_ns"], row["ttft_budget_max_ns"]),
        tpot_budget=_budget(make, row["tpot_budget_min_ns"], row["tpot_budget_max_ns"]),
        few_samples=min(row["ttft_samples"], row["tpot_samples"]) < P99_SAMPLES,
    )


def _budget(make: Figures, least_ns: int, most_ns: int) -> Figure:
    if least_ns == most_ns:
        return make.number(least_ns, "ns")
    return make.number(None, "ns", why=f"differs between requests: {least_ns / 1e6:g} to {most_ns / 1e6:g} ms")
