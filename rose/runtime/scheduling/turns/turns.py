"""One turn on its way: the tokens it has, what it still wants, and where it must not go."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from rose.clock import utc_us
from rose.runtime.scheduling.engines.workers import Worker, WorkerTable
from rose.runtime.scheduling.turns.answer import Answer, Tokens
from rose.runtime.scheduling.turns.request import Labels, Prompt, TurnRequest

#: An engine that took a turn off does not get it again for this long, or until it has another lease.
AVOID_NS = 1_000_000_000
#: Wait before a turn that got nowhere is tried again: the first, doubled each time up to the last.
BACKOFF_FIRST_S = 0.05
BACKOFF_MAX_S = 1.0
#: Of an attempt that made no token, so much counts as waiting: one engine that dies after long work costs no turn its
#: life.
ATTEMPT_WAITED_MAX_NS = 60_000_000_000
#: A turn under which so many engine lives ended in a row, and none made a token, is given up: it is what kills them. An
#: engine, or its host, has other reasons to die, though hardly five times in the time of one turn.
DEATHS_MAX = 5
#: How many turns may share an engine of which the most suspect one saw so many lives end. A turn that only was beside
#: the one that kills is thereby alone, and makes its tokens, before it would be given up. One death is no suspicion: an
#: engine that died for any reason has all its turns again at once.
_TOGETHER = {2: 8, 3: 2, 4: 1}

_NONE = Tokens()

_PROCESS = uuid.uuid4().hex[:16]
_numbers = itertools.count()


def new_id() -> str:
    """An id that no other process made either. Those of one length are prefix-free, and SGLang aborts by prefix.

    Later ones sort after those before, whichever processes made them: a roll-up that looks for new ids of turns among
    all that it counts needs to read the last of these only.
    """
    return f"{utc_us() // 1000:012x}{_PROCESS}{next(_numbers):012x}"


@dataclass(slots=True, eq=False)
class Turn:
    """`waited_ns` is how long it has waited since it last made progress: in the queue, between attempts, or on engines
    that made no token. `deaths` are the engine lives that ended under it since then: engine, and when the life began.
    """

    labels: Labels
    prompt: Prompt
    trajectory_id: str
    arrived_ns: int
    #: The run that it is of.
    run_id: str
    #: Its trajectory's name among those of all runs.
    trajectory: str = field(init=False)
    #: Which turn of its trajectory it is, from 0.
    number: int = 0
    #: The oldest weights that it may be made with.
    version_min: int = 0
    #: How many tokens it wants in all, and the sampling parameters as they were given.
    tokens_max: int = 0
    given: dict[str, Any] = field(default_factory=dict)
    #: What all attempts before made.
    tokens: Tokens = _NONE
    attempts: list[dict[str, Any]] = field(default_factory=list)
    waited_ns: int = 0
    on_engines_ns: int = 0
    backoff_s: float = BACKOFF_FIRST_S
    deaths: set[tuple[str, int]] = field(default_factory=set)
    #: What the attempt under way has made so far, if the engine streams.
    part: Answer | None = None
    #: Why it is not to go on; None: it is.
    ended: str | None = None
    #: Set, and another put in its place, when it has more tokens. Only a streamed turn has one.
    news: asyncio.Event | None = None
    _left: dict[str, tuple[str | None, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.trajectory = f"{self.run_id}/{self.trajectory_id}"

    @classmethod
    def begin(cls, request: TurnRequest, now_ns: int, run_id: str, version_min: int = 0) -> Turn:
        """`version_min` holds where the request says none."""
        labels = request.labels
        return cls(
            labels,
            request.prompt,
            str(labels.trajectory_id or new_id()),
            now_ns,
            run_id,
            version_min=version_min if labels.version_min is None else labels.version_min,
            tokens_max=request.sampling["max_new_tokens"],
            given=request.sampling,
        )

    @property
    def key(self) -> str | None:
        """What the run's client calls it, if anything."""
        return None if self.labels.key is None else str(self.labels.key)

    @property
    def error(self) -> str | None:
        """What the last engine to try says of its failure; None: it did not fail, or none tried."""
        if not self.attempts or (error := self.attempts[-1].get("error")) is None:
            return None
        return f"the last engine to try, {self.attempts[-1]['engine_id']}, {error}"

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters of the next attempt, less the tokens that are made already."""
        sampling = self.given
        made = self.tokens.count
        if made:
            sampling = dict(sampling)
            sampling["max_new_tokens"] -= made
            if "min_new_tokens" in sampling:
                sampling["min_new_tokens"] = max(0, sampling["min_new_tokens"] - made)
        return sampling

    def take(self, answer: Answer, *, completed: bool) -> bool:
        """Keep the tokens that an attempt made. True if the turn has all of them now."""
        self.part = None
        self.tokens += answer.tokens
        if answer.tokens.count:
            self.waited_ns, self.backoff_s = 0, BACKOFF_FIRST_S
            self.deaths.clear()
        return completed or self.tokens.count >= self.tokens_max

    def grow(self, part: Answer) -> None:
        """The attempt under way has made so much."""
        self.part = part
        if self.news is not None:
            self.news.set()
            self.news = asyncio.Event()

    @property
    def so_far(self) -> Tokens:
        """The tokens of all attempts, and of the one under way."""
        return self.tokens if self.part is None else self.tokens + self.part.tokens

    def pause_s(self) -> float:
        """How long to wait before the next attempt, each time longer; counted as waiting."""
        pause_s, self.backoff_s = self.backoff_s, min(2 * self.backoff_s, BACKOFF_MAX_S)
        self.waited_ns += int(pause_s * 1e9)
        return pause_s

    def spend(self, attempt: dict[str, Any]) -> None:
        """The attempt made no token: its time was spent waiting."""
        self.waited_ns += min(attempt["duration_ns"], ATTEMPT_WAITED_MAX_NS)

    def leave(self, engine_id: str, lease_id: str | None, now_ns: int) -> None:
        """The engine took the turn off."""
        self._left[engine_id] = (lease_id, now_ns + AVOID_NS)

    def avoids(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        """The engines that the turn is not to be placed on yet."""
        left = frozenset(
            engine_id
            for engine_id, (lease_id, until_ns) in self._left.items()
            if now_ns < until_ns and engine_id in table and table[engine_id].report.lease_id == lease_id
        )
        return left | self._avoids_after_deaths(table, now_ns) if self.deaths else left

    def _avoids_after_deaths(self, table: WorkerTable, now_ns: int) -> frozenset[str]:
        """Engines that died under it, as long as there are others, and those with other suspects on them. After one
        death the others must have room: after more, it waits for them."""
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
            for worker in table
            if (others and worker.report.engine_id in dead) or _crowded(worker, len(self.deaths))
        )


def _crowded(worker: Worker, deaths: int) -> bool:
    """Whether a turn under which so many lives ended is one too many there."""
    if deaths not in _TOGETHER:
        return False
    suspects = [item.deaths for item in worker.in_flight.values() if item.deaths in _TOGETHER]
    return len(suspects) >= min(_TOGETHER[number] for number in (deaths, *suspects))


#: Trajectories remembered at most, 5 MB; the one that had no turn for longest is forgotten first, and costs a prefill
#: at its next turn.
REMEMBERED_MAX = 20_000
_AVERAGE_WEIGHT = 0.02


@dataclass(slots=True)
class _Seen:
    engine_id: str | None = None
    turns: int = 0


class Trajectories:
    """By trajectory id, bounded."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._seen: OrderedDict[str, _Seen] = OrderedDict()
        self._remembered_max = remembered_max
        #: Share of turns that another one of their trajectory follows: as many as follow one themselves.
        self.follow_share = 0.0

    def __len__(self) -> int:
        return len(self._seen)

    def begin(self, trajectory_id: str) -> int:
        """A turn of the trajectory came in; returns how many came before."""
        seen = self._seen.get(trajectory_id)
        self.follow_share += _AVERAGE_WEIGHT * ((seen is not None) - self.follow_share)
        seen = self._remember(trajectory_id)
        seen.turns += 1
        return seen.turns - 1

    def completed(self, trajectory_id: str, engine_id: str) -> None:
        """The turn's last tokens were made on that engine, which holds the prefix of the next turn."""
        self._remember(trajectory_id).engine_id = engine_id

    def engine(self, trajectory_id: str) -> str | None:
        seen = self._seen.get(trajectory_id)
        return None if seen is None else seen.engine_id

    def _remember(self, trajectory_id: str) -> _Seen:
        seen = self._seen.setdefault(trajectory_id, _Seen())
        self._seen.move_to_end(trajectory_id)
        while len(self._seen) > self._remembered_max:
            self._seen.popitem(last=False)
        return seen
