"""What the gateway remembers of trajectories: which engine holds the prefix of each, and how often they go on."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

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
