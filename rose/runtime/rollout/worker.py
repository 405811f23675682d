"""A process that plays trajectories of a run, with `main` as its program.

It is sent `Setting`, then a `Share` for each step, and sends a `Played` for each trajectory, or `Failed` once. Its
trainer's end of the connection closes when that dies, however it dies, and then it ends too.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Literal

from rose.client import (
    ClientError,
    ControllerAwayError,
    Generation,
    RunAddress,
    RunEndedError,
    RunTakenError,
    TurnClient,
)
from rose.config import TaskConfig
from rose.runtime.rollout.agent import play
from rose.runtime.rollout.frozenlake import Episode
from rose.runtime.rollout.sampling import sampling_params
from rose.runtime.rollout.trajectory import Trajectory

Kind = Literal["taken", "ended", "away", "other"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What a worker needs to know once."""

    address: RunAddress
    task: TaskConfig
    temperature: float
    nice: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """A trajectory to play. `number` tells it from the others of its group, which share the map."""

    trajectory_id: str
    group_id: str
    map_seed: int
    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Share:
    """A worker's part of a step; turns may be generated with weights of `version_min` or newer."""

    step: int
    version_min: int
    games: Sequence[Game]


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """A game is over."""

    game: Game
    trajectory: Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed:
    """The worker ends, because the controller said something that no other try will change."""

    kind: Kind
    message: str


#: What a trainer has to tell apart.
ERRORS: dict[Kind, type[ClientError]] = {
    "taken": RunTakenError,
    "ended": RunEndedError,
    "away": ControllerAwayError,
    "other": ClientError,
}


async def work(connection: Connection, setting: Setting) -> None:
    """Play what is sent, side by side, until the other end closes. Raises what the run's client raises."""
    #: First come, first served: trajectories of a step begin before those of the next one.
    room = asyncio.Semaphore(setting.task.trajectories_max)
    sampling = sampling_params(setting.temperature)

    async with TurnClient(setting.address) as client, asyncio.TaskGroup() as games:

        async def play_one(share: Share, game: Game) -> None:
            async with room:
                episode = Episode(setting.task, seed=game.map_seed, slip_seed=game.number)
                generate = partial(
                    _generate, client, sampling, share.version_min, group_id=game.group_id, step=share.step
                )
                trajectory = await play(
                    episode, generate, trajectory_id=game.trajectory_id, group_id=game.group_id, step=share.step
                )
            with suppress(BrokenPipeError, ConnectionResetError):  # The trainer has gone: `shares` ends too.
                connection.send(Played(game=game, trajectory=trajectory))

        shares = _shares(connection)
        while (share := await shares.get()) is not None:
            for game in share.games:
                games.create_task(play_one(share, game))
        raise asyncio.CancelledError  # Nobody waits for what is still played.


async def _generate(
    client: TurnClient,
    sampling: dict[str, object],
    version_min: int,
    input_ids: list[int],
    *,
    trajectory_id: str,
    group_id: str,
    step: int,
    turn: int,
) -> Generation:
    labels = {"trajectory_id": trajectory_id, "group_id": group_id}
    return await client.turn(input_ids, sampling, step=step, turn=turn, version_min=version_min, **labels)


def _shares(connection: Connection) -> asyncio.Queue[Share | None]:
    """What is sent, as it comes; None once the other end has closed. Bounded by the steps that a trainer overlaps."""
    loop, shares = asyncio.get_running_loop(), asyncio.Queue[Share | None]()

    def receive() -> None:
        try:
            shares.put_nowait(connection.recv())
        except (EOFError, OSError):
            loop.remove_reader(connection.fileno())
            shares.put_nowait(None)

    loop.add_reader(connection.fileno(), receive)
    return shares


def _failure(error: BaseException) -> Failed:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, ClientError):
        raise error
    kind = next(kind for kind, known in ERRORS.items() if isinstance(error, known))
    return Failed(kind=kind, message=str(error))


def main() -> None:
    """Work at the connection whose file descriptor is the one argument."""
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, KeyboardInterrupt, asyncio.CancelledError, BrokenPipeError):
        setting = connection.recv()
        with suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, setting.nice)
        try:
            asyncio.run(work(connection, setting))
        except (ClientError, BaseExceptionGroup) as error:
            connection.send(_failure(error))
