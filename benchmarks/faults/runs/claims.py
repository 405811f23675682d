"""What the benchmark claims of a fleet that is down, from its books and from what was seen of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from benchmarks.faults import processes
from benchmarks.faults.processes import GROWTH_MAX, Sample
from benchmarks.faults.runs import setting
from rose.accept.report import Report


@dataclass(slots=True)
class Seen:
    """Of a fleet that is down: the books of its first host, whose events lie on the second, and what was seen of it.

    `costs` and `report` are the answers of `rose cost --by run`, `--by team` and `rose report`.
    """

    books: dict[str, Any]
    writers_there: list[dict[str, Any]]
    costs: dict[str, dict[str, Any]]
    report: dict[str, Any]
    #: Trainers that ended otherwise than they were to, in words.
    clients: list[str] = field(default_factory=list)
    #: Of the run whose trainer was killed: before, and after it was resumed.
    fences: tuple[int, int] = (0, 0)
    #: By run: the steps that its trainer said were done.
    steps_told: dict[str, int] = field(default_factory=dict)
    #: By device, of the second host's: every offset of its clock that the controller measured.
    clock_offsets_ns: dict[str, list[int]] = field(default_factory=dict)
    samples: dict[str, list[Sample]] = field(default_factory=dict)


def claim(report: Report, seen: Seen, *, long: bool) -> None:
    """All claims, with the detail behind them; those on memory only of a `long` run."""
    books = seen.books
    report.claim("problems that verify finds in the ledger", len(books["problems"]), "problems", 0, "lower")
    report.claim("events of the second host that the ledger lacks", _missing_events(seen), "events", 0, "lower")
    _claim_runs(report, seen)
    for name, rows in books["wrong"].items():
        report.claim(name, len(rows), "rows", 0, "lower")
    _claim_money(report, seen)
    _claim_weights(report, books)
    offsets = [ns for values in seen.clock_offsets_ns.values() for ns in values]
    known = sum(bool(values) for values in seen.clock_offsets_ns.values())
    report.claim("devices whose clock's offset is known", known, "devices", len(setting.DEVICES), "higher")
    _claim_processes(report, seen, long)
    report.detail |= books | {
        "fences": seen.fences,
        "clients": seen.clients,
        "clock_offset_ns_median": statistics.median(offsets) if offsets else None,
        "costs": {by: answer["lines"] for by, answer in seen.costs.items()},
    }


def _claim_runs(report: Report, seen: Seen) -> None:
    runs = [run for run in seen.books["runs"] if run["run_id"] != run["fleet_run_id"]]
    ended = {run["team"] for run in runs if run["status"] == "ended"}
    report.claim("RL runs of a team each that ended", len(ended), "runs", len(setting.TEAMS), "higher")
    report.claim("RL runs beyond those", len(runs) - len(ended), "runs", 0, "lower")
    report.claim("trainers that did not end as they were to", len(seen.clients), "trainers", 0, "lower")
    report.claim("trainers killed and resumed", seen.fences[1] - seen.fences[0], "trainers", 1, "higher")
    steps = {row["run_id"]: row["steps"] for row in seen.books["steps"]}
    differing = sum(abs(steps.get(run_id, 0) - told) for run_id, told in seen.steps_told.items())
    report.claim("steps that trainers and ledger do not both know", differing, "steps", 0, "lower")
    lent = {row["rollout_run_id"] for row in seen.books["shared"] if row["device_id"].startswith("serving")}
    report.claim("RL runs that had borrowed time", len(lent & set(steps)), "runs", len(setting.TEAMS), "higher")
    hosts = {setting.DEVICES[row["device_id"]] for row in seen.books["turns"] if row["outcome"] == "completed"}
    report.claim("hosts whose engines made turns", len(hosts), "hosts", len(setting.HOSTS), "higher")


def _claim_money(report: Report, seen: Seen) -> None:
    """Charges of runs, of teams and of the report, each against the bill."""
    bill = seen.books["bill_nano"]
    summed = {"charges of runs and teams": sum(row["cost_nano"] for row in seen.books["charges"])}
    for by, answer in seen.costs.items():
        summed[f"charges of `rose cost --by {by}`"] = sum(line["cost_nano"] for line in answer["lines"])
        summed[f"the bill of `rose cost --by {by}`"] = answer["bill_nano"]
    for view in ("amortized", "fully_loaded"):
        summed[f"`rose report`, {view}"] = round(seen.report[view]["total"]["value"])
    for name, nano in summed.items():
        report.claim(f"{name}, less the bill", abs(nano - bill), "nano-dollars", 0, "lower")
    rounded = abs(bill - seen.books["exact_nano"])
    report.claim(
        "the bill less devices' time and syncs' bytes at their prices",
        rounded,
        "nano-dollars",
        seen.books["rounded"] / 2,
        "lower",
    )
    charged = {line["team"] for line in seen.costs["team"]["lines"] if line["cost_nano"] > 0}
    teams = sum(team.name in charged for team in setting.TEAMS)
    report.claim("teams with charges of their own", teams, "teams", len(setting.TEAMS), "higher")


def _claim_weights(report: Report, books: dict[str, Any]) -> None:
    """Weights of a trainer on another host come by a relay over the route between the two."""
    host_of = {
        run["run_id"]: next((t.host for t in setting.TEAMS if t.name == run["team"]), None) for run in books["runs"]
    }
    there = [row for row in books["syncs"] if row["ok"] and host_of.get(row["rl_run_id"]) is not None]
    across = [row for row in there if setting.DEVICES[row["device_id"]] != host_of[row["rl_run_id"]]]
    ways = {(row["source"], row["route"]) for row in across}
    relayed = {setting.DEVICES[row["device_id"]] for row in across}
    report.claim("hosts that had another's weights by their relay", len(relayed), "hosts", len(setting.HOSTS), "higher")
    wrong = sum(row["syncs"] for row in across if (row["source"], row["route"]) != ("relay", setting.ROUTE))
    near = [row for row in there if row not in across]
    wrong += sum(row["syncs"] for row in near if (row["source"], row["route"]) != ("trainer", "loopback"))
    report.claim("syncs with another source or route than theirs", wrong, "syncs", 0, "lower")
    report.detail["ways between hosts"] = sorted(ways)


def _claim_processes(report: Report, seen: Seen, long: bool) -> None:
    parts = {}
    for name, samples in sorted(seen.samples.items()):
        grown, cpu_ms = processes.growth(samples), processes.cpu_ms_per_turn(samples)
        parts[name] = {
            "samples": len(samples),
            "memory_mib": round(samples[-1].memory_bytes / 2**20, 1),
            "memory_growth": grown,
            "cpu_ms_per_turn": cpu_ms,
            "processes": len({sample.pid for sample in samples}),
        }
        if long and grown is not None:
            report.claim(f"memory of {name}, last third over the one before", grown, "x", GROWTH_MAX, "lower")
    report.detail["processes"] = parts


def _missing_events(seen: Seen) -> int:
    """Events that a writer of the second host has there and the ledger has not, or has otherwise."""
    here = {row["writer"]: row["events"] for row in seen.books["writers"]}
    own = [row for row in seen.writers_there if row["writer"].startswith("other.")]
    if not own:
        return 1
    return sum(abs(row["events"] - here.get(row["writer"], 0)) for row in own)
