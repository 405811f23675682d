"""Which RL run each rollout engine works for: by priority, then by weight, with few switches."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

HOLD_SWITCHES = 10  # An engine stays with a run that has work for this many switch times, ...
HOLD_MIN_NS = 5_000_000_000  # ... and never less than this, ...
HOLD_MAX_NS = 600_000_000_000  # ... nor more: a switch may have waited for something else, such as a trainer.
AWAY_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """A usable engine, the time of its last switch, and since when it is not lent (0: lent, or dedicated)."""

    engine_id: str
    capacity: int
    run_id: str | None = None
    since_ns: int = 0
    switch_ns: int = 0
    unlent_ns: int = 0

    @property
    def away(self) -> bool:
        """Whether it does no work, for an unknown time."""
        return self.unlent_ns >= AWAY_NS


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run with weights. `turns` are queued or in flight; `served` is its past capacity (see `serve`)."""

    run_id: str
    turns: int
    weight: float = 1.0
    priority: int = 0
    served: float = 0.0


def assign(engines: Iterable[EngineFacts], runs: Iterable[RunFacts], now_ns: int) -> dict[str, str]:
    """Return the run of each engine with one. Runs of higher priority get room for all their turns first. Within a
    priority, runs get whole engines up to their share by weight, and the run served least for its weight gets the next.
    Spare engines spread turns. Runs keep engines where possible, during a hold always; absent engines come last."""
    everyone = {run.run_id: run for run in runs}
    wanting = {run_id: run for run_id, run in everyone.items() if run.turns > 0}
    by_priority = [
        [run for run in wanting.values() if run.priority == priority]
        for priority in sorted({run.priority for run in wanting.values()}, reverse=True)
    ]
    allotment = _Allotment(wanting, now_ns)
    in_order = sorted(engines, key=lambda engine: engine.engine_id)
    for away in (False, True):
        allotment.add([engine for engine in in_order if engine.away == away])
        for equals in by_priority:
            allotment.fill(equals)
        for equals in by_priority:
            allotment.spread(equals)
    return allotment.result(everyone)


def hold_ns(engine: EngineFacts) -> int:
    return min(max(HOLD_MIN_NS, HOLD_SWITCHES * engine.switch_ns), HOLD_MAX_NS)


def serve(
    served: Mapping[str, float], capacities: Mapping[str, int], weights: Mapping[str, float], elapsed_ns: int
) -> dict[str, float]:
    """Return slot-seconds by weight after `elapsed_ns` more with these capacities. `weights` are of runs with turns. A
    new run begins at the level of the run served least: it gets nothing for its absence."""
    level = min((served[run_id] for run_id in weights if run_id in served), default=0.0)
    return {  # Subtract the common level to keep numbers small.
        run_id: max(served.get(run_id, level), level) - level + capacities.get(run_id, 0) * elapsed_ns / 1e9 / weight
        for run_id, weight in weights.items()
    }


class _Allotment:
    """Engines under assignment, with slots and engines of each wanting run."""

    def __init__(self, wanting: Mapping[str, RunFacts], now_ns: int) -> None:
        self._wanting, self._now_ns = wanting, now_ns
        self._free: list[EngineFacts] = []
        self._runs: dict[str, str] = {}
        self._slots = dict.fromkeys(wanting, 0)
        self._count = dict.fromkeys(wanting, 0)

    def add(self, engines: list[EngineFacts]) -> None:
        self._free += engines
        for engine in engines:
            if engine.run_id in self._wanting and self._now_ns - engine.since_ns < hold_ns(engine):
                self._give(engine, engine.run_id)

    def fill(self, runs: list[RunFacts]) -> None:
        due = self._due(runs)
        order = sorted(runs, key=lambda run: (run.served, run.run_id))
        for own in (True, False):
            for run in order:
                while (engine := self._best(run, own=own)) is not None and self._fits(run, engine, due):
                    self._give(engine, run.run_id)
        while self._free:
            lacking = [run for run in runs if self._slots[run.run_id] < run.turns]
            if not lacking:
                return
            self._serve_least(lacking)

    def spread(self, runs: list[RunFacts]) -> None:
        """Assign engines to turns that would share one."""
        while self._free:
            lacking = [run for run in runs if self._count[run.run_id] < run.turns]
            if not lacking:
                return
            self._serve_least(lacking)

    def result(self, runs: Mapping[str, RunFacts]) -> dict[str, str]:
        for engine in self._free:
            if engine.run_id is not None and engine.run_id in runs:
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

    def _fits(self, run: RunFacts, engine: EngineFacts, due: Mapping[str, float]) -> bool:
        return self._slots[run.run_id] + engine.capacity <= due[run.run_id]

    def _serve_least(self, runs: list[RunFacts]) -> None:
        run = min(runs, key=lambda run: (run.served, self._best(run, own=True) is None, run.run_id))
        engine = self._best(run, own=False)
        assert engine is not None
        self._give(engine, run.run_id)

    def _best(self, run: RunFacts, *, own: bool) -> EngineFacts | None:
        """Return the engine for a run: its own, an unwanted one, another run's. `own`: only the first."""
        chosen = [engine for engine in self._free if engine.run_id == run.run_id] if own else self._free
        return min(
            chosen,
            key=lambda engine: (engine.run_id != run.run_id, engine.run_id in self._wanting, engine.engine_id),
            default=None,
        )

    def _give(self, engine: EngineFacts, run_id: str | None) -> None:
        assert run_id is not None
        self._free.remove(engine)
        self._runs[engine.engine_id] = run_id
        self._slots[run_id] += engine.capacity
        self._count[run_id] += 1
