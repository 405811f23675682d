"""`python -m benchmarks.faults.runs`: two RL runs of two teams on two hosts, one killed and resumed, and its books.

The hosts are namespaces of this machine. What is claimed is what the ledger says once the fleet is down: no step and no
turn lost or twice, each nanosecond of a device and each nano-dollar accounted for. `--minutes` has it go on for that
long, for the memory of the fleet's own processes.
"""

from __future__ import annotations

import functools
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.faults.processes import Watch
from benchmarks.faults.runs import setting
from benchmarks.faults.runs.claims import Seen, claim
from benchmarks.faults.runs.hosts import Fleet, FleetError, Program, until
from benchmarks.faults.runs.setting import KILLED, TEAMS, Team
from benchmarks.faults.setting import Engines, make_models
from rose.accept.report import Report, arguments, finish, phase

#: The killed trainer has finished so many steps, ...
KILLED_AFTER = 2
#: ... and where no time is given each run goes on for so many after that.
STEPS, QUICK_STEPS = 6, 2
_ENDLESS = 1_000_000
_STEP_TIMEOUT_S, _READY_S, _END_S = 600.0, 300.0, 120.0
_PROGRESS_S = 30.0


def main() -> None:
    """Measure it; the exit code is 0 when the measuring itself worked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--minutes", type=float, help="have the runs go on for that long")
    parser.add_argument(
        "--engines",
        choices=("sglang", "stand-in"),
        default="sglang",
        help="what serves and generates: SGLang on CPU cores, or programs that answer like it",
    )
    given = parser.parse_args()
    report = Report("fleet", given.quick)
    # Hosts end with the context that they are in, however this process is asked to stop.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with tempfile.TemporaryDirectory(prefix="fleet-benchmark-") as folder:
            measure(report, Path(folder), given.engines, given.minutes)
    except FleetError as error:
        print(f"fleet: {error}", file=sys.stderr)
        sys.exit(1)
    finally:
        finish(report, given.json)


def measure(report: Report, folder: Path, engines: Engines, minutes: float | None = None) -> None:
    """Everything. Raises FleetError where a part of it does not start, or does not end."""
    report.detail |= {"engines": engines, "minutes": minutes}
    if engines == "sglang":
        make_models(setting.config(engines))
    with Fleet(folder, engines) as fleet:
        seen = Round(fleet, QUICK_STEPS if report.quick else STEPS, minutes).play()
        with phase("pricing"):
            _read_books(fleet, seen)
    claim(report, seen, long=minutes is not None)


class Round:
    """The clients of the fleet, from the first to the last, and the end of the fleet."""

    def __init__(self, fleet: Fleet, steps: int, minutes: float | None) -> None:
        self._fleet, self._steps, self._minutes = fleet, steps, minutes
        self._seen = Seen(books={}, writers_there=[], costs={}, report={})
        self._trainers: dict[str, list[Program]] = {}
        self._look = fleet.look()

    def play(self) -> Seen:
        fleet, seen = self._fleet, self._seen
        watch = Watch(fleet.hosts, self._turns, 5.0 if self._minutes else 0.5, seen.samples)
        with phase("both trainers begin"):
            traffic = fleet.traffic()
            for team in TEAMS:
                self._train(team)
            for team in TEAMS:
                begun = functools.partial(self._has_done, team, 1)
                until(f"the first step of {team.name}", begun, _STEP_TIMEOUT_S, *self._newest())
        watch.start()
        began = time.monotonic()
        with phase("one is killed in mid-step and resumed"):
            self._kill_and_resume()
        with phase("runs go on"):
            if self._minutes is None:
                self._go_on_for_steps()
            else:
                self._go_on_until(began + self._minutes * 60)
        with phase("runs end"):
            self._interrupt()
            for program in self._newest():
                self._expect_end(program)
        watch.stop()
        with phase("rose down"):
            for program in (*traffic, self._look):
                program.signal(signal.SIGINT)
                program.wait(_END_S)
            fleet.down()
        self._note()
        return seen

    # ------------------------------------------------------------------ trainers

    def _train(self, team: Team, steps: int | None = None, *, resume: bool = False) -> Program:
        program = self._fleet.train(team, _ENDLESS if steps is None else steps, resume=resume)
        self._trainers.setdefault(team.name, []).append(program)
        return program

    def _newest(self) -> list[Program]:
        return [programs[-1] for programs in self._trainers.values()]

    def _done(self, team: Team) -> int:
        """Steps that the team's trainers said were done; the last of a killed one may be told again."""
        return len({step["step"] for program in self._trainers[team.name] for step in program.heard})

    def _has_done(self, team: Team, steps: int) -> bool:
        return self._done(team) >= steps

    def _kill_and_resume(self) -> None:
        team = KILLED
        victim = self._trainers[team.name][-1]
        until(f"{KILLED_AFTER} steps of {team.name}", lambda: self._done(team) >= KILLED_AFTER, _STEP_TIMEOUT_S, victim)
        until("turns in flight", lambda: self._run(team).get("turns_in_flight", 0) > 0, _READY_S, victim)
        before = int(self._run(team)["fence"])
        victim.signal(signal.SIGKILL)
        victim.wait(_END_S)
        again = self._train(team, resume=True)
        until(f"{team.name} goes on", lambda: int(self._run(team).get("fence", 0)) > before, _READY_S, again)
        self._seen.fences = before, int(self._run(team)["fence"])

    def _go_on_for_steps(self) -> None:
        wanted = {team.name: self._done(team) + self._steps for team in TEAMS}
        for team in TEAMS:
            over = functools.partial(self._has_done, team, wanted[team.name])
            until(f"{wanted[team.name]} steps of {team.name}", over, _STEP_TIMEOUT_S, *self._newest())

    def _go_on_until(self, until_s: float) -> None:
        """Raises FleetError if a trainer ends before."""
        said = time.monotonic()
        while (now := time.monotonic()) < until_s:
            for program in self._newest():
                if program.code is not None:
                    raise FleetError(f"{program.name} ended with exit code {program.code}:\n{program.tail}")
            if now - said >= _PROGRESS_S:
                said = now
                steps = ", ".join(f"{team.name} {self._done(team)} steps" for team in TEAMS)
                print(f"{(until_s - now) / 60:.1f} min to go: {steps}, {self._turns()} turns", file=sys.stderr)
            threading.Event().wait(0.5)

    def _interrupt(self) -> None:
        """Ctrl-C for each trainer, which leaves its run to be resumed; and one that goes on with it to end it."""
        for program in self._newest():
            program.signal(signal.SIGINT)
        for program in self._newest():
            program.wait(_END_S)
        for team in TEAMS:
            self._train(team, self._done(team), resume=True)

    def _expect_end(self, program: Program) -> None:
        try:
            code = program.wait(_STEP_TIMEOUT_S)
        except FleetError as error:
            self._seen.clients.append(str(error))
            return
        if code:
            self._seen.clients.append(f"{program.name} ended with exit code {code}:\n{program.tail}")

    # ------------------------------------------------------------------ what is seen

    def _status(self) -> dict[str, Any]:
        return self._look.heard[-1] if self._look.heard else {"runs": [], "devices": []}

    def _run(self, team: Team) -> dict[str, Any]:
        runs: list[dict[str, Any]] = [run for run in self._status()["runs"] if run["team"] == team.name]
        return runs[0] if runs else {}

    def _turns(self) -> int:
        """Of all runs so far; a run that has ended is told of no more."""
        most: dict[str, int] = {}
        for status in list(self._look.heard):
            for run in status["runs"]:
                most[run["run_id"]] = max(most.get(run["run_id"], 0), run["turns_completed"])
        return sum(most.values())

    def _note(self) -> None:
        for status in self._look.heard:
            for device in status["devices"]:
                offsets = self._seen.clock_offsets_ns.setdefault(device["device_id"], [])
                offsets += [] if device["clock_offset_ns"] is None else [device["clock_offset_ns"]]
            for run in status["runs"]:
                team = next(team for team in TEAMS if team.name == run["team"])
                self._seen.steps_told[run["run_id"]] = self._done(team)


def _read_books(fleet: Fleet, seen: Seen) -> None:
    """What the ledger has, on the first host, and the second one's part of it there."""
    seen.books = fleet.asked("one", "-m", "benchmarks.faults.runs.books", setting.LEDGER)
    seen.writers_there = fleet.asked("other", "-m", "benchmarks.faults.runs.books", setting.LEDGER, "--writers")[
        "writers"
    ]
    book = ("--ledger", setting.LEDGER, "--price-book", setting.PRICE_BOOK, "--json")
    for by in ("run", "team"):
        seen.costs[by] = fleet.asked("one", "-m", "rose.cli", "cost", "--by", by, *book)
    run_id = next(run["run_id"] for run in seen.books["runs"] if run["run_id"] == run["fleet_run_id"])
    seen.report = fleet.asked("one", "-m", "rose.cli", "report", "--run", run_id, *book)


if __name__ == "__main__":
    main()
