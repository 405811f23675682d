"""Plays many games of a run at once, in a thread beside the trainer's thread."""

from __future__ import annotations

import asyncio
import itertools
import queue
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rose.client import Generation, RunAddress
from rose.client.run import BackgroundTurns
from rose.config import TaskConfig, TrainingConfig
from rose.runtime.rollout.agent import Rules, play
from rose.runtime.rollout.conversation import Conversation
from rose.runtime.rollout.environments.environment_client import EnvironmentWorkers, Here, Playable
from rose.runtime.rollout.environments.protocol import FROZENLAKE, Traits
from rose.runtime.rollout.frozenlake import MAX_NEW_TOKENS, FrozenLake
from rose.runtime.rollout.trajectory import Game, Trajectory


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    game: Game
    trajectory: Trajectory


def games_of(step: int, training: TrainingConfig, prefix: str) -> list[Game]:
    """Return all games of a step. Seeds depend only on `step` and `training`."""
    return [
        Game(
            trajectory_id=f"{prefix}-s{step}-g{group}-{number}",
            group_id=f"{prefix}-s{step}-g{group}",
            seed=training.seed * 1_000_003 + step * 1_009 + group,
            number=number,
        )
        for group in range(training.groups_per_step)
        for number in range(training.group_size)
    ]


def first_name(trajectory_id: str) -> str:
    return trajectory_id.partition("~")[0]


class Task:
    """The environment of the table `[task]`, as a context manager. Raises EnvironmentStartError."""

    def __init__(self, config: TaskConfig) -> None:
        self.config = config
        self._workers = None if config.environment == FROZENLAKE else EnvironmentWorkers(config)
        self.traits = Traits.of(FrozenLake, FROZENLAKE) if self._workers is None else self._workers.traits
        if config.threshold is not None:
            self.traits = replace(self.traits, threshold=config.threshold)

    def __enter__(self) -> Task:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def rules(self, checkpoint: Path | None) -> Rules:
        assert self.traits.token_ids or checkpoint is not None
        conversation = None if self.traits.token_ids or checkpoint is None else Conversation(checkpoint)
        return Rules(task=self.config, traits=self.traits, conversation=conversation)

    def environment(self, number: int) -> AbstractAsyncContextManager[Playable]:
        if self._workers is None:
            return nullcontext(Here(FrozenLake(self.config, slip_seed=number)))
        return self._workers.open()


class Players:
    """Plays games of the run at `address` until the context ends. `checkpoint` has the tokenizer for text."""

    def __init__(self, address: RunAddress, task: Task, checkpoint: Path | None, temperature: float) -> None:
        self._task, rules = task, task.rules(checkpoint)
        self._rules = rules
        self._sampling = sampling_params(task, rules, temperature)
        self._over: queue.SimpleQueue[Future[Played]] = queue.SimpleQueue()
        self._repeated = itertools.count(1)
        self._background = BackgroundTurns(address)
        self._room = asyncio.Semaphore(task.config.trajectories_max)

    def play(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        for game in games:
            self._background.submit(self._play(step, version_min, game)).add_done_callback(self._over.put)

    def play_again(self, step: int, version_min: int, games: Sequence[Game]) -> None:
        """Play lost games again, under new names, because the ledger has the old names."""
        tries = next(self._repeated)
        again = [replace(game, trajectory_id=f"{first_name(game.trajectory_id)}~{tries}") for game in games]
        self.play(step, version_min, again)

    def collect(self, timeout_s: float) -> Iterator[Played]:
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

        async with self._room, self._task.environment(game.number) as environment:
            trajectory = await play(self._rules, environment, generate, game, step)
        return Played(game=game, trajectory=trajectory)


def sampling_params(task: Task, rules: Rules, temperature: float) -> dict[str, object]:
    """Return SGLang's sampling parameters. top_p and top_k are off, because they would change log probabilities."""
    config, conversation = task.config, rules.conversation
    return {
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": MAX_NEW_TOKENS if config.environment == FROZENLAKE else config.answer_tokens_max,
        "stop_token_ids": list(task.traits.stop_token_ids if conversation is None else conversation.stop_token_ids),
    }
