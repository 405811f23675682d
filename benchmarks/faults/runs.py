"""`python -m benchmarks.faults.runs`: two RL runs of two teams on two hosts; one is killed and resumed."""

import json
import math
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.faults.books import Books
from benchmarks.faults.claims import RunsSeen, claim_runs
from benchmarks.faults.fleet import Fleet
from benchmarks.faults.processes import FleetError, Program, Watch, until
from benchmarks.faults.setting import ENGINE_KINDS, KILLED, LEDGER, PRICE_BOOK, TEAMS, Setting, Team
from benchmarks.shared import arguments, measured
from rose.accept.report import Report, phase

KILLED_AFTER = 2  #: Steps before one trainer is killed, and of each run after that unless a time is given.
STEPS, QUICK_STEPS = 6, 2
_ENDLESS = 1_000_000
_STEP_TIMEOUT_S, _READY_S, _END_S = 600.0, 300.0, 120.0
#: No host is lost here: Ray must not give up a host that a busy machine delays.
_PATIENT = {"RAY_health_check_timeout_ms": "30000", "RAY_health_check_failure_threshold": "20"}


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--minutes", type=float, help="have the runs go on for that long")
    parser.add_argument("--engines", choices=ENGINE_KINDS, default="sglang", help="what serves and generates")
    options = parser.parse_args()
    report = Report("fleet", options.quick)
    with measured(report, options.json) as folder:
        measure(report, folder, Setting(options.engines), options.minutes)


def measure(report: Report, folder: Path, setting: Setting, minutes: float | None = None) -> None:
    report.detail |= {"engines": setting.engines, "minutes": minutes}
    with Fleet(folder, setting, ray=_PATIENT) as fleet:
        seen = Round(fleet, QUICK_STEPS if report.quick else STEPS, minutes).play()
        with phase("pricing"):
            _read_books(fleet, seen)
    claim_runs(report, seen, long=minutes is not None)


class Round:
    def __init__(self, fleet: Fleet, steps: int, minutes: float | None) -> None:
        self._fleet, self._steps, self._minutes = fleet, steps, minutes
        self._seen = RunsSeen()
        self._trainers: dict[str, list[Program]] = {}

    def play(self) -> RunsSeen:
        fleet, seen = self._fleet, self._seen
        watch = Watch(fleet.hosts, 5.0 if self._minutes else 0.5, seen.samples)
        with phase("both trainers begin"):
            for team in TEAMS:
                self._train(team)
            for team in TEAMS:
                self._await_steps(team, 1, *self._newest())
        watch.start()
        began = time.monotonic()
        with phase("one is killed in mid-step and resumed"):
            self._kill_and_resume()
        with phase("runs go on"):
            if self._minutes is None:
                self._go_on_for_steps()
            else:
                end_s = began + self._minutes * 60
                until("the time of the runs", lambda: time.monotonic() >= end_s, math.inf, *self._newest())
        with phase("runs end"):
            self._interrupt()
            for program in self._newest():
                try:
                    if code := program.wait(_STEP_TIMEOUT_S):
                        seen.clients.append(f"{program.name} ended with exit code {code}:\n{program.tail}")
                except FleetError as error:
                    seen.clients.append(str(error))
        watch.stop()
        with phase("rose down"):
            fleet.stop()
        self._note()
        return seen

    def _train(self, team: Team, steps: int | None = None, *, resume: bool = False) -> Program:
        program = self._fleet.train(team, _ENDLESS if steps is None else steps, resume=resume)
        self._trainers.setdefault(team.name, []).append(program)
        return program

    def _newest(self) -> list[Program]:
        return [programs[-1] for programs in self._trainers.values()]

    def _done(self, team: Team) -> int:
        """Return the count of distinct steps that the team's trainers reported."""
        return len({step["step"] for program in self._trainers[team.name] for step in program.lines})

    def _await_steps(self, team: Team, steps: int, *trainers: Program) -> None:
        until(f"{steps} steps of {team.name}", lambda: self._done(team) >= steps, _STEP_TIMEOUT_S, *trainers)

    def _kill_and_resume(self) -> None:
        team = KILLED
        victim = self._trainers[team.name][-1]
        self._await_steps(team, KILLED_AFTER, victim)
        until("turns in flight", lambda: self._run(team).get("turns_in_flight", 0) > 0, _READY_S, victim)
        before = int(self._run(team)["fence"])
        victim.send(signal.SIGKILL)
        victim.wait(_END_S)
        again = self._train(team, resume=True)
        until(f"{team.name} goes on", lambda: int(self._run(team).get("fence", 0)) > before, _READY_S, again)
        self._seen.fences = before, int(self._run(team)["fence"])

    def _go_on_for_steps(self) -> None:
        targets = [(team, self._done(team) + self._steps) for team in TEAMS]
        for team, steps in targets:
            self._await_steps(team, steps, *self._newest())

    def _interrupt(self) -> None:
        """Interrupt each trainer, then start one that ends the run."""
        for program in self._newest():
            program.send(signal.SIGINT)
        for program in self._newest():
            program.wait(_END_S)
        for team in TEAMS:
            self._train(team, self._done(team), resume=True)

    def _statuses(self) -> list[dict[str, Any]]:
        return [answer for answer in list(self._fleet.heard.controller) if answer["well"]]

    def _run(self, team: Team) -> dict[str, Any]:
        last = self._statuses()[-1:]
        return next((run for status in last for run in status["runs"] if run["team"] == team.name), {})

    def _note(self) -> None:
        clocks = self._seen.clock_is_known
        for answer in self._statuses():
            for device_id, offset_ns in answer["clock_offsets_ns"].items():
                clocks[device_id] = clocks.get(device_id, False) or offset_ns is not None
            for run in answer["runs"]:
                team = next(team for team in TEAMS if team.name == run["team"])
                self._seen.steps_told[run["run_id"]] = self._done(team)


def _read_books(fleet: Fleet, seen: RunsSeen) -> None:
    books = ("-m", "benchmarks.faults.books", LEDGER)
    seen.books = msgspec.json.decode(fleet.call("one", *books, "priced"), type=Books)
    seen.writers_there = json.loads(fleet.call("other", *books, "writers"))
    book = ("--ledger", LEDGER, "--price-book", PRICE_BOOK, "--json")
    for by in ("run", "team"):
        seen.costs[by] = json.loads(fleet.rose("cost", "--by", by, *book))
    run_id = next(run["run_id"] for run in seen.books.tables["runs"] if run["run_id"] == run["fleet_run_id"])
    seen.report = json.loads(fleet.rose("report", "--run", run_id, *book))


if __name__ == "__main__":
    main()
