"""The figures of a run of faults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.faults.books import Books
from benchmarks.faults.clients import Served
from benchmarks.faults.plan import Victim
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import LeaseSeen, back_ns, lease_end_ns, overrun_ns
from benchmarks.report import Report
from rose.runtime.coserving.page import SpanRecord

#: Requests that were in flight within this time after a fault are counted as touched by it.
WINDOW_NS = 8_000_000_000
#: How much more often than before a request may miss a budget after a fault, as a share of requests.
_LATE_MORE_MAX = 0.02
#: Parts whose end changes a lease or an engine. A worker's shows only if it had something to play.
_TOLD = frozenset(Victim) - {Victim.WORKER}


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Everything that was seen during a run."""

    trials: Sequence[Trial]
    leases: Sequence[LeaseSeen]
    work: Sequence[SpanRecord]
    served: Sequence[Served]
    health: Sequence[tuple[int, bool]]
    #: Pids of the serving engine's scheduler, one after another.
    serving_pids: Sequence[int]
    ttl_s: float
    planned: int
    #: Whether the deployment ended by itself.
    ended: bool = False


def touched(served: Sequence[Served], trial: Trial) -> list[Served]:
    """Requests that were in flight at the fault, or sent shortly after it."""
    return [one for one in served if one.ended_ns >= trial.at_ns and one.sent_ns <= trial.at_ns + WINDOW_NS]


def before(served: Sequence[Served], trials: Sequence[Trial]) -> list[Served]:
    """Requests that no fault touched: they had ended before it, or were sent long after it."""
    hit = {id(one) for trial in trials for one in touched(served, trial)}
    return [one for one in served if id(one) not in hit]


def device_back_s(seen: Seen, trial: Trial) -> float | None:
    """From the fault until serving had the device to itself; None if the lease outlived the fault, or is not touched by
    it: when a worker dies, the lease goes on until there are no more turns."""
    times = _lease_times(seen, trial)
    if times is None or trial.fault.victim not in _TOLD:
        return None
    begin_ns, end_ns, next_ns = times
    return (back_ns(seen.work, begin_ns, end_ns, next_ns) - trial.at_ns) / 1e9


def late_work_s(seen: Seen, trial: Trial) -> float:
    """How long after the lease had ended rollout work last began all the same."""
    times = _lease_times(seen, trial)
    return 0.0 if times is None else overrun_ns(seen.work, *times) / 1e9


def _lease_times(seen: Seen, trial: Trial) -> tuple[int, int, int] | None:
    """(begin, end, begin of the next) of the lease that a fault met; None if it lived on beyond the observation."""
    numbers = [lease.number for lease in seen.leases]
    end_ns = lease_end_ns(seen.leases, trial.lease)
    if end_ns is None or end_ns > trial.until_ns or trial.lease not in numbers:
        return None
    begin_ns = seen.leases[numbers.index(trial.lease)].at_ns
    later = [lease.at_ns for lease in seen.leases if lease.number > trial.lease]
    return begin_ns, end_ns, min(later, default=trial.until_ns)


def claim(report: Report, seen: Seen, books: Books | None) -> None:
    """Claims and detail of what was seen; `books` None: the ledger could not be read."""
    trials = list(seen.trials)
    failed = [one for trial in trials for one in touched(seen.served, trial) if one.failed]
    calm = before(seen.served, trials)
    hit = {id(one): one for trial in trials for one in touched(seen.served, trial)}
    late_calm, late_hit = _share(calm), _share(list(hit.values()))
    backs = [back for trial in trials if (back := device_back_s(seen, trial)) is not None]
    report.claim("trials carried out", len(trials), "trials", seen.planned, "higher")
    report.claim("faults that ended the deployment", int(seen.ended), "faults", 0, "lower")
    report.claim("serving requests failed because of a fault", len(failed), "requests", 0, "lower")
    late_more = late_hit - late_calm
    report.claim("  over budget after a fault, more than without", late_more, "of requests", _LATE_MORE_MAX, "lower")
    until_ns = max((trial.until_ns for trial in trials), default=0)
    refused = sum(not well for at_ns, well in seen.health if at_ns <= until_ns)
    report.claim("  /health of serving not answered", refused, "times", 0, "lower")
    report.claim("serving started anew", len(set(seen.serving_pids)) - 1, "times", 0, "lower")
    report.claim("device back with serving, worst trial", max(backs, default=0.0), "s", seen.ttl_s, "lower")
    again = sum(trial.lending_ns is not None for trial in trials)
    report.claim("trials after which lending came back", again, "trials", len(trials), "higher")
    if books is not None:
        wrong = books.not_closed_once()
        held = sum(trial.lease in wrong for trial in trials)
        report.claim("leases met by a fault that did not end exactly once", held, "leases", 0, "lower")
        kills = [trial for trial in trials if trial.fault.stop_s is None]
        missing = [trial.number for trial in kills if trial.fault.victim in _TOLD and books.trace(trial) is None]
        report.claim("kills of engines, agents, gateways not in the ledger", len(missing), "kills", 0, "lower")
        report.claim("problems that verify finds", len(books.problems), "problems", 0, "lower")
        report.detail["ledger"] = {
            "leases": len({change.number for change in books.leases}), "not_closed_once": wrong,
            "kills_without_trace": missing, "problems": books.problems,
        }  # fmt: skip
    report.detail["serving"] = {
        "requests": len(seen.served), "touched": len(hit), "untouched": len(calm),
        "over_budget_untouched": late_calm, "over_budget_touched": late_hit,
        "failed": [one.reason for one in failed], "health_asked": len(seen.health),
    }  # fmt: skip
    report.detail["by_victim"] = by_victim(seen)
    report.detail["trials"] = [_row(seen, trial, books) for trial in trials]


def by_victim(seen: Seen) -> dict[str, dict[str, Any]]:
    """Times of each kind of fault."""
    rows: dict[str, dict[str, Any]] = {}
    for trial in seen.trials:
        name = f"{trial.fault.victim} {'killed' if trial.fault.stop_s is None else 'stopped'}"
        row = rows.setdefault(name, {"trials": 0, "device_back_s": [], "lending_again_s": []})
        row["trials"] += 1
        if (back_s := device_back_s(seen, trial)) is not None:
            row["device_back_s"].append(back_s)
        if trial.lending_ns is not None:
            row["lending_again_s"].append((trial.lending_ns - trial.at_ns) / 1e9)
    for row in rows.values():
        for name in ("device_back_s", "lending_again_s"):
            values = sorted(row[name])
            row[name] = None if not values else {"median": values[len(values) // 2], "worst": values[-1]}
    return rows


def _row(seen: Seen, trial: Trial, books: Books | None) -> dict[str, Any]:
    requests = touched(seen.served, trial)
    return {
        **asdict(trial.fault), "number": trial.number, "wanted": trial.wanted, "lease": trial.lease,
        "device_back_s": device_back_s(seen, trial), "work_begun_after_lease_s": late_work_s(seen, trial),
        "replaced_s": _since(trial, trial.replaced_ns), "lending_again_s": _since(trial, trial.lending_ns),
        "requests": len(requests), "over_budget": sum(one.late for one in requests),
        "failed": sum(one.failed for one in requests),
        "health_failed": sum(not well for at, well in seen.health if trial.at_ns <= at <= trial.at_ns + WINDOW_NS),
        "in_ledger": None if books is None else books.trace(trial),
    }  # fmt: skip


def line(seen: Seen, trial: Trial) -> str:
    """One trial for the terminal."""
    requests = touched(seen.served, trial)
    back_s, again_s = device_back_s(seen, trial), _since(trial, trial.lending_ns)
    return (
        f"{trial.fault} {'while serving wanted the device' if trial.wanted else 'while serving was idle'}: "
        f"{'lease went on' if back_s is None else f'device back after {back_s:.2f} s'}, "
        f"{'NOT lent again' if again_s is None else f'lent again after {again_s:.1f} s'}, "
        f"{len(requests)} requests, {sum(one.late for one in requests)} over budget, "
        f"{sum(one.failed for one in requests)} failed"
    )


def _since(trial: Trial, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - trial.at_ns) / 1e9


def _share(served: Sequence[Served]) -> float:
    """Of the requests that were answered, those over a budget."""
    answered = [one for one in served if not one.failed]
    return sum(one.late for one in answered) / len(answered) if answered else 0.0
