"""Whose a device's time was: which RL run was assigned, from when on."""

from __future__ import annotations


class Assignments:
    """Changes in the order in which they came. Times are monotonic nanoseconds. One thread reads, others change."""

    def __init__(self, run_id: str = "") -> None:
        self._changes: list[tuple[int, str]] = [(-(1 << 62), run_id)]

    @property
    def now(self) -> str:
        """The run that is assigned; "" for none."""
        return self._changes[-1][1]

    def change(self, at_ns: int, run_id: str) -> None:
        """From `at_ns` on it is this run."""
        if run_id != self.now:
            self._changes.append((at_ns, run_id))

    def at(self, at_ns: int) -> str:
        """The run that was assigned then."""
        return next(run_id for since_ns, run_id in reversed(self._changes) if since_ns <= at_ns)

    def between(self, t0_ns: int, t1_ns: int) -> list[int]:
        """When it changed, inside of (t0_ns, t1_ns)."""
        return [since_ns for since_ns, _ in self._changes if t0_ns < since_ns < t1_ns]

    def forget(self, before_ns: int) -> None:
        """Let go of what ended before a time."""
        while len(self._changes) > 1 and self._changes[1][0] <= before_ns:
            del self._changes[0]
