"""Claims on the figures and books of a fleet whose parts were killed, and of two runs of which one was killed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.faults import processes, setting
from benchmarks.faults.books import Books
from benchmarks.faults.plan import Fault, HostName, Victim
from benchmarks.faults.processes import Sample, longest_lived
from benchmarks.faults.setting import DEVICES, ENGINES, HOST_OF, HOSTS, TEAMS
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import LeaseSeen, Ran, back_ns, lease_end_ns
from benchmarks.shared import GROWTH_MAX, show
from rose.accept.report import Report
from rose.runtime.coserving.page import SpanRecord

#: Requests that were in flight within this time after a fault are counted as touched by it.
WINDOW_NS = 8_000_000_000
#: How much more often than before a request may miss a budget after a fault, as a share of requests.
_LATE_MORE_MAX = 0.02
#: How much more often /health may have no answer then, as a share of the times that it is asked.
_MUTE_MORE_MAX = 0.01
#: Rows of what is wrong that the detail keeps.
_ROWS_KEPT = 50
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
    reason: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    """When a host's serving, or the controller, was asked how it is, and whether it answered; with the engines that
    the controller had."""

    host: HostName
    at_ns: int
    well: bool
    engines: dict[str, bool] = field(default_factory=dict)


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
    it: when a trainer dies, the lease goes on until there are no more turns, and an engine that stands still takes
    nothing. A host without power has none."""
    times = _lease_times(seen, trial)
    if times is None or not _ends_lease(trial.fault):
        return None
    host = trial.fault.host
    return (back_ns(seen.work[host], seen.ran[host], *times) - trial.at_ns) / 1e9


def _ends_lease(fault: Fault) -> bool:
    return fault.victim in _ENDS_LEASE and (fault.stop_s is None or fault.victim not in _ENGINE)


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
        claim_books(report, books, trials)
    claim_processes(report, seen.samples, _LONG_LIFE_S)
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


def claim_books(report: Report, books: Books, trials: Sequence[Trial] = ()) -> None:
    """What the ledger has to say once everything is stopped."""
    kills = [trial for trial in trials if trial.fault.stop_s is None and trial.fault.victim in _TOLD]
    missing = [trial.number for trial in kills if books.trace(trial) is None]
    lost_ns = sum(gap.length_ns for gap in books.not_accounted(trials))
    report.claim("problems that verify finds", len(books.problems), "problems", 0, "lower")
    for name, rows in books.wrong.items():
        report.claim(name, len(rows), "rows", 0, "lower")
    report.claim("device time missing or counted twice", lost_ns, "ns", 0, "lower")
    without_end = set(DEVICES.values()) - books.unaccounted_ns.keys()
    report.claim("devices without a record of their end", len(without_end), "devices", 0, "lower")
    unaccounted_ns = sum(map(abs, books.unaccounted_ns.values()))
    report.claim("  time of the others that slices lack", unaccounted_ns, "ns", 0, "lower")
    if trials:
        report.claim("kills of engines and agents not in the ledger", len(missing), "kills", 0, "lower")
    report.detail["ledger"] = {
        **books.tables,
        "bill": books.bill,
        "wrong": {name: rows[:_ROWS_KEPT] for name, rows in books.wrong.items()},
        "gaps": [asdict(gap) for gap in books.gaps],
        "unaccounted_ns": books.unaccounted_ns,
        "kills_without_trace": missing,
        "problems": books.problems,
    }


def claim_processes(report: Report, samples: dict[str, list[Sample]], long_life_s: float | None) -> None:
    """Memory of the fleet's own processes, where one lived for so long; None claims nothing of it."""
    report.detail["processes"] = {}
    for name, each in sorted(samples.items()):
        life = longest_lived(each)
        life_s, grown = life[-1].at_s - life[0].at_s, processes.growth(life)
        if long_life_s is not None and life_s >= long_life_s and grown is not None:
            report.claim(f"memory of {name}, last third over the one before", grown, "x", GROWTH_MAX, "lower")
        report.detail["processes"][name] = {
            "processes": len({sample.pid for sample in each}),
            "longest_life_s": life_s,
            "memory_growth": grown,
            "memory_mib": [round(sample.memory_bytes / 2**20, 1) for sample in (life[0], life[-1])],
            "cpu_ms_per_turn": processes.cpu_ms_per_turn(each),
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


def show_causes(seen: Seen) -> None:
    """Print what each kind of fault did, as a table."""
    show("Faults: median and worst, seconds", _COLUMNS, cells(by_cause(seen)), left=("cause", "lost"))


def _row(seen: Seen, trial: Trial, books: Books | None) -> dict[str, Any]:
    requests = touched(seen.served, trial)
    return {
        **asdict(trial.fault),
        "number": trial.number,
        "cause": trial.fault.cause,
        "wanted": trial.wanted,
        "lease": trial.lease,
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


# ------------------------------------------------------------------ two runs of two teams


@dataclass(slots=True)
class RunsSeen:
    """Of a fleet that is down: the books of its first host, whose events lie on the second, and what was seen of it.

    `costs` and `report` are the answers of `rose cost --by run`, `--by team` and `rose report`.
    """

    books: Books = field(default_factory=Books)
    writers_there: list[dict[str, Any]] = field(default_factory=list)
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    #: Trainers that ended otherwise than they were to, in words.
    clients: list[str] = field(default_factory=list)
    #: Of the run whose trainer was killed: before, and after it was resumed.
    fences: tuple[int, int] = (0, 0)
    #: By run: the steps that its trainer said were done.
    steps_told: dict[str, int] = field(default_factory=dict)
    #: By device: every offset of its clock that the controller measured.
    clock_offsets_ns: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def claim_runs(report: Report, seen: RunsSeen, *, long: bool) -> None:
    """All claims of two runs, with the detail behind them; those on memory only of a `long` run."""
    claim_books(report, seen.books)
    report.claim("events of the second host that the ledger lacks", _missing_events(seen), "events", 0, "lower")
    _claim_trainers(report, seen)
    _claim_money(report, seen)
    _claim_weights(report, seen.books.tables)
    offsets = [ns for values in seen.clock_offsets_ns.values() for ns in values]
    known = sum(bool(values) for values in seen.clock_offsets_ns.values())
    report.claim("devices whose clock's offset is known", known, "devices", len(HOST_OF), "higher")
    claim_processes(report, seen.samples, 0.0 if long else None)
    report.detail |= {
        "fences": seen.fences,
        "clients": seen.clients,
        "clock_offset_ns_median": statistics.median(offsets) if offsets else None,
        "costs": {by: answer["lines"] for by, answer in seen.costs.items()},
    }


def _claim_trainers(report: Report, seen: RunsSeen) -> None:
    runs = [run for run in seen.books.tables["runs"] if run["run_id"] != run["fleet_run_id"]]
    ended = {run["team"] for run in runs if run["status"] == "ended"}
    report.claim("RL runs of a team each that ended", len(ended), "runs", len(TEAMS), "higher")
    report.claim("RL runs beyond those", len(runs) - len(ended), "runs", 0, "lower")
    report.claim("trainers that did not end as they were to", len(seen.clients), "trainers", 0, "lower")
    report.claim("trainers killed and resumed", seen.fences[1] - seen.fences[0], "trainers", 1, "higher")
    steps = {row["run_id"]: row["steps"] for row in seen.books.tables["steps"]}
    differing = sum(abs(steps.get(run_id, 0) - told) for run_id, told in seen.steps_told.items())
    report.claim("steps that trainers and ledger do not both know", differing, "steps", 0, "lower")
    lent = {row["rollout_run_id"] for row in seen.books.tables["shared"] if row["device_id"].startswith("serving")}
    report.claim("RL runs that had borrowed time", len(lent & set(steps)), "runs", len(TEAMS), "higher")
    hosts = {HOST_OF[row["device_id"]] for row in seen.books.tables["turns"] if row["outcome"] == "completed"}
    report.claim("hosts whose engines made turns", len(hosts), "hosts", len(HOSTS), "higher")


def _claim_money(report: Report, seen: RunsSeen) -> None:
    """Charges of runs, of teams and of the report, each against the bill."""
    bill = seen.books.bill["nano"]
    summed = {"charges of runs and teams": sum(row["cost_nano"] for row in seen.books.bill["charges"])}
    for by, answer in seen.costs.items():
        summed[f"charges of `rose cost --by {by}`"] = sum(line["cost_nano"] for line in answer["lines"])
        summed[f"the bill of `rose cost --by {by}`"] = answer["bill_nano"]
    for view in ("amortized", "fully_loaded"):
        summed[f"`rose report`, {view}"] = round(seen.report[view]["total"]["value"])
    for name, nano in summed.items():
        report.claim(f"{name}, less the bill", abs(nano - bill), "nano-dollars", 0, "lower")
    rounded = abs(bill - seen.books.bill["exact_nano"])
    report.claim(
        "the bill less devices' time and syncs' bytes at their prices",
        rounded,
        "nano-dollars",
        seen.books.bill["rounded"] / 2,
        "lower",
    )
    charged = {line["team"] for line in seen.costs["team"]["lines"] if line["cost_nano"] > 0}
    teams = sum(team.name in charged for team in TEAMS)
    report.claim("teams with charges of their own", teams, "teams", len(TEAMS), "higher")


def _claim_weights(report: Report, tables: dict[str, Any]) -> None:
    """Weights of a trainer on another host come by a relay over the route between the two."""
    host_of = {run["run_id"]: next((t.host for t in TEAMS if t.name == run["team"]), None) for run in tables["runs"]}
    there = [row for row in tables["syncs"] if row["ok"] and host_of.get(row["rl_run_id"]) is not None]
    across = [row for row in there if HOST_OF[row["device_id"]] != host_of[row["rl_run_id"]]]
    ways = {(row["source"], row["route"]) for row in across}
    relayed = {HOST_OF[row["device_id"]] for row in across}
    report.claim("hosts that had another's weights by their relay", len(relayed), "hosts", len(HOSTS), "higher")
    wrong = sum(row["syncs"] for row in across if (row["source"], row["route"]) != ("relay", setting.ROUTE))
    near = [row for row in there if row not in across]
    wrong += sum(row["syncs"] for row in near if (row["source"], row["route"]) != ("trainer", "loopback"))
    report.claim("syncs with another source or route than theirs", wrong, "syncs", 0, "lower")
    report.detail["ways between hosts"] = sorted(ways)


def _missing_events(seen: RunsSeen) -> int:
    """Events that a writer of the second host has there and the ledger has not, or has otherwise."""
    here = {row["writer"]: row["events"] for row in seen.books.tables["writers"]}
    own = [row for row in seen.writers_there if row["writer"].startswith("other.")]
    if not own:
        return 1
    return sum(abs(row["events"] - here.get(row["writer"], 0)) for row in own)
