"""Assigns rollout engines to RL runs. An engine seldom changes its run, and its model (a restart) even less often."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

HOLD_SWITCHES = 10  # An engine stays with a run that has work for this many switch times, ...
HOLD_MIN_NS = 5_000_000_000  # ... and never less than this, ...
HOLD_MAX_NS = 600_000_000_000  # ... nor more: a switch may have waited for something else, such as a trainer.
AWAY_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class EngineFacts:
    engine_id: str
    capacity: int
    run_id: str | None = None
    since_ns: int = 0
    switch_ns: int = 0  # Length of its last switch.
    unable_ns: int = 0  # For how long it has had no lease, or no weights for turns.
    model: str | None = None
    model_since_ns: int = 0
    start_ns: int = 0  # Length of its last start.
    unstarted: str | None = None  # A model that it cannot run.

    @property
    def away(self) -> bool:
        return self.unable_ns >= AWAY_NS


@dataclass(frozen=True, slots=True)
class RunFacts:
    run_id: str
    turns: int
    weight: float = 1.0
    priority: int = 0
    served: float = 0.0  # See `serve`.
    model: str | None = None
    quiet_ns: int | None = None  # Time since it last had turns; None: it never had any.


def assign(engines: Iterable[EngineFacts], runs: Iterable[RunFacts], now_ns: int) -> dict[str, str]:
    """Return each engine's run. Of the runs with the highest priority, the one served least gets the next engine."""
    everyone = {run.run_id: run for run in runs}
    wanting = {run_id: run for run_id, run in everyone.items() if run.turns > 0}
    first = sorted(wanting.values(), key=lambda run: -run.priority)
    by_priority = [list(equals) for _, equals in groupby(first, key=lambda run: run.priority)]
    allotment = _Allotment(everyone, wanting, now_ns)
    in_order = sorted(engines, key=lambda engine: engine.engine_id)
    for away in (False, True):
        allotment.add([engine for engine in in_order if engine.away == away])
        for equals in by_priority:
            allotment.fill(equals)
        for equals in by_priority:
            allotment.serve_least(equals, allotment.count)
    return allotment.result()


def hold_ns(switch_ns: int) -> int:
    return min(max(HOLD_MIN_NS, HOLD_SWITCHES * switch_ns), HOLD_MAX_NS)


def may_change(engine: EngineFacts, runs: Mapping[str, RunFacts], now_ns: int) -> bool:
    """Return whether an engine may change its model. Return False if its own run ran out of turns a short time ago.
    Also return False if a run with turns uses the engine's model, and the engine got this model a short time ago."""
    own = runs.get(engine.run_id or "")
    if own is not None and own.turns == 0 and own.quiet_ns is not None and own.quiet_ns < engine.start_ns:
        return False
    if now_ns - engine.model_since_ns >= hold_ns(engine.switch_ns + engine.start_ns):
        return True
    return not any(run.turns > 0 and run.model == engine.model for run in runs.values())


def pause_ns(engines: Iterable[EngineFacts], runs: Iterable[RunFacts]) -> int:
    """Return for how many ns `serve` keeps a run without turns. By then, every engine was free to change its run."""
    models = {run.model for run in runs}
    switches = (engine.switch_ns + (engine.start_ns if len(models) > 1 else 0) for engine in engines)
    return max(map(hold_ns, switches), default=HOLD_MIN_NS)


def serve(
    served: Mapping[str, float],
    capacities: Mapping[str, int],
    runs: Iterable[RunFacts],
    elapsed_ns: int,
    paused_ns: int = 0,
) -> dict[str, float]:
    """Return how much each run has been served: the slot-seconds that it used, divided by its weight. `served` has the
    former values. `capacities` has the slots that each run has used for `elapsed_ns` since then.

    First, the smallest value of a run with turns is subtracted from all former values. A new run begins at 0. A run
    without turns is kept for `paused_ns`. Its value may become negative."""
    present = {run.run_id: run for run in runs if run.turns or (run.quiet_ns is not None and run.quiet_ns < paused_ns)}
    wanting = [run_id for run_id, run in present.items() if run.turns]
    level = min((served[run_id] for run_id in wanting if run_id in served), default=0.0)
    owed = paused_ns / 1e9 * sum(capacities.values()) / min((run.weight for run in present.values()), default=1.0)
    return {  # Subtract the common level to keep numbers small.
        run_id: max(served.get(run_id, level) - level, 0.0 if run.turns else -owed)
        + capacities.get(run_id, 0) * elapsed_ns / 1e9 / run.weight
        for run_id, run in present.items()
    }


class _Allotment:
    def __init__(self, everyone: Mapping[str, RunFacts], wanting: Mapping[str, RunFacts], now_ns: int) -> None:
        self._everyone, self._wanting, self._now_ns = everyone, wanting, now_ns
        self._bound: set[str] = set()  # Engines that may not change model.
        self._free: list[EngineFacts] = []
        self._runs: dict[str, str] = {}
        self._slots = dict.fromkeys(wanting, 0)
        self.count = dict.fromkeys(wanting, 0)

    def add(self, engines: list[EngineFacts]) -> None:
        self._free += engines
        self._bound |= {one.engine_id for one in engines if not may_change(one, self._everyone, self._now_ns)}
        for engine in engines:
            run = self._wanting.get(engine.run_id or "")
            if (
                run is not None
                and self._now_ns - engine.since_ns < hold_ns(engine.switch_ns)
                and self._can_run(engine, run)
            ):
                self._give(engine, run.run_id)

    def fill(self, runs: list[RunFacts]) -> None:
        due = self._due(runs)
        order = sorted(runs, key=lambda run: (run.served, run.run_id))
        for own in (True, False):
            for run in order:
                while (engine := self._best(run, own=own)) is not None and (
                    self._slots[run.run_id] + engine.capacity <= due[run.run_id]
                ):
                    self._give(engine, run.run_id)
        self.serve_least(runs, self._slots)

    def result(self) -> dict[str, str]:
        for engine in self._free:
            if engine.run_id is not None and engine.run_id in self._everyone:
                self._runs[engine.engine_id] = engine.run_id
        return self._runs

    def _due(self, runs: list[RunFacts]) -> dict[str, float]:
        left = float(sum(engine.capacity for engine in self._free) + sum(self._slots[run.run_id] for run in runs))
        due: dict[str, float] = {}
        # Runs with the fewest turns by weight leave the rest to other runs.
        rest = sorted(runs, key=lambda run: (run.turns / run.weight, run.run_id))
        for index, run in enumerate(rest):
            weights = sum(other.weight for other in rest[index:])
            due[run.run_id] = min(float(run.turns), left * run.weight / weights)
            left -= due[run.run_id]
        return due

    def serve_least(self, runs: list[RunFacts], had: Mapping[str, int]) -> None:
        """Give free engines to the least served runs, until each run's `had` (slots or engines) reaches its turns."""
        while True:
            short = [run for run in runs if had[run.run_id] < run.turns]
            for run in sorted(short, key=lambda run: (run.served, self._best(run, own=True) is None, run.run_id)):
                if (engine := self._best(run, own=False)) is not None:
                    self._give(engine, run.run_id)
                    break
            else:
                return

    def _best(self, run: RunFacts, *, own: bool) -> EngineFacts | None:
        def rank(one: EngineFacts) -> tuple[bool, bool, bool, str]:
            return one.run_id != run.run_id, one.model != run.model, one.run_id in self._wanting, one.engine_id

        fit = (one for one in self._free if (one.run_id == run.run_id or not own) and self._can_run(one, run))
        return min(fit, key=rank, default=None)

    def _can_run(self, engine: EngineFacts, run: RunFacts) -> bool:
        if engine.model != run.model and engine.engine_id in self._bound:
            return False
        return engine.unstarted is None or engine.unstarted != run.model

    def _give(self, engine: EngineFacts, run_id: str) -> None:
        self._free.remove(engine)
        self._runs[engine.engine_id] = run_id
        self._slots[run_id] += engine.capacity
        self.count[run_id] += 1
