"""Plays the games of a run, many at once, in a thread beside the trainer's."""

from __future__ import annotations

import asyncio
import itertools
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from rose.client import Generation, RunAddress, TurnClient
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
    """A game that is over."""

    game: Game
    trajectory: Trajectory


def games_of(step: int, training: TrainingConfig, prefix: str) -> list[Game]:
    """Return all games of a step; their names begin with `prefix`. A step has the same maps whoever plays it."""
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
    """Return the name of a game before it was played again."""
    return trajectory_id.partition("~")[0]


class Players:
    """Plays games of the run at `address`. A context manager: what is still played at its end is given up."""

    def __init__(self, address: RunAddress, task: TaskConfig, temperature: float) -> None:
        self._address, self._task, self._sampling = address, task, sampling_params(temperature)
        self._results: queue.SimpleQueue[Played | BaseException] = queue.SimpleQueue()
        self._repeated = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._games: asyncio.Queue[tuple[int, int, Game] | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self._run, name="rose-play", daemon=True)
        self._thread.start()

    def play(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Have games of a step played; turns may be generated with weights of `version_min` or newer."""
        for game in games:
            self._send((step, version_min, game))

    def play_again(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Play lost games under other names: what was made of them is in the ledger under the names that they had."""
        tries = next(self._repeated)
        again = [replace(game, trajectory_id=f"{first_name(game.trajectory_id)}~{tries}") for game in games]
        self.play(step, version_min, again)

    def collect(self, timeout_s: float) -> Iterator[Played]:
        """Yield the games that are over, after at most `timeout_s` if none is. Raises the ClientError of a call."""
        with suppress(queue.Empty):
            result = self._results.get(timeout=timeout_s)
            while True:
                if isinstance(result, BaseException):
                    raise result
                yield result
                result = self._results.get_nowait()

    def close(self) -> None:
        """End the thread, and give up what it plays."""
        self._send(None)
        self._thread.join()

    def __enter__(self) -> Players:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _send(self, item: tuple[int, int, Game] | None) -> None:
        with suppress(RuntimeError):  # The loop has ended with an error, which `collect` raises.
            self._loop.call_soon_threadsafe(self._games.put_nowait, item)

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            self._results.put(error)
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        # First come, first served: trajectories of a step begin before those of the next one.
        room = asyncio.Semaphore(self._task.trajectories_max)
        async with TurnClient(self._address) as client, asyncio.TaskGroup() as playing:
            while (item := await self._games.get()) is not None:
                playing.create_task(self._play(client, room, *item))
            raise asyncio.CancelledError  # Nobody waits for what is still played.

    async def _play(self, client: TurnClient, room: asyncio.Semaphore, step: int, version_min: int, game: Game) -> None:
        async with room:
            episode = Episode(self._task, seed=game.map_seed, slip_seed=game.number)
            generate = partial(self._generate, client, step=step, version_min=version_min, group_id=game.group_id)
            trajectory = await play(
                episode, generate, trajectory_id=game.trajectory_id, group_id=game.group_id, step=step
            )
        self._results.put(Played(game=game, trajectory=trajectory))

    async def _generate(
        self,
        client: TurnClient,
        input_ids: list[int],
        *,
        trajectory_id: str,
        turn: int,
        step: int,
        version_min: int,
        group_id: str,
    ) -> Generation:
        labels = {"trajectory_id": trajectory_id, "group_id": group_id}
        return await client.turn(input_ids, self._sampling, step=step, turn=turn, version_min=version_min, **labels)
