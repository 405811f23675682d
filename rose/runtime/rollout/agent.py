"""Plays one trajectory in an environment, with turns from a `Generate` callable."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rose import events
from rose.client.generation import Generate, GenerationLost
from rose.config import TaskConfig
from rose.runtime.rollout.conversation import Conversation
from rose.runtime.rollout.environments.environment_client import EnvironmentFailedError, Playable
from rose.runtime.rollout.environments.protocol import Traits
from rose.runtime.rollout.trajectory import Game, Trajectory

logger = logging.getLogger(__name__)
_TRAJECTORY_FIELDS = (
    *("task", "outcome", "turns", "prompt_tokens", "output_tokens", "answer_tokens"),
    *("duration_ns", "tool_calls", "tool_ns", "reason"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    task: TaskConfig
    traits: Traits
    conversation: Conversation | None = None


async def play(rules: Rules, environment: Playable, generate: Generate, game: Game, step: int) -> Trajectory:
    """Play a game, and return its trajectory. The outcome is "lost" if the environment cannot start, or if no engine
    can complete a turn. It is "truncated", with reward 0, if the environment fails later."""
    trajectory = Trajectory(
        trajectory_id=game.trajectory_id,
        group_id=game.group_id,
        step=step,
        task=rules.task.environment,
        traits=rules.traits,
    )
    began_ns = time.monotonic_ns()
    await _Episode(rules, environment, generate, trajectory).play(game.seed)
    trajectory.duration_ns = time.monotonic_ns() - began_ns
    return trajectory


class _Episode:
    def __init__(self, rules: Rules, environment: Playable, generate: Generate, trajectory: Trajectory) -> None:
        self._rules, self._environment, self._generate = rules, environment, generate
        self._trajectory = trajectory

    async def play(self, seed: int) -> None:
        trajectory = self._trajectory
        try:
            self._read(await self._environment.reset(seed))
        except EnvironmentFailedError as error:
            self._lose(str(error), attempts=0, failed=True)
            return
        try:
            while trajectory.outcome == "truncated" and trajectory.turns < self._rules.task.turns_max:
                await self._turn()
            if trajectory.outcome == "finished" and self._is_rechecked():
                trajectory.correct = await self._environment.recheck()
        except GenerationLost as error:
            failed = any(attempt.outcome == "failed" for attempt in error.attempts)
            self._lose(str(error), attempts=len(error.attempts), failed=failed)
        except EnvironmentFailedError as error:
            trajectory.reason = str(error)
            logger.warning("turn %d of %s: %s", trajectory.turns, trajectory.trajectory_id, error)
            if trajectory.outcome == "truncated":
                trajectory.reward = 0.0

    async def _turn(self) -> None:
        trajectory = self._trajectory
        prompt, labels = list(trajectory.ids), {"trajectory_id": trajectory.trajectory_id}
        generation = await self._generate(prompt, turn=trajectory.turns, **labels)
        trajectory.write(generation.output_ids, generation.logprobs, generation.versions)
        conversation = self._rules.conversation
        answer: Any = generation.output_ids if conversation is None else conversation.text(generation.output_ids)
        began_ns = time.monotonic_ns()
        observation, reward, done, facts = await self._environment.step(answer)
        if calls := facts.get("tool_calls", 0):
            trajectory.tool_calls += calls
            trajectory.tool_ns += time.monotonic_ns() - began_ns
        trajectory.reward += reward
        trajectory.correct = facts.get("correct", trajectory.correct)
        if (tokens := facts.get("answer_tokens")) is not None:
            trajectory.answer_tokens = (trajectory.answer_tokens or 0) + tokens
        if done:
            trajectory.outcome = "finished"
        elif trajectory.turns < self._rules.task.turns_max:
            self._read(observation, generation.output_ids)

    def _read(self, observation: Any, answer_ids: Sequence[int] | None = None) -> None:
        conversation = self._rules.conversation
        try:
            if conversation is None:
                ids = [int(token) for token in observation]
            elif answer_ids is None:
                ids = conversation.first_observation(observation)
            else:
                ids = conversation.reply(observation, answer_ids)
        except Exception as error:  # Templates raise errors of many kinds.
            text, name = str(observation)[:100], self._rules.task.environment
            raise EnvironmentFailedError(f"{name}: observation {text!r} cannot be read: {error}") from None
        self._trajectory.read(ids)

    def _is_rechecked(self) -> bool:
        """Return whether to recheck the trajectory. Its id decides, so every call returns the same result."""
        if not self._rules.traits.rechecks or not self._trajectory.accepted:
            return False
        drawn = int.from_bytes(hashlib.sha256(self._trajectory.trajectory_id.encode()).digest()[:8]) / 2**64
        return drawn < self._rules.task.recheck_share

    def _lose(self, reason: str, *, attempts: int, failed: bool) -> None:
        trajectory = self._trajectory
        logger.warning("turn %d of %s is lost: %s", trajectory.turns, trajectory.trajectory_id, reason)
        trajectory.outcome, trajectory.reason = "lost", reason
        trajectory.attempts, trajectory.failed = attempts, failed


def trajectory_event(trajectory: Trajectory, trainer_version: int) -> events.Trajectory:
    """Return a trajectory's event. Its staleness is counted from `trainer_version`."""
    counts = {name: getattr(trajectory, name) for name in _TRAJECTORY_FIELDS}
    return events.Trajectory(**_labels(trajectory), **counts, staleness=trajectory.staleness(trainer_version))


def verdict(trajectory: Trajectory, *, stale: bool) -> events.Verdict:
    return events.Verdict(
        **_labels(trajectory),
        verifier=trajectory.traits.verifier,
        verifier_version=trajectory.traits.verifier_version,
        reward=trajectory.reward,
        threshold=trajectory.traits.threshold,
        accepted=trajectory.accepted,
        correct=trajectory.correct,
        stale=stale,
    )


def _labels(trajectory: Trajectory) -> dict[str, Any]:
    fields = {name: getattr(trajectory, name) for name in ("trajectory_id", "group_id", "step")}
    return {**fields, "policy_version": trajectory.version}
