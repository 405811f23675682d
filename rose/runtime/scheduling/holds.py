"""Records `hold` events, which tell why a borrowed engine has no lease while turns wait."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rose.clock import utc_us
from rose.events import Hold
from rose.runtime.policy.lending import Reason
from rose.runtime.scheduling.workers import Worker

LOOK_NS = 1_000_000_000
HOLD_NS = 10_000_000_000  # Longer holds are recorded in parts.
#: Turns of other runs wait, or the agent records the hold.
_ELSEWHERE = ("no_demand", "withheld")


@dataclass(slots=True)
class _Open:
    worker: Worker
    run_id: str | None
    reason: Reason
    at_us: int
    since_ns: int


class Holds:
    def __init__(self, record: Callable[[Hold], None]) -> None:
        self._record = record
        self._open: dict[str, _Open] = {}
        self.looked_ns = 0

    def look(self, unlent: Mapping[str, tuple[Worker, Reason]], now_ns: int) -> None:
        self.looked_ns = now_ns
        for engine_id, hold in list(self._open.items()):
            worker, reason = unlent.get(engine_id, (None, None))
            if worker is None or reason is None or (worker.assigned, reason.name) != (hold.run_id, hold.reason.name):
                self._end(engine_id, now_ns)
                continue
            hold.reason = reason  # Its text has newer figures.
            if now_ns - hold.since_ns >= HOLD_NS:
                self._end(engine_id, now_ns)
        for engine_id, (worker, reason) in unlent.items():
            if reason.name not in _ELSEWHERE and engine_id not in self._open:
                self._open[engine_id] = _Open(worker, worker.assigned, reason, utc_us(), now_ns)

    def _end(self, engine_id: str, now_ns: int) -> None:
        hold = self._open.pop(engine_id)
        self._record(
            Hold(
                at_us=hold.at_us,
                device_id=hold.worker.report.device_id,
                engine_id=engine_id,
                reason=hold.reason.name,
                explanation=hold.reason.text,
                count=1,
                duration_ns=now_ns - hold.since_ns,
                rl_run_id=hold.run_id,
            )
        )
