"""Play many games of a run at once, in a thread beside the trainer's."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from rose.client import Generation, RunAddress
from rose.client.run import BackgroundTurns
from rose.config import TaskConfig, TrainingConfig
from rose.runtime.rollout.agent import play
from rose.runtime.rollout.frozenlake import Episode, sampling_params
from rose.runtime.rollout.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """A trajectory to play. `number` tells it from the others of its group, which share the map."""

    trajectory_id: str
    group_id: str
    map_seed: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    game: Game
    trajectory: Trajectory


def games_of(step: int, training: TrainingConfig, prefix: str) -> list[Game]:
    """Return all games of a step; their names begin with `prefix`. The maps depend only on step and training."""
    return [
        Game(
            trajectory_id=f"{prefix}-s{step}-g{group}-{number}",
            group_id=f"{prefix}-s{step}-g{group}",
            map_seed=training.seed * 1_000_003 + step * 1_009 + group,
            number=number,
        )
        for group in range(training.groups_per_step)
        for number in range(training.group_size)
    ]


def first_name(trajectory_id: str) -> str:
    return trajectory_id.partition("~")[0]


class Players:
    """Plays games of the run at `address`; a context manager that cancels running games at its end."""

    def __init__(self, address: RunAddress, task: TaskConfig, temperature: float) -> None:
        self._task, self._sampling = task, sampling_params(temperature)
        self._over: queue.SimpleQueue[Future[Played]] = queue.SimpleQueue()
        self._repeated = itertools.count(1)
        self._background = BackgroundTurns(address)
        self._room = asyncio.Semaphore(task.trajectories_max)

    def play(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Start games of a step; turns accept weights of `version_min` or newer."""
        for game in games:
            self._background.submit(self._play(step, version_min, game)).add_done_callback(self._over.put)

    def play_again(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Play lost games under other names: the ledger has their earlier tries under the old names."""
        tries = next(self._repeated)
        again = [replace(game, trajectory_id=f"{first_name(game.trajectory_id)}~{tries}") for game in games]
        self.play(step, version_min, again)

    def collect(self, timeout_s: float) -> Iterator[Played]:
        """Yield finished games, after at most `timeout_s` if there is none. Raises the ClientError of a call."""
        with suppress(queue.Empty):
            over = self._over.get(timeout=timeout_s)
            while True:
                yield over.result()
                over = self._over.get_nowait()

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        self._background.close()

    async def _play(self, step: int, version_min: int, game: Game) -> Played:
        async def generate(input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation:
            return await self._background.client.turn(
                input_ids,
                self._sampling,
                trajectory_id=trajectory_id,
                turn=turn,
                version_min=version_min,
                group_id=game.group_id,
                step=step,
            )

        async with self._room:
            episode = Episode(self._task, seed=game.map_seed, slip_seed=game.number)
            trajectory = await play(
                episode, generate, trajectory_id=game.trajectory_id, group_id=game.group_id, step=step
            )
        return Played(game=game, trajectory=trajectory)
