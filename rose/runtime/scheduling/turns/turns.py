"""One turn in progress: its tokens so far, its remaining tokens, and the engines that it avoids."""

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

AVOID_NS = 1_000_000_000  # An engine that took a turn off is avoided this long, or until it has another lease.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
#: A turn is given up after this many engine deaths in a row without a token, since it kills engines. Engines also die
#: of other reasons, but hardly five times during one turn.
DEATHS_MAX = 5
#: By deaths of the most suspect turn: how many suspects may share an engine. So an innocent turn is alone, and makes
#: its tokens, before it is given up. After one death all turns return at once.
_TOGETHER = {2: 8, 3: 2, 4: 1}

_NONE = Tokens()

_PROCESS = uuid.uuid4().hex[:16]
_numbers = itertools.count()


def new_id() -> str:
    """Return a unique id. All ids have one length, so none is a prefix of another: SGLang aborts by prefix. Ids sort by
    time across processes, so that a roll-up finds new ids of turns in the last ones."""
    return f"{utc_us() // 1000:012x}{_PROCESS}{next(_numbers):012x}"


@dataclass(slots=True, eq=False)
class Turn:
    """`waited_ns`: time since the last progress, in the queue, between attempts, or on engines that made no token.
    `deaths`: the (engine, start) of the engine lives that ended under it since then."""

    request: TurnRequest
    arrived_ns: int
    run_id: str
    version_min: int = 0  # The oldest weights that it accepts, if the request sets no bound.
    trajectory_id: str = field(init=False)
    trajectory: str = field(init=False)
    number: int = 0
    tokens: Tokens = _NONE
    attempts: list[dict[str, Any]] = field(default_factory=list)
    waited_ns: int = 0
    on_engines_ns: int = 0
    backoff_s: float = BACKOFF_FIRST_S
    deaths: set[tuple[str, int]] = field(default_factory=set)
    part: Answer | None = None  # Tokens so far of the present attempt, if the engine streams.
    ended: str | None = None  # Why it must end; None: it may continue.
    name: str | None = None  # Its client's name for it, to abort it by.
    placed: tuple[Worker, InFlight] | None = None  # Where its last attempt went.
    aborted: bool = False  # Whether its client asked for the end, and gets the tokens that exist.
    news: asyncio.Event | None = None  # Set and replaced when it has more tokens. Only a streamed turn has one.
    _left: dict[str, tuple[str | None, int]] = field(default_factory=dict)

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
        return f"the last engine to try, {self.attempts[-1]['engine_id']}, {error}"

    @property
    def sampling(self) -> dict[str, Any]:
        """Return the sampling parameters of the next attempt, which continues the tokens that exist."""
        sampling = self.request.sampling
        if not self.tokens.count:
            return sampling
        return sampling | {"custom_params": (sampling.get("custom_params") or {}) | {EARLIER: self.tokens.count}}

    def take(self, answer: Answer, *, completed: bool) -> bool:
        """Keep an attempt's tokens; return whether the turn has all of them."""
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
        """Return the pause before the next attempt, each longer; it counts as waiting."""
        pause_s, self.backoff_s = self.backoff_s, min(2 * self.backoff_s, BACKOFF_MAX_S)
        self.waited_ns += int(pause_s * 1e9)
        return pause_s

    def leave(self, engine_id: str, lease_id: str | None, now_ns: int) -> None:
        self._left[engine_id] = (lease_id, now_ns + AVOID_NS)

    def avoids(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        left = frozenset(
            engine_id
            for engine_id, (lease_id, until_ns) in self._left.items()
            if now_ns < until_ns and engine_id in table and table[engine_id].report.lease_id == lease_id
        )
        return left | self._avoids_after_deaths(table, now_ns) if self.deaths else left

    def _avoids_after_deaths(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        """Return engines that died under it while others (after one death: with room) exist, or with other suspects."""
        dead = {engine_id for engine_id, _ in self.deaths}
        others = any(
            facts.usable(now_ns)
            and facts.engine_id not in dead
            and facts.policy_version >= self.version_min
            and facts.capacity > (facts.in_flight if len(self.deaths) == 1 else 0)
            for facts in table.serving(self.run_id)
        )
        return frozenset(
            worker.report.engine_id
            for worker in table.values()
            if (others and worker.report.engine_id in dead) or _crowded(worker, len(self.deaths))
        )


def _crowded(worker: Worker, deaths: int) -> bool:
    """Return whether the worker has too many turns for one more with `deaths`."""
    if deaths not in _TOGETHER:
        return False
    suspects = [item.deaths for item in worker.in_flight.values() if item.deaths in _TOGETHER]
    return len(suspects) >= min(_TOGETHER[number] for number in (deaths, *suspects))


REMEMBERED_MAX = 20_000  # Trajectories, 5 MB. The longest idle is forgotten first and needs a prefill at its next turn.


@dataclass(slots=True)
class _Seen:
    engine_id: str | None = None
    turns: int = 0


class Trajectories:
    def __init__(self) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self.follow_share = 0.0  # Share of turns that another turn of their trajectory follows: as many as follow one.

    def begin(self, trajectory_id: str) -> int:
        """Count a turn of the trajectory; return the number of earlier turns."""
        seen = self._seen.get(trajectory_id)
        self.follow_share += 0.02 * ((seen is not None) - self.follow_share)
        seen = self._remember(trajectory_id)
        seen.turns += 1
        return seen.turns - 1

    def completed(self, trajectory_id: str, engine_id: str) -> None:
        self._remember(trajectory_id).engine_id = engine_id

    def engine(self, trajectory_id: str) -> str | None:
        seen = self._seen.get(trajectory_id)
        return None if seen is None else seen.engine_id

    def _remember(self, trajectory_id: str) -> _Seen:
        seen = self._seen.setdefault(trajectory_id, _Seen())
        self._seen.move_to_end(trajectory_id)
        while len(self._seen) > REMEMBERED_MAX:
            self._seen.popitem(last=False)
        return seen
