"""What a user hears of the devices while a deployment runs: engines that died, and why nothing is lent."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rose.event_base import Event, Record
from rose.events import Engine

#: Why nothing is lent is said once it has been so for this long: a device may be late for a moment.
SAY_REFUSAL_AFTER_S = 5.0
#: How many deaths an agent names: more than there can be between two times that it is asked.
_DEATHS_KEPT = 16


@dataclass(frozen=True, slots=True)
class AgentReport:
    """What an agent answers whenever it is asked how its device is."""

    #: Why the device lends nothing although it is wanted; None if it lends or nobody wants it.
    refusal: str | None
    #: The last engines that died, oldest first; no two have the same words.
    deaths: tuple[str, ...]


class DeathWatch:
    """Hands events on to `record`, and remembers the deaths of engines among them."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._deaths: deque[str] = deque(maxlen=_DEATHS_KEPT)

    @property
    def deaths(self) -> tuple[str, ...]:
        """The last of them in words, oldest first."""
        return tuple(self._deaths)

    def record(self, event: Event, *, durable: bool | None = None) -> object:
        """As a ledger writer's. A death is remembered even if the ledger cannot take it."""
        if isinstance(event, Engine) and event.action == "died":
            again = " and is started again" if event.role == "rollout" else ""
            reason = f": {event.reason}" if event.reason else ""
            self._deaths.append(f"engine {event.engine_id} (process {event.pid}) died{again}{reason}")
        return self._record(event, durable=durable)


class Notices:
    """Says each death once, at once, and what lending waits for where that lasts."""

    def __init__(self, say: Callable[[str], None], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._say, self._clock_s = say, clock_s
        self._deaths: set[str] = set()
        #: Why devices lend nothing, since when, and as last said.
        self._refusals: frozenset[str] = frozenset()
        self._refused_at_s = 0.0
        self._refusals_shown: frozenset[str] = frozenset()

    def look(self, reports: Sequence[AgentReport | None]) -> None:
        """Say what is new in the agents' last reports; None of one that was not asked yet."""
        answered = [report for report in reports if report is not None]
        for report in answered:
            for death in report.deaths:
                if death not in self._deaths:
                    self._deaths.add(death)
                    self._say(death)
        now_s = self._clock_s()
        refusals = frozenset(report.refusal for report in answered if report.refusal is not None)
        if refusals != self._refusals:
            self._refusals, self._refused_at_s = refusals, now_s
        if refusals != self._refusals_shown and now_s - self._refused_at_s > SAY_REFUSAL_AFTER_S:
            self._refusals_shown = refusals
            self._say(f"not lending, serving goes on: {'; '.join(sorted(refusals))}" if refusals else "lending again")
