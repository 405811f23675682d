"""What the gateway remembers of trajectories: which engine holds the prefix of each, and how often they go on."""

from __future__ import annotations

from collections import OrderedDict

#: Trajectories remembered at most; the one that had no turn for longest is forgotten first.
REMEMBERED_MAX = 100_000
_AVERAGE_WEIGHT = 0.02


class Trajectories:
    """By trajectory id, bounded."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._engines: OrderedDict[str, str | None] = OrderedDict()
        self._remembered_max = remembered_max
        #: Share of turns that another one of their trajectory follows: as many as follow one themselves.
        self.follow_share = 0.0

    def __len__(self) -> int:
        return len(self._engines)

    def begin(self, trajectory_id: str) -> None:
        """A turn of the trajectory came in."""
        follows = trajectory_id in self._engines
        self.follow_share += _AVERAGE_WEIGHT * (follows - self.follow_share)
        self._remember(trajectory_id, self._engines.get(trajectory_id))

    def completed(self, trajectory_id: str, engine_id: str) -> None:
        """The turn's last tokens were made on that engine, which holds the prefix of the next turn."""
        self._remember(trajectory_id, engine_id)

    def engine(self, trajectory_id: str) -> str | None:
        return self._engines.get(trajectory_id)

    def _remember(self, trajectory_id: str, engine_id: str | None) -> None:
        self._engines[trajectory_id] = engine_id
        self._engines.move_to_end(trajectory_id)
        while len(self._engines) > self._remembered_max:
            self._engines.popitem(last=False)
