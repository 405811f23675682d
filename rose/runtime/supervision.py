"""Keeps the parts of a deployment running: one that dies is started again, and what was asked of it is asked anew."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rose.runtime.cluster import Cluster, DeploymentError, PartDiedError

#: A part that dies more often than this ...
DEATHS_MAX = 5
#: ... within this time ends the run.
DEATHS_WITHIN_S = 60.0
#: Wait before a part is started again: the first time, doubled with each death of late up to the last.
_BACK_OFF_FIRST_S = 0.5
_BACK_OFF_MAX_S = 8.0
#: Between two looks at whether a part is well.
_WATCH_S = 0.5
_IDLE_S = 0.05
#: How long calls are waited for between two looks.
_POLL_S = 0.5


@dataclass(slots=True, eq=False)
class Part:
    """One process of the deployment. `make` starts it, given how often it was started before.

    `begin` is called whenever it was started; it is done with a life of its own if that takes long. `watch` is called
    every moment: what it returns is in `report`, and if it raises, the part is as good as dead.
    """

    name: str
    make: Callable[[int], Any]
    begin: str | None = None
    watch: str = "ping"
    restarts: int = 0
    actor: Any = None
    report: Any = None
    #: Monotonic seconds at which it is started again; None while it runs.
    again_at: float | None = None
    deaths: deque[float] = field(default_factory=deque)


@dataclass(slots=True, eq=False)
class Call:
    """A method of a part, called until it ends without the part dying. `arguments` are given how often it was tried."""

    part: Part
    method: str
    arguments: Callable[[int], tuple[object, ...]]
    tries: int = 0
    #: Which life of the part it was last made in.
    life: int = 0
    #: None while the part is being started again.
    ref: Any = None
    ended: bool = False
    result: Any = None


class Supervisor:
    """Parts, the calls to them and what watches them. One thread; `tend` is called while anything is waited for."""

    def __init__(
        self, cluster: Cluster, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cluster, self._say, self._clock = cluster, say, clock
        self._parts: list[Part] = []
        self._beginning: dict[Part, Any] = {}
        self._watching: dict[Part, Any] = {}
        self._watched: dict[Part, float] = {}

    def start(self, part: Part) -> Part:
        """Start a part and watch over it from now on."""
        self._parts.append(part)
        self._live(part)
        return part

    def call(self, part: Part, method: str, *arguments: object) -> Call:
        return self.call_with(part, method, lambda _tries: arguments)

    def call_with(self, part: Part, method: str, arguments: Callable[[int], tuple[object, ...]]) -> Call:
        """A call whose arguments depend on how often it was tried before."""
        call = Call(part, method, arguments)
        self._issue(call)
        return call

    def wait(self, calls: Sequence[Call], tend: Callable[[], None], beside: Sequence[Call] = ()) -> list[Any]:
        """Results of all calls, in order; `tend` is called every moment meanwhile, and may raise.

        Calls `beside` are not waited for, but made again too if their part dies.

        Raises what a call raised, and DeploymentError if a part dies too often.
        """
        while waiting := [call for call in calls if not call.ended]:
            self.look()
            tend()
            if all(call.ref is None for call in waiting):
                time.sleep(_IDLE_S)
            self._follow(waiting)
            self._follow([call for call in beside if not call.ended], timeout_s=0)
        return [call.result for call in calls]

    def _follow(self, calls: Sequence[Call], timeout_s: float = _POLL_S) -> None:
        """Take the results of calls that end in time, and make those again whose part was started again."""
        refs = [call.ref for call in calls if call.ref is not None]
        ended = set(self._cluster.poll(refs, timeout_s)) if refs else set()
        for call in calls:
            if call.ref is None:
                self._issue(call)
            elif call.ref in ended:
                try:
                    call.result = self._cluster.result(call.ref)
                    call.ended = True
                except PartDiedError as error:
                    call.ref = None
                    if call.life == call.part.restarts:
                        self._died(call.part, error)

    def wait_begun(self, parts: Sequence[Part], tend: Callable[[], None]) -> None:
        """Wait until parts have begun. Raises what beginning raised."""
        while any(part in self._beginning or part.again_at is not None for part in parts):
            self.look()
            tend()
            if not self._cluster.poll([self._beginning[part] for part in parts if part in self._beginning]):
                time.sleep(_IDLE_S)

    def look(self) -> None:
        """One look at every part: start again what is due, and see who died. Raises DeploymentError if one does so too
        often, and what beginning raised in a part's first life."""
        now = self._clock()
        for part in self._parts:
            if part.again_at is not None:
                if part.again_at <= now:
                    self._live(part)
                continue
            self._look_at(part, now)

    def _look_at(self, part: Part, now: float) -> None:
        for pending in (self._beginning, self._watching):
            ref = pending.get(part)
            if ref is None or not self._cluster.poll([ref], timeout_s=0):
                continue
            del pending[part]
            try:
                result = self._cluster.result(ref)
            except Exception as error:
                if part.restarts == 0 and pending is self._beginning and not isinstance(error, PartDiedError):
                    raise
                return self._died(part, error)
            if pending is self._watching:
                part.report = result
                self._watched[part] = now
        if part not in self._watching and now - self._watched.get(part, -math.inf) >= _WATCH_S:
            self._watching[part] = getattr(part.actor, part.watch).remote()
        return None

    def _live(self, part: Part) -> None:
        part.again_at = None
        part.actor = part.make(part.restarts)
        self._watched.pop(part, None)
        if part.begin is not None:
            self._beginning[part] = getattr(part.actor, part.begin).remote()

    def _died(self, part: Part, error: Exception) -> None:
        if part.again_at is not None:
            return
        why = str(error)
        if part.restarts == 0 and isinstance(error, PartDiedError) and error.unborn:
            raise DeploymentError(f"{part.name} could not be started: {why}")
        now = self._clock()
        part.deaths.append(now)
        while part.deaths[0] < now - DEATHS_WITHIN_S:
            part.deaths.popleft()
        if len(part.deaths) > DEATHS_MAX:
            raise DeploymentError(
                f"{part.name} died {len(part.deaths)} times within {DEATHS_WITHIN_S:.0f} s and is given up; the last "
                f"time: {why}"
            )
        self._cluster.kill(part.actor)
        self._beginning.pop(part, None)
        self._watching.pop(part, None)
        part.restarts += 1
        part.again_at = now + min(_BACK_OFF_MAX_S, _BACK_OFF_FIRST_S * 2 ** (len(part.deaths) - 1))
        self._say(f"{part.name} died and is started again: {why.splitlines()[0]}")

    def _issue(self, call: Call) -> None:
        if call.part.again_at is None:
            call.ref = getattr(call.part.actor, call.method).remote(*call.arguments(call.tries))
            call.tries += 1
            call.life = call.part.restarts
