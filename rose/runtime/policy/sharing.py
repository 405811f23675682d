"""Which RL run each rollout engine works for: by priority, then by weight, and no more often anew than pays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

#: An engine stays with a run that has work for at least so many times as long as bringing it there took, ...
HOLD_SWITCHES = 10
#: ... and never less than this, ...
HOLD_MIN_NS = 5_000_000_000
#: ... nor more: bringing it may have waited for something else, as a trainer that was away.
HOLD_MAX_NS = 600_000_000_000
#: An engine that has not been lent for so long is no help to its run for now.
AWAY_NS = 10_000_000_000


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """An engine that can be used. `switch_ns` is how long it took to bring it to the run it is assigned to, and
    `unlent_ns` for how long its device has not been lent: 0 while it is, and of an engine that needs no lease."""

    engine_id: str
    capacity: int
    run_id: str | None = None
    since_ns: int = 0
    switch_ns: int = 0
    unlent_ns: int = 0

    @property
    def away(self) -> bool:
        """Whether it does no work now, and nobody can say when it will."""
        return self.unlent_ns >= AWAY_NS


@dataclass(frozen=True, slots=True)
class RunFacts:
    """A run that has weights to be used. `turns` are queued or in flight; at 0 it wants no engine.

    `served` is the capacity that it had and that was not away, times how long, divided by its weight (see `serve`).
    """

    run_id: str
    turns: int
    weight: float = 1.0
    priority: int = 0
    served: float = 0.0


def assign(engines: Iterable[EngineFacts], runs: Iterable[RunFacts], now_ns: int) -> dict[str, str]:
    """The run of each engine; an engine that is not named has none.

    Runs of the highest priority come first: together they get capacity for all their turns. Within a priority each is
    due its share by weight of what there is, no more than it has turns for. Whole engines that fit into what a run is
    due are its own; those that are left go to the run that was served least for its weight, so that over time, though
    not at each moment, shares are as the weights. What is left once there is room for every turn goes to runs that
    have fewer engines than turns, and then stays where it is.

    A run keeps the engines it has where it can. An engine is not taken from a run with turns before its hold is over.

    Engines that are away are given out after the others, in the same way: a run that has only those has no room yet.
    """
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
    """How long the engine stays where it is while there is work for it."""
    return min(max(HOLD_MIN_NS, HOLD_SWITCHES * engine.switch_ns), HOLD_MAX_NS)


def serve(
    served: Mapping[str, float], capacities: Mapping[str, int], weights: Mapping[str, float], elapsed_ns: int
) -> dict[str, float]:
    """What runs were served after another `elapsed_ns` with engines of these capacities, in slot-seconds a weight.

    `weights` are those of the runs that have turns; `capacities` what they have. One that had none begins level with
    the one that was served least: it is owed nothing for the time in which it asked for nothing.
    """
    level = min((served[run_id] for run_id in weights if run_id in served), default=0.0)
    # What all have in common says nothing; numbers stay small.
    return {
        run_id: max(served.get(run_id, level), level) - level + capacities.get(run_id, 0) * elapsed_ns / 1e9 / weight
        for run_id, weight in weights.items()
    }


class _Allotment:
    """Engines as they are given out. `given` is what each wanting run has, in slots and in engines."""

    def __init__(self, wanting: Mapping[str, RunFacts], now_ns: int) -> None:
        self._wanting, self._now_ns = wanting, now_ns
        self._free: list[EngineFacts] = []
        self._runs: dict[str, str] = {}
        self._slots = dict.fromkeys(wanting, 0)
        self._count = dict.fromkeys(wanting, 0)

    def add(self, engines: list[EngineFacts]) -> None:
        """More engines to give out; those that are held stay where they are."""
        self._free += engines
        for engine in engines:
            if engine.run_id in self._wanting and self._now_ns - engine.since_ns < hold_ns(engine):
                self._give(engine, engine.run_id)

    def fill(self, runs: list[RunFacts]) -> None:
        """Room for the turns of runs of one priority, as far as there is any."""
        due = self._due(runs)
        order = sorted(runs, key=lambda run: (run.served, run.run_id))
        # Own engines first, so that nobody takes one that its run would keep.
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
        """Engines for the turns that would share one otherwise."""
        while self._free:
            lacking = [run for run in runs if self._count[run.run_id] < run.turns]
            if not lacking:
                return
            self._serve_least(lacking)

    def result(self, runs: Mapping[str, RunFacts]) -> dict[str, str]:
        """With engines that nobody wants left where they are."""
        for engine in self._free:
            if engine.run_id is not None and engine.run_id in runs:
                self._runs[engine.engine_id] = engine.run_id
        return self._runs

    def _due(self, runs: list[RunFacts]) -> dict[str, float]:
        """The slots each run is due: the same for each weight, less where it has turns for less."""
        left = float(sum(engine.capacity for engine in self._free) + sum(self._slots[run.run_id] for run in runs))
        due: dict[str, float] = {}
        # Whoever is content with least for its weight is settled first, and leaves the rest to the others.
        rest = sorted(runs, key=lambda run: (run.turns / run.weight, run.run_id))
        for index, run in enumerate(rest):
            weights = sum(other.weight for other in rest[index:])
            due[run.run_id] = min(float(run.turns), left * run.weight / weights)
            left -= due[run.run_id]
        return due

    def _fits(self, run: RunFacts, engine: EngineFacts, due: Mapping[str, float]) -> bool:
        return self._slots[run.run_id] + engine.capacity <= due[run.run_id]

    def _serve_least(self, runs: list[RunFacts]) -> None:
        """One more engine for the run that was served least; of those alike, for one that keeps what it has."""
        run = min(runs, key=lambda run: (run.served, self._best(run, own=True) is None, run.run_id))
        engine = self._best(run, own=False)
        assert engine is not None
        self._give(engine, run.run_id)

    def _best(self, run: RunFacts, *, own: bool) -> EngineFacts | None:
        """The engine to give a run: its own, one that nobody wants, one of another run. With `own`, only the first."""
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
