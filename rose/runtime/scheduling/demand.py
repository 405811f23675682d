"""Holds the demand for devices a moment after the last turn, and numbers the answers to each agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rose.clock import utc_us
from rose.runtime.scheduling.messages import Target, Terms

HOLD_NS = 1_000_000_000  # An engine stays wanted this long: a trajectory's next turn comes soon.
DEVICES_MAX = 10_000  # Devices with a remembered answer; the device that polled longest ago is forgotten first.


@dataclass(frozen=True, slots=True)
class Wanted:
    """Device time wanted of engines (nanoseconds, never 0), its RL step, and the targets of engines. `drained`: the
    device must lend nothing. `train_run_id` trains on the device; `rollout_run_ids` and `models` are the runs of its
    engines and their models."""

    step: int | None = None
    engines_ns: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    drained: bool = False
    train_run_id: str | None = None
    rollout_run_ids: Mapping[str, str | None] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    terms: Terms | None = None

    def differs(self, before: Wanted) -> bool:
        """Return whether to tell an agent that knows `before`: after any change, for time only if it doubled."""
        return (
            (self.step, self.drained, self.train_run_id) != (before.step, before.drained, before.train_run_id)
            or (self.targets, self.rollout_run_ids, self.models, self.terms)
            != (before.targets, before.rollout_run_ids, before.models, before.terms)
            or self.engines_ns.keys() != before.engines_ns.keys()
            or any(value >= 2 * before.engines_ns[engine] for engine, value in self.engines_ns.items())
        )


class Demand:
    """The present demand and the recent one. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._held: dict[str, tuple[int, int]] = {}  # By engine: the last wanted time, and until when it counts.

    def assess(self, engines_ns: Mapping[str, int], now_ns: int) -> dict[str, int]:
        """Return the wanted time by engine at `now_ns`; turns want `engines_ns` now."""
        for engine_id, value in engines_ns.items():
            self._held[engine_id] = (value, now_ns + HOLD_NS)
        self._held = {engine_id: held for engine_id, held in self._held.items() if held[1] > now_ns}
        return {engine_id: value for engine_id, (value, _) in self._held.items()}


class Answers:
    """The last answer to each device. Numbers start at the time of day, so that they rise across restarts."""

    def __init__(self, first: int | None = None) -> None:
        self._number = utc_us() if first is None else first
        self._last: OrderedDict[str, tuple[int, Wanted]] = OrderedDict()

    def due(self, device_id: str, seen: int, wanted: Wanted) -> bool:
        last = self._last.get(device_id)
        return last is None or last[0] != seen or wanted.differs(last[1])

    def give(self, device_id: str, seen: int, wanted: Wanted) -> int:
        """Return the number of the answer `wanted`: `seen` if nothing differs."""
        if self.due(device_id, seen, wanted):
            self._number += 1
            self._last[device_id] = (self._number, wanted)
        self._last.move_to_end(device_id)
        while len(self._last) > DEVICES_MAX:
            self._last.popitem(last=False)
        return self._last[device_id][0]
