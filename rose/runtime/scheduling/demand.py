"""Keeps the demand for devices for one second, and numbers the answers to each agent."""

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
    """The demand at one moment, and the instructions for the engines of a device. `engines_ns` maps each wanted engine
    to the wanted device time in nanoseconds, which is never 0. `step` is the RL step that wants the time."""

    step: int | None = None
    engines_ns: Mapping[str, int] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    drained: bool = False
    train_run_id: str | None = None
    rollout_run_ids: Mapping[str, str | None] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    terms: Terms | None = None

    def differs(self, previous: Wanted) -> bool:
        """Return whether an agent that knows `previous` needs a new answer. Any change needs one, but a change of
        wanted time only if the time at least doubled."""
        return (
            (self.step, self.drained, self.train_run_id) != (previous.step, previous.drained, previous.train_run_id)
            or (self.targets, self.rollout_run_ids, self.models, self.terms)
            != (previous.targets, previous.rollout_run_ids, previous.models, previous.terms)
            or self.engines_ns.keys() != previous.engines_ns.keys()
            or any(value >= 2 * previous.engines_ns[engine] for engine, value in self.engines_ns.items())
        )


class Demand:
    """The demand for each engine, which is kept for one second after it ends. Times are monotonic nanoseconds."""

    def __init__(self) -> None:
        self._recent: dict[str, tuple[int, int]] = {}  # By engine: the last wanted time, and its expiry.

    def assess(self, engines_ns: Mapping[str, int], now_ns: int) -> dict[str, int]:
        for engine_id, value in engines_ns.items():
            self._recent[engine_id] = (value, now_ns + HOLD_NS)
        self._recent = {engine_id: recent for engine_id, recent in self._recent.items() if recent[1] > now_ns}
        return {engine_id: value for engine_id, (value, _) in self._recent.items()}


class Answers:
    """The last answer to each device. The first number is the time of day in microseconds, so that numbers also rise
    when the controller restarts."""

    def __init__(self, first: int | None = None) -> None:
        self._number = utc_us() if first is None else first
        self._last: OrderedDict[str, tuple[int, Wanted]] = OrderedDict()

    def due(self, device_id: str, seen: int, wanted: Wanted) -> bool:
        last = self._last.get(device_id)
        return last is None or last[0] != seen or wanted.differs(last[1])

    def give(self, device_id: str, seen: int, wanted: Wanted) -> int:
        """Return the number of the answer `wanted`. It is `seen` if the answer does not differ from the last answer."""
        if self.due(device_id, seen, wanted):
            self._number += 1
            self._last[device_id] = (self._number, wanted)
        self._last.move_to_end(device_id)
        while len(self._last) > DEVICES_MAX:
            self._last.popitem(last=False)
        return self._last[device_id][0]
