"""What each run asks for: its turns that are queued or in flight, and what came of those before."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from rose.runtime.scheduling.turns.turns import Turn

#: For so long, a run counts as having as many turns as it had at most: its trajectories think between two turns.
PEAK_NS = 2_000_000_000
#: Expected length of a turn before any was seen; then a moving average.
_EXPECTED_NS = 500_000_000
_AVERAGE_WEIGHT = 0.1


@dataclass(slots=True)
class Load:
    """The turns of one run. Times are monotonic nanoseconds, given by the caller."""

    turns: set[Turn] = field(default_factory=set)
    expected_ns: int = _EXPECTED_NS
    #: The step that the last turn was made for, if it said one.
    step: int | None = None
    completed: int = 0
    failed: int = 0
    tokens: int = 0
    #: How attempts ended: completed, preempted or failed.
    attempts: Counter[str] = field(default_factory=Counter)
    _versions: Counter[int] = field(default_factory=Counter)
    _peak: int = 0
    _peak_until_ns: int = 0

    @property
    def version_min(self) -> int:
        """The oldest weights that one of the turns accepts."""
        return min(self._versions, default=0)

    def begin(self, turn: Turn, now_ns: int) -> None:
        self.turns.add(turn)
        self._versions[turn.version_min] += 1
        self.step = turn.labels.step
        self.peak(now_ns)

    def end(self, turn: Turn) -> None:
        self.turns.discard(turn)
        self._versions[turn.version_min] -= 1
        if not self._versions[turn.version_min]:
            del self._versions[turn.version_min]

    def complete(self, turn: Turn) -> None:
        """The turn has all its tokens."""
        self.completed += 1
        self.tokens += turn.tokens.count
        self.expected_ns += int(_AVERAGE_WEIGHT * (turn.on_engines_ns - self.expected_ns))

    def peak(self, now_ns: int) -> int:
        """How many turns there were at most of late."""
        if len(self.turns) >= self._peak or now_ns >= self._peak_until_ns:
            self._peak, self._peak_until_ns = len(self.turns), now_ns + PEAK_NS
        return self._peak
