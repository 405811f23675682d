"""The figures of a run of faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.faults.books import Books
from benchmarks.faults.plan import Fault, HostName, Victim
from benchmarks.faults.processes import GROWTH_MAX, Sample, growth, longest_lived
from benchmarks.faults.setting import DEVICES, ENGINES
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import LeaseSeen, Ran, back_ns, lease_end_ns, overrun_ns
from rose.accept.report import Report
from rose.runtime.coserving.page import SpanRecord

#: Requests that were in flight within this time after a fault are counted as touched by it.
WINDOW_NS = 8_000_000_000
#: How much more often than before a request may miss a budget after a fault, as a share of requests.
_LATE_MORE_MAX = 0.02
#: How much more often /health may have no answer then, as a share of the times that it is asked.
_MUTE_MORE_MAX = 0.01
#: Of a process that lives for so long it is claimed that its memory does not grow.
_LONG_LIFE_S = 1800.0
_ENGINE = frozenset({Victim.SERVER, Victim.SCHEDULER})
#: Parts whose end ends a lease at once, or changes an engine; the others' shows only if they had something to do.
_TOLD = _ENGINE | {Victim.AGENT}
#: Parts that, while they are away, have somebody else end the lease by its time.
_ENDS_LEASE = _TOLD | {Victim.NODE}


@dataclass(frozen=True, slots=True)
class Served:
    """A serving request as its user saw it. Monotonic nanoseconds."""

    host: HostName
    sent_ns: int
    ended_ns: int
    failed: bool
    #: Whether it missed a budget; a request that failed missed both.
    late: bool
    ttft_ns: int | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """When a host's serving, or the controller, was asked how it is, and whether it answered; with the engines that
    the controller had."""

    host: HostName
    at_ns: int
    well: bool
    engines: dict[str, bool]


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    """Everything that was seen during a run."""

    trials: Sequence[Trial]
    leases: dict[HostName, Sequence[LeaseSeen]]
    work: dict[HostName, Sequence[SpanRecord]]
    #: What the rollout engines had of their cores.
    ran: dict[HostName, Sequence[Ran]]
    served: Sequence[Served]
    health: Sequence[Asked]
    controller: Sequence[Asked]
    ttl_s: float
    planned: int
    #: Whether the fleet was lost.
    ended: bool = False
    #: Of the fleet's own processes, by part.
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def touched(served: Sequence[Served], trial: Trial) -> list[Served]:
    """Requests that were in flight at the fault, or sent shortly after it."""
    return [one for one in served if one.ended_ns >= trial.at_ns and one.sent_ns <= trial.at_ns + WINDOW_NS]


def before(served: Sequence[Served], trials: Sequence[Trial]) -> list[Served]:
    """Requests that no fault touched: they had ended before it, or were sent long after it."""
    hit = {id(one) for trial in trials for one in touched(served, trial)}
    return [one for one in served if id(one) not in hit]


def powered(seen: Seen, asked: Sequence[Asked]) -> list[Asked]:
    """Those that were asked on a host with power and, once it is back, with its serving engine."""
    off = [
        (trial.fault.host, trial.at_ns, trial.replaced_ns or trial.until_ns)
        for trial in seen.trials
        if trial.fault.victim is Victim.HOST
    ]
    return [one for one in asked if not any(host == one.host and a <= one.at_ns <= b for host, a, b in off)]


def _follows(one: Asked, trial: Trial) -> bool:
    return trial.at_ns <= one.at_ns <= trial.at_ns + WINDOW_NS


def _mute(asked: Sequence[Asked]) -> float:
    """Of what was asked, what had no answer in time."""
    return sum(not one.well for one in asked) / len(asked) if asked else 0.0


def device_back_s(seen: Seen, trial: Trial) -> float | None:
    """From the fault until serving had the device to itself; None if the lease outlived the fault, or is not touched by
    it: when a worker dies, the lease goes on until there are no more turns, and an engine that stands still takes
    nothing. A host without power has none."""
    return _back_s(seen, trial, seen.ran[trial.fault.host])


def step_ended_s(seen: Seen, trial: Trial) -> float | None:
    """From the fault until the last step that the lease had let in ended, for what `device_back_s` has a time of."""
    # As if it had had the device all the time.
    return _back_s(seen, trial, ())


def _back_s(seen: Seen, trial: Trial, ran: Sequence[Ran]) -> float | None:
    times = _lease_times(seen, trial)
    if times is None or not _ends_lease(trial.fault):
        return None
    return (back_ns(seen.work[trial.fault.host], ran, *times) - trial.at_ns) / 1e9


def _ends_lease(fault: Fault) -> bool:
    return fault.victim in _ENDS_LEASE and (fault.stop_s is None or fault.victim not in _ENGINE)


def late_work_s(seen: Seen, trial: Trial) -> float:
    """How long after the lease had ended rollout work last began all the same."""
    times = _lease_times(seen, trial)
    return 0.0 if times is None else overrun_ns(seen.work[trial.fault.host], *times) / 1e9


def noticed_s(seen: Seen, trial: Trial) -> float | None:
    """From the fault until the controller did not answer, or had no engine of the struck host; None: it did."""
    engine_id = ENGINES[trial.fault.host]
    return next(
        (
            (one.at_ns - trial.at_ns) / 1e9
            for one in seen.controller
            if trial.at_ns <= one.at_ns <= trial.until_ns and not (one.well and one.engines.get(engine_id))
        ),
        None,
    )


def _lease_times(seen: Seen, trial: Trial) -> tuple[int, int, int] | None:
    """(begin, end, last look without the next) of the lease that a fault met; None if it lived on beyond the
    observation. The next one may let work in before it is seen."""
    leases = seen.leases[trial.fault.host]
    numbers = [lease.number for lease in leases]
    end_ns = lease_end_ns(leases, trial.lease)
    if end_ns is None or end_ns > trial.until_ns or trial.lease not in numbers:
        return None
    begin_ns = leases[numbers.index(trial.lease)].at_ns
    later = [lease.without_ns for lease in leases if lease.number > trial.lease]
    return begin_ns, end_ns, min(later, default=trial.until_ns)


def claim(report: Report, seen: Seen, books: Books | None) -> None:
    """Claims and detail of what was seen; `books` None: the ledger could not be read."""
    trials = list(seen.trials)
    failed = [one for trial in trials for one in touched(seen.served, trial) if one.failed]
    calm = before(seen.served, trials)
    hit = {id(one): one for trial in trials for one in touched(seen.served, trial)}
    late_calm, late_hit = _share(calm), _share(list(hit.values()))
    # The agents of a Ray node that is killed go on for a moment, and renew.
    backs = [
        back for trial in trials if trial.fault.victim in _TOLD and (back := device_back_s(seen, trial)) is not None
    ]
    report.claim("trials carried out", len(trials), "trials", seen.planned, "higher")
    report.claim("faults that ended the fleet", int(seen.ended), "faults", 0, "lower")
    report.claim("serving requests failed because of a fault", len(failed), "requests", 0, "lower")
    late_more = late_hit - late_calm
    report.claim("  over budget after a fault, more than without", late_more, "of requests", _LATE_MORE_MAX, "lower")
    until_ns = max((trial.until_ns for trial in trials), default=0)
    # A burst keeps serving from answering as well, fault or none.
    health = [one for one in powered(seen, seen.health) if one.at_ns <= until_ns]
    after: list[Asked] = []
    otherwise: list[Asked] = []
    for one in health:
        (after if any(_follows(one, trial) for trial in trials) else otherwise).append(one)
    mute_hit, mute_calm = _mute(after), _mute(otherwise)
    report.claim(
        "  /health not answered after a fault, more than without",
        mute_hit - mute_calm,
        "of times",
        _MUTE_MORE_MAX,
        "lower",
    )
    report.claim("serving started anew", sum(len(trial.serving_anew) for trial in trials), "times", 0, "lower")
    report.claim("device back with serving, worst trial", max(backs, default=0.0), "s", seen.ttl_s, "lower")
    again = sum(trial.lending_ns is not None for trial in trials)
    report.claim("trials after which lending came back", again, "trials", len(trials), "higher")
    wrong = sum(bool(trial.wrong) for trial in trials)
    report.claim("trials after which something was wrong in the ledger", wrong, "trials", 0, "lower")
    if books is not None:
        _claim_books(report, trials, books)
    report.detail["processes"] = {}
    for name, samples in sorted(seen.samples.items()):
        life = longest_lived(samples)
        life_s, grown = life[-1].at_s - life[0].at_s, growth(life)
        if life_s >= _LONG_LIFE_S and grown is not None:
            report.claim(f"memory of {name}, last third over the one before", grown, "x", GROWTH_MAX, "lower")
        report.detail["processes"][name] = {
            "processes": len({sample.pid for sample in samples}),
            "longest_life_s": life_s,
            "memory_growth": grown,
            "memory_mib": [round(sample.memory_bytes / 2**20, 1) for sample in (life[0], life[-1])],
        }
    report.detail["serving"] = {
        "requests": len(seen.served),
        "touched": len(hit),
        "untouched": len(calm),
        "over_budget_untouched": late_calm,
        "over_budget_touched": late_hit,
        "failed": [one.reason for one in failed],
        "health_asked": len(seen.health),
        "health_mute_touched": mute_hit,
        "health_mute_untouched": mute_calm,
    }
    report.detail["by_cause"] = by_cause(seen)
    report.detail["trials"] = [_row(seen, trial, books) for trial in trials]


def _claim_books(report: Report, trials: list[Trial], books: Books) -> None:
    """What the ledger has to say once everything is stopped."""
    wrong = books.not_closed_once()
    kills = [trial for trial in trials if trial.fault.stop_s is None and trial.fault.victim in _TOLD]
    missing = [trial.number for trial in kills if books.trace(trial) is None]
    gaps = books.not_accounted(trials)
    for name, many, unit in (
        ("turns lost", len(books.turns_lost), "turns"),
        ("turns counted twice", len(books.turns_twice), "turns"),
        ("steps missing", books.steps_missing, "steps"),
        ("steps made twice", books.steps_twice, "steps"),
        ("device time missing or counted twice", sum(abs(gap.end_ns - gap.begin_ns) for gap in gaps), "ns"),
        ("devices without a record of their end", len(set(DEVICES.values()) - books.unaccounted_ns.keys()), "devices"),
        ("  time of the others that slices lack", sum(map(abs, books.unaccounted_ns.values())), "ns"),
        ("slices whose parts are not their length", books.wrong_slices, "slices"),
        ("leases that did not end exactly once", len(wrong), "leases"),
        ("kills of engines and agents not in the ledger", len(missing), "kills"),
        ("problems that verify finds", len(books.problems), "problems"),
    ):
        report.claim(name, many, unit, 0, "lower")
    report.detail["ledger"] = {
        "leases": len({(change.device_id, change.number) for change in books.leases}),
        "not_closed_once": wrong,
        "turns": books.turns,
        "turns_lost": books.turns_lost[:50],
        "turns_twice": books.turns_twice[:50],
        "steps": books.steps,
        "gaps": [asdict(gap) for gap in books.gaps],
        "unaccounted_ns": books.unaccounted_ns,
        "kills_without_trace": missing,
        "problems": books.problems,
    }


_TIMES: dict[str, Callable[[Seen, Trial], float | None]] = {
    "device_back_s": device_back_s,
    "noticed_s": noticed_s,
    "replaced_s": lambda _, trial: _since(trial, trial.replaced_ns),
    "lending_again_s": lambda _, trial: _since(trial, trial.lending_ns),
}


def by_cause(seen: Seen) -> dict[str, dict[str, Any]]:
    """Times of each kind of fault, and what it cost."""
    rows: dict[str, dict[str, Any]] = {}
    for cause in dict.fromkeys(sorted(trial.fault.cause for trial in seen.trials)):
        trials = [trial for trial in seen.trials if trial.fault.cause == cause]
        row: dict[str, Any] = {"trials": len(trials)}
        for name, measure in _TIMES.items():
            values = sorted(value for trial in trials if (value := measure(seen, trial)) is not None)
            row[name] = None if not values else {"median": values[len(values) // 2], "worst": values[-1]}
        row["lost"] = [text for trial in trials for text in lost(seen, trial)]
        rows[cause] = row
    return rows


def lost(seen: Seen, trial: Trial) -> list[str]:
    """What a fault cost, in words; nothing if all is well."""
    failed = sum(one.failed for one in touched(seen.served, trial))
    words = [f"{failed} serving requests"] if failed else []
    words += ["lending did not come back"] if trial.lending_ns is None else []
    words += [f"serving on {host} started anew" for host in trial.serving_anew]
    return [*words, *trial.wrong]


_COLUMNS = ("cause", "trials", "device back", "controller noticed", "there again", "lent again", "lost")


def cells(rows: dict[str, dict[str, Any]]) -> list[list[str]]:
    """What each kind of fault did, by `by_cause`, as text under `_COLUMNS`: median and worst, in seconds."""
    return [
        [
            cause,
            str(row["trials"]),
            *("" if row[name] is None else f"{row[name]['median']:.1f} / {row[name]['worst']:.1f}" for name in _TIMES),
            "; ".join(dict.fromkeys(row["lost"])) or "nothing",
        ]
        for cause, row in rows.items()
    ]


def show(seen: Seen) -> None:
    """Print what each kind of fault did, as a table."""
    table = Table(title="Faults: median and worst, seconds")
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column in ("cause", "lost") else "right")
    for row in cells(by_cause(seen)):
        table.add_row(*row)
    Console(width=140).print(table)


def _row(seen: Seen, trial: Trial, books: Books | None) -> dict[str, Any]:
    requests = touched(seen.served, trial)
    return {
        **asdict(trial.fault),
        "number": trial.number,
        "cause": trial.fault.cause,
        "wanted": trial.wanted,
        "lease": trial.lease,
        "work_begun_after_lease_s": late_work_s(seen, trial),
        "step_ended_s": step_ended_s(seen, trial),
        **{name: measure(seen, trial) for name, measure in _TIMES.items()},
        "seconds": (trial.until_ns - trial.at_ns) / 1e9,
        "steps": trial.steps,
        "requests": len(requests),
        "over_budget": sum(one.late for one in requests),
        "failed": sum(one.failed for one in requests),
        "health_failed": sum(not one.well for one in powered(seen, seen.health) if _follows(one, trial)),
        "wrong": trial.wrong,
        "in_ledger": None if books is None else books.trace(trial),
    }


def line(seen: Seen, trial: Trial) -> str:
    """One trial for the terminal."""
    requests = touched(seen.served, trial)
    back_s, again_s = device_back_s(seen, trial), _since(trial, trial.lending_ns)
    return (
        f"{trial.fault} {'while serving wanted the device' if trial.wanted else 'while serving was idle'}: "
        f"{'' if back_s is None else f'device back after {back_s:.2f} s, '}"
        f"{'NOT lent again' if again_s is None else f'lent again after {again_s:.1f} s'}, "
        f"{len(requests)} requests, {sum(one.late for one in requests)} over budget; "
        f"lost: {'; '.join(lost(seen, trial)) or 'nothing'}"
    )


def _since(trial: Trial, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - trial.at_ns) / 1e9


def _share(served: Sequence[Served]) -> float:
    """Of the requests that were answered, those over a budget."""
    answered = [one for one in served if not one.failed]
    return sum(one.late for one in answered) / len(answered) if answered else 0.0
