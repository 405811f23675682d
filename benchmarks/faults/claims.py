"""Claims about a fleet with faults, and about two runs with a killed trainer."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.faults import setting
from benchmarks.faults.books import Books
from benchmarks.faults.plan import HostName, Victim
from benchmarks.faults.processes import Sample, longest_lived
from benchmarks.faults.setting import DEVICES, HOST_OF, HOSTS, TEAMS
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import LeaseSeen, Ran, back_ns, lease_end_ns
from benchmarks.shared import GROWTH_MAX, growth, show
from rose.accept.report import Report
from rose.runtime.coserving.page import SpanRecord

WINDOW_NS = 8_000_000_000  #: A fault touches the requests in flight within this time after it.
#: Shares of requests and of /health questions by which misses may be more frequent after a fault.
_LATE_MORE_MAX, _MUTE_MORE_MAX = 0.02, 0.01
_ROWS_KEPT = 50
_ENGINE = frozenset({Victim.SERVER, Victim.SCHEDULER})
#: The end of these parts ends a lease at once, or changes an engine, so that the ledger always has a trace of it.
_TRACED = _ENGINE | {Victim.AGENT}
_ENDS_LEASE = _TRACED | {Victim.NODE}  #: Without these parts another part ends the lease at its expiry.


@dataclass(frozen=True, slots=True)
class Served:
    """A request as its user saw it. Monotonic nanoseconds. A failed request is also late."""

    host: HostName
    sent_ns: int
    ended_ns: int
    failed: bool
    late: bool
    reason: str | None


@dataclass(frozen=True, slots=True)
class Asked:
    host: HostName
    at_ns: int
    well: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Seen:
    trials: Sequence[Trial]
    leases: dict[HostName, Sequence[LeaseSeen]]
    work: dict[HostName, Sequence[SpanRecord]]
    ran: dict[HostName, Sequence[Ran]]
    served: Sequence[Served]
    health: Sequence[Asked]
    ttl_s: float
    planned: int
    ended: bool = False


def touched(served: Sequence[Served], trial: Trial) -> list[Served]:
    """Return the requests in flight at the fault, or sent shortly after it."""
    return [one for one in served if one.ended_ns >= trial.at_ns and one.sent_ns <= trial.at_ns + WINDOW_NS]


def _powered(seen: Seen) -> list[Asked]:
    off = [
        (trial.fault.host, trial.at_ns, trial.replaced_ns or trial.until_ns)
        for trial in seen.trials
        if trial.fault.victim is Victim.HOST
    ]
    return [one for one in seen.health if not any(host == one.host and a <= one.at_ns <= b for host, a, b in off)]


def _mute_share(questions: Sequence[Asked]) -> float:
    return sum(not one.well for one in questions) / len(questions) if questions else 0.0


def _late_share(served: Sequence[Served]) -> float:
    answered = [one for one in served if not one.failed]
    return sum(one.late for one in answered) / len(answered) if answered else 0.0


def device_back_s(seen: Seen, trial: Trial) -> float | None:
    """Return the time from the fault until serving had the device alone; None if the fault does not end the lease."""
    fault, leases = trial.fault, seen.leases[trial.fault.host]
    if fault.victim not in _ENDS_LEASE or (fault.stop_s is not None and fault.victim in _ENGINE):
        return None
    numbers = [lease.number for lease in leases]
    end_ns = lease_end_ns(leases, trial.lease)
    if end_ns is None or end_ns > trial.until_ns or trial.lease not in numbers:
        return None
    begin_ns = leases[numbers.index(trial.lease)].at_ns
    # The next lease may let work in before it is seen.
    next_ns = min((lease.without_ns for lease in leases if lease.number > trial.lease), default=trial.until_ns)
    back = back_ns(seen.work[fault.host], seen.ran[fault.host], begin_ns, end_ns, next_ns)
    return (back - trial.at_ns) / 1e9


def claim(report: Report, seen: Seen, books: Books | None) -> None:
    trials = list(seen.trials)
    hit = {id(one): one for trial in trials for one in touched(seen.served, trial)}
    failed = [one for one in hit.values() if one.failed]
    late_hit = _late_share(list(hit.values()))
    calm = [one for one in seen.served if id(one) not in hit]
    # The agents of a killed Ray node live for a moment longer, and renew.
    backs = [back for t in trials if t.fault.victim in _TRACED and (back := device_back_s(seen, t)) is not None]
    until_ns = max((trial.until_ns for trial in trials), default=0)
    # A burst without a fault also keeps serving from answering.
    health = [one for one in _powered(seen) if one.at_ns <= until_ns]
    after, otherwise = list[Asked](), list[Asked]()
    for one in health:
        follows = any(trial.at_ns <= one.at_ns <= trial.at_ns + WINDOW_NS for trial in trials)
        (after if follows else otherwise).append(one)
    mute_hit, mute_calm = _mute_share(after), _mute_share(otherwise)
    again = sum(trial.lending_ns is not None for trial in trials)
    wrong = sum(bool(trial.wrong) for trial in trials)
    report.claim("trials carried out", len(trials), "trials", seen.planned, "higher")
    report.claim("faults that ended the fleet", int(seen.ended), "faults", 0, "lower")
    report.claim("serving requests failed because of a fault", len(failed), "requests", 0, "lower")
    late_more = late_hit - _late_share(calm)
    report.claim("  over budget after a fault, more than without", late_more, "of requests", _LATE_MORE_MAX, "lower")
    name = "  /health not answered after a fault, more than without"
    report.claim(name, mute_hit - mute_calm, "of times", _MUTE_MORE_MAX, "lower")
    report.claim("serving started anew", sum(len(trial.serving_anew) for trial in trials), "times", 0, "lower")
    report.claim("device back with serving, worst trial", max(backs, default=0.0), "s", seen.ttl_s, "lower")
    report.claim("trials after which lending came back", again, "trials", len(trials), "higher")
    report.claim("trials after which something was wrong in the ledger", wrong, "trials", 0, "lower")
    if books is not None:
        claim_books(report, books, trials)
    report.detail["serving"] = {"requests": len(seen.served), "failed": [one.reason for one in failed]}
    report.detail["by_cause"] = by_cause(seen)
    report.detail["trials"] = [
        {
            **asdict(trial),
            **{name: measure(seen, trial) for name, measure in _TIMES.items()},
            "requests": [asdict(one) for one in touched(seen.served, trial)],
            "in_ledger": None if books is None else books.trace(trial),
        }
        for trial in trials
    ]


def claim_books(report: Report, books: Books, trials: Sequence[Trial] = ()) -> None:
    kills = [trial for trial in trials if trial.fault.stop_s is None and trial.fault.victim in _TRACED]
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


def _claim_processes(report: Report, samples: dict[str, list[Sample]], long: bool) -> None:
    """Claim that the memory of the fleet's processes did not grow in a `long` run."""
    report.detail["processes"] = {}
    for name, readings in sorted(samples.items()):
        life = longest_lived(readings)
        grown = growth([sample.memory_bytes for sample in life])
        if long and grown is not None:
            report.claim(f"memory of {name}, last third over the one before", grown, "x", GROWTH_MAX, "lower")
        report.detail["processes"][name] = {
            "processes": len({sample.pid for sample in readings}),
            "longest_life_s": life[-1].at_s - life[0].at_s,
            "memory_mib": [round(sample.memory_bytes / 2**20, 1) for sample in (life[0], life[-1])],
        }


def _since(trial: Trial, at_ns: int | None) -> float | None:
    return None if at_ns is None else (at_ns - trial.at_ns) / 1e9


_TIMES: dict[str, Callable[[Seen, Trial], float | None]] = {
    "device_back_s": device_back_s,
    "replaced_s": lambda _, trial: _since(trial, trial.replaced_ns),
    "lending_again_s": lambda _, trial: _since(trial, trial.lending_ns),
}
_COLUMNS = ("cause", "trials", "device back", "there again", "lent again", "lost")


def by_cause(seen: Seen) -> dict[str, dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for cause in sorted({trial.fault.cause for trial in seen.trials}):
        trials = [trial for trial in seen.trials if trial.fault.cause == cause]
        row: dict[str, Any] = {"trials": len(trials)}
        for name, measure in _TIMES.items():
            values = sorted(value for trial in trials if (value := measure(seen, trial)) is not None)
            row[name] = None if not values else {"median": values[len(values) // 2], "worst": values[-1]}
        row["lost"] = [text for trial in trials for text in lost(seen, trial)]
        rows[cause] = row
    return rows


def lost(seen: Seen, trial: Trial) -> list[str]:
    failed = sum(one.failed for one in touched(seen.served, trial))
    costs = [f"{failed} serving requests"] if failed else []
    costs += ["lending did not come back"] if trial.lending_ns is None else []
    costs += [f"serving on {host} started anew" for host in trial.serving_anew]
    return [*costs, *trial.wrong]


def show_causes(seen: Seen) -> None:
    rows = []
    for cause, row in by_cause(seen).items():
        times = ["" if row[n] is None else f"{row[n]['median']:.1f} / {row[n]['worst']:.1f}" for n in _TIMES]
        rows.append([cause, str(row["trials"]), *times, "; ".join(dict.fromkeys(row["lost"])) or "nothing"])
    show("Faults: median and worst, seconds", _COLUMNS, rows, left=("cause", "lost"))


def line(seen: Seen, trial: Trial) -> str:
    times = [f"{n} {value:.1f}" for n, measure in _TIMES.items() if (value := measure(seen, trial)) is not None]
    return f"{trial.fault}: {', '.join(times)}; lost: {'; '.join(lost(seen, trial)) or 'nothing'}"


@dataclass(slots=True)
class RunsSeen:
    """Records of a stopped fleet: the first host's books, and the answers of commands."""

    books: Books = field(default_factory=Books)
    writers_there: list[dict[str, Any]] = field(default_factory=list)
    costs: dict[str, dict[str, Any]] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    clients: list[str] = field(default_factory=list)
    #: Fences of the run whose trainer was killed, before the kill and after the resumption.
    fences: tuple[int, int] = (0, 0)
    steps_told: dict[str, int] = field(default_factory=dict)
    #: Every device of the controller's status, and whether its clock offset was ever known.
    clock_is_known: dict[str, bool] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def claim_runs(report: Report, seen: RunsSeen, *, long: bool) -> None:
    claim_books(report, seen.books)
    report.claim("events of the second host that the ledger lacks", _missing_events(seen), "events", 0, "lower")
    _claim_trainers(report, seen)
    _claim_money(report, seen)
    _claim_weights(report, seen.books.tables)
    clocks = sum(seen.clock_is_known.values())
    report.claim("devices whose clock's offset is known", clocks, "devices", len(HOST_OF), "higher")
    _claim_processes(report, seen.samples, long)
    report.detail |= {"fences": seen.fences, "clients": seen.clients}


def _claim_trainers(report: Report, seen: RunsSeen) -> None:
    tables = seen.books.tables
    runs = [run for run in tables["runs"] if run["run_id"] != run["fleet_run_id"]]
    ended = {run["team"] for run in runs if run["status"] == "ended"}
    report.claim("RL runs of a team each that ended", len(ended), "runs", len(TEAMS), "higher")
    report.claim("RL runs beyond those", len(runs) - len(ended), "runs", 0, "lower")
    report.claim("trainers that did not end as they were to", len(seen.clients), "trainers", 0, "lower")
    report.claim("trainers killed and resumed", seen.fences[1] - seen.fences[0], "trainers", 1, "higher")
    steps = {row["run_id"]: row["steps"] for row in tables["steps"]}
    differing = sum(abs(steps.get(run_id, 0) - reported) for run_id, reported in seen.steps_told.items())
    report.claim("steps that trainers and ledger do not both know", differing, "steps", 0, "lower")
    lent = {row["rollout_run_id"] for row in tables["shared"] if row["device_id"].startswith("serving")}
    report.claim("RL runs that had borrowed time", len(lent & set(steps)), "runs", len(TEAMS), "higher")
    hosts = {HOST_OF[row["device_id"]] for row in tables["turns"] if row["outcome"] == "completed"}
    report.claim("hosts whose engines made turns", len(hosts), "hosts", len(HOSTS), "higher")


def _claim_money(report: Report, seen: RunsSeen) -> None:
    own = seen.books.bill
    summed = {"charges of runs and teams": sum(row["cost_nano"] for row in own["charges"])}
    for by, answer in seen.costs.items():
        summed[f"charges of `rose cost --by {by}`"] = sum(line["cost_nano"] for line in answer["lines"])
        summed[f"the bill of `rose cost --by {by}`"] = answer["bill_nano"]
    for view in ("amortized", "fully_loaded"):
        summed[f"`rose report`, {view}"] = round(seen.report[view]["total"]["value"])
    for name, nano in summed.items():
        report.claim(f"{name}, less the bill", abs(nano - own["nano"]), "nano-dollars", 0, "lower")
    rounded, most = abs(own["nano"] - own["exact_nano"]), own["rounded"] / 2
    name = "the bill less devices' time and syncs' bytes at their prices"
    report.claim(name, rounded, "nano-dollars", most, "lower")
    charged = {line["team"] for line in seen.costs["team"]["lines"] if line["cost_nano"] > 0}
    teams = sum(team.name in charged for team in TEAMS)
    report.claim("teams with charges of their own", teams, "teams", len(TEAMS), "higher")


def _claim_weights(report: Report, tables: dict[str, Any]) -> None:
    """Claim that weights from another host come by a relay."""
    host_of = {run["run_id"]: next((t.host for t in TEAMS if t.name == run["team"]), None) for run in tables["runs"]}
    syncs = [row for row in tables["syncs"] if row["ok"] and host_of.get(row["rl_run_id"]) is not None]
    across = [row for row in syncs if HOST_OF[row["device_id"]] != host_of[row["rl_run_id"]]]
    relayed = {HOST_OF[row["device_id"]] for row in across}
    report.claim("hosts that had another's weights by their relay", len(relayed), "hosts", len(HOSTS), "higher")
    wrong = 0
    for row in syncs:
        way = ("relay", setting.ROUTE) if row in across else ("trainer", "loopback")
        wrong += row["syncs"] * ((row["source"], row["route"]) != way)
    report.claim("syncs with another source or route than theirs", wrong, "syncs", 0, "lower")


def _missing_events(seen: RunsSeen) -> int:
    here = {row["writer"]: row["events"] for row in seen.books.tables["writers"]}
    own = [row for row in seen.writers_there if row["writer"].startswith("other.")]
    return sum(abs(row["events"] - here.get(row["writer"], 0)) for row in own) if own else 1
