"""A turn in progress, with its tokens and the engines that it avoids."""

import asyncio
import itertools
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from rose.clock import utc_us
from rose.runtime.coserving.continuation import EARLIER
from rose.runtime.scheduling.turns.answer import Answer, Tokens
from rose.runtime.scheduling.turns.request import TurnRequest
from rose.runtime.scheduling.workers import InFlight, Worker, WorkerTable

AVOID_NS = 1_000_000_000  # A turn avoids its last engine this long, or until another lease.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
#: A turn with this many engine deaths in a row and no token fails: it probably kills engines.
DEATHS_MAX = 5
#: The maximum number of suspect turns on one engine, by the number of engine deaths of the most suspect turn there. A
#: turn is suspect from its second engine death on. After the fourth, no other suspect turn shares its engine. An
#: innocent turn thus has a fair chance before it fails.
_TOGETHER = {2: 8, 3: 2, 4: 1}

_PROCESS = uuid.uuid4().hex[:16]
_numbers = itertools.count()


def new_id() -> str:
    """Return a unique id. SGLang aborts ids by prefix; all ids have one length, so none is a prefix of another."""
    return f"{utc_us() // 1000:012x}{_PROCESS}{next(_numbers):012x}"


@dataclass(slots=True, eq=False)
class Turn:
    """A turn. If an engine dies while it has the turn, the engine's id and start time are added to `deaths`. Each
    new token resets `waited_ns` and `deaths`."""

    request: TurnRequest
    arrived_ns: int
    run_id: str
    version_min: int = 0  # The oldest weights that it accepts.
    trajectory_id: str = field(init=False)
    trajectory: str = field(init=False)
    number: int = 0
    tokens: Tokens = field(default_factory=Tokens)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    waited_ns: int = 0
    on_engines_ns: int = 0
    backoff_s: float = BACKOFF_FIRST_S
    deaths: set[tuple[str, int]] = field(default_factory=set)
    part: Answer | None = None  # Tokens of the present attempt, if it streams.
    ended: str | None = None  # Why it must end; None: it may continue.
    name: str | None = None  # Its client's name for it.
    placed: tuple[Worker, InFlight] | None = None  # Place of its last attempt.
    aborted: bool = False  # Its client ended it, and gets the existing tokens.
    news: asyncio.Event | None = None  # Set and replaced for more tokens; only for streams.
    _engines_left: dict[str, tuple[str | None, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        labels = self.request.labels
        self.trajectory_id = str(labels.trajectory_id or new_id())
        self.trajectory = f"{self.run_id}/{self.trajectory_id}"
        if labels.version_min is not None:
            self.version_min = labels.version_min

    @property
    def key(self) -> str | None:
        key = self.request.labels.key
        return None if key is None else str(key)

    @property
    def error(self) -> str | None:
        if not self.attempts or (error := self.attempts[-1].get("error")) is None:
            return None
        return f"last attempt on {self.attempts[-1]['engine_id']}: {error}"

    @property
    def sampling(self) -> dict[str, Any]:
        sampling = self.request.sampling
        if not self.tokens.count:
            return sampling
        return sampling | {"custom_params": (sampling.get("custom_params") or {}) | {EARLIER: self.tokens.count}}

    def take(self, answer: Answer, *, completed: bool) -> bool:
        self.part = None
        self.tokens += answer.tokens
        if answer.tokens.count:
            self.waited_ns, self.backoff_s = 0, BACKOFF_FIRST_S
            self.deaths.clear()
        return completed or self.tokens.count >= self.request.sampling["max_new_tokens"]

    def grow(self, part: Answer) -> None:
        self.part = part
        if self.news is not None:
            self.news.set()
            self.news = asyncio.Event()

    @property
    def so_far(self) -> Tokens:
        return self.tokens if self.part is None else self.tokens + self.part.tokens

    def pause_s(self) -> float:
        """Return the pause in seconds before the next attempt, and add it to `waited_ns`. Double the next pause."""
        pause_s, self.backoff_s = self.backoff_s, min(2 * self.backoff_s, BACKOFF_MAX_S)
        self.waited_ns += int(pause_s * 1e9)
        return pause_s

    def leave(self, engine_id: str, lease_id: str | None, now_ns: int) -> None:
        self._engines_left[engine_id] = (lease_id, now_ns + AVOID_NS)

    def avoids(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        recent = frozenset(
            engine_id
            for engine_id, (lease_id, until_ns) in self._engines_left.items()
            if now_ns < until_ns and engine_id in table and table[engine_id].report.lease_id == lease_id
        )
        return recent | self._avoids_after_deaths(table, now_ns) if self.deaths else recent

    def _avoids_after_deaths(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        """Return the ids of engines that a turn must avoid after engines died with it. Engines with too many suspect
        turns are avoided. If another engine can take the turn, the engines that died are avoided too."""
        dead = {engine_id for engine_id, _ in self.deaths}
        has_others = any(
            facts.usable(now_ns)
            and facts.engine_id not in dead
            and facts.policy_version >= self.version_min
            and facts.capacity > (facts.in_flight if len(self.deaths) == 1 else 0)
            for facts in table.serving(self.run_id)
        )
        return frozenset(
            worker.report.engine_id
            for worker in table.values()
            if (has_others and worker.report.engine_id in dead) or _crowded(worker, len(self.deaths))
        )


def _crowded(worker: Worker, deaths: int) -> bool:
    if deaths not in _TOGETHER:
        return False
    suspects = [item.deaths for item in worker.in_flight.values() if item.deaths in _TOGETHER]
    return len(suspects) >= min(_TOGETHER[number] for number in (deaths, *suspects))


REMEMBERED_MAX = 20_000  # Trajectories, 5 MB. The longest idle is forgotten first.


@dataclass(slots=True)
class _Trajectory:
    engine_id: str | None = None
    turns: int = 0


class Trajectories:
    def __init__(self) -> None:
        self._trajectories: OrderedDict[str, _Trajectory] = OrderedDict()
        self.follow_share = 0.0  # Share of turns with a later turn.

    def begin(self, trajectory_id: str) -> int:
        trajectory = self._trajectories.get(trajectory_id)
        self.follow_share += 0.02 * ((trajectory is not None) - self.follow_share)
        trajectory = self._remember(trajectory_id)
        trajectory.turns += 1
        return trajectory.turns - 1

    def completed(self, trajectory_id: str, engine_id: str) -> None:
        self._remember(trajectory_id).engine_id = engine_id

    def engine(self, trajectory_id: str) -> str | None:
        trajectory = self._trajectories.get(trajectory_id)
        return None if trajectory is None else trajectory.engine_id

    def _remember(self, trajectory_id: str) -> _Trajectory:
        trajectory = self._trajectories.setdefault(trajectory_id, _Trajectory())
        self._trajectories.move_to_end(trajectory_id)
        while len(self._trajectories) > REMEMBERED_MAX:
            self._trajectories.popitem(last=False)
        return trajectory
