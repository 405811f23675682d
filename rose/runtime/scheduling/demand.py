"""Keeps demand for devices for a moment, and numbers the answers to each agent."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from rose.clock import utc_us
from rose.runtime.scheduling.messages import Target, Terms

HOLD_NS = 1_000_000_000  # The next turn of a trajectory comes soon.
DEVICES_MAX = 10_000  # Devices with a stored answer; the oldest is forgotten first.


@dataclass(frozen=True, slots=True)
class Wanted:
    """The wanted device time by engine (nanoseconds, never 0), its RL step, and the instructions for a device's
    engines."""

    step: int | None = None
    engines_ns: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    drained: bool = False
    train_run_id: str | None = None
    rollout_run_ids: Mapping[str, str | None] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    terms: Terms | None = None

    def differs(self, previous: Wanted) -> bool:
        """Return whether an agent that knows `before` needs an answer: after any change, for time only if it
        doubled."""
        return (
            (self.step, self.drained, self.train_run_id) != (previous.step, previous.drained, previous.train_run_id)
            or (self.targets, self.rollout_run_ids, self.models, self.terms)
            != (previous.targets, previous.rollout_run_ids, previous.models, previous.terms)
            or self.engines_ns.keys() != previous.engines_ns.keys()
            or any(value >= 2 * previous.engines_ns[engine] for engine, value in self.engines_ns.items())
        )


class Demand:
    """Merges present and recent demand. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._recent: dict[str, tuple[int, int]] = {}  # By engine: the last wanted time, and its expiry.

    def assess(self, engines_ns: Mapping[str, int], now_ns: int) -> dict[str, int]:
        for engine_id, value in engines_ns.items():
            self._recent[engine_id] = (value, now_ns + HOLD_NS)
        self._recent = {engine_id: recent for engine_id, recent in self._recent.items() if recent[1] > now_ns}
        return {engine_id: value for engine_id, (value, _) in self._recent.items()}


class Answers:
    """The last answer to each device. Numbers start at the time of day, and so rise across restarts."""

    def __init__(self, first: int | None = None) -> None:
        self._number = utc_us() if first is None else first
        self._last: OrderedDict[str, tuple[int, Wanted]] = OrderedDict()

    def due(self, device_id: str, seen: int, wanted: Wanted) -> bool:
        last = self._last.get(device_id)
        return last is None or last[0] != seen or wanted.differs(last[1])

    def give(self, device_id: str, seen: int, wanted: Wanted) -> int:
        """Return the number of the answer `wanted`: `seen` without a difference."""
        if self.due(device_id, seen, wanted):
            self._number += 1
            self._last[device_id] = (self._number, wanted)
        self._last.move_to_end(device_id)
        while len(self._last) > DEVICES_MAX:
            self._last.popitem(last=False)
        return self._last[device_id][0]
