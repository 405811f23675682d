"""Plays one trajectory in an environment. A `Generate` callable makes each turn."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rose import events
from rose.client.generation import Generate, GenerationLost
from rose.config import TaskConfig
from rose.runtime.rollout.conversation import Conversation
from rose.runtime.rollout.environments.environment_client import EnvironmentFailedError, Playable
from rose.runtime.rollout.trajectory import Loss, Trajectory, Transcript, Verifier

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """The facts that all trajectories of a run share. If `conversation` is None, the environment uses token ids."""

    task: TaskConfig
    verifier: Verifier
    conversation: Conversation | None = None
    rechecks: bool = False


async def play(
    rules: Rules,
    environment: Playable,
    generate: Generate,
    *,
    trajectory_id: str,
    group_id: str,
    step: int,
    seed: int,
) -> Trajectory:
    """Play a trajectory to its end, and return it. If a turn is lost or the environment does not start, the outcome is
    "lost". If the environment fails later in the game, the outcome is "truncated" and the reward is 0."""
    game = _Episode(rules, environment, generate, trajectory_id)
    began_ns = time.monotonic_ns()
    await game.play(seed)
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id=group_id,
        step=step,
        task=rules.task.environment,
        outcome=game.outcome,
        ids=game.transcript.ids,
        mask=game.transcript.mask,
        logprobs=game.transcript.logprobs,
        versions=game.transcript.versions,
        reward=game.reward,
        verifier=rules.verifier,
        turns=game.transcript.turns,
        duration_ns=time.monotonic_ns() - began_ns,
        correct=game.correct,
        answer_tokens=game.answer_tokens,
        tool_calls=game.tool_calls,
        tool_ns=game.tool_ns,
        reason=game.reason,
        loss=game.loss,
    )


class _Episode:
    def __init__(self, rules: Rules, environment: Playable, generate: Generate, trajectory_id: str) -> None:
        self._rules, self._environment, self._generate = rules, environment, generate
        self._trajectory_id = trajectory_id
        self.transcript = Transcript()
        self.outcome: Literal["finished", "truncated", "lost"] = "truncated"
        self.reward = 0.0
        self.correct: bool | None = None
        self.answer_tokens: int | None = None
        self.tool_calls = self.tool_ns = 0
        self.reason: str | None = None
        self.loss: Loss | None = None

    async def play(self, seed: int) -> None:
        try:
            self._read(await self._environment.reset(seed))
        except EnvironmentFailedError as error:
            self._lose(str(error), attempts=0, failed=True)
            return
        try:
            while self.outcome == "truncated" and self.transcript.turns < self._rules.task.turns_max:
                await self._turn()
            if self.outcome == "finished" and self._is_rechecked():
                self.correct = await self._environment.recheck()
        except GenerationLost as error:
            failed = any(attempt.outcome == "failed" for attempt in error.attempts)
            self._lose(str(error), attempts=len(error.attempts), failed=failed)
        except EnvironmentFailedError as error:
            self.reason = str(error)
            logger.warning("turn %d of %s: %s", self.transcript.turns, self._trajectory_id, error)
            if self.outcome == "truncated":
                self.reward = 0.0

    async def _turn(self) -> None:
        transcript = self.transcript
        turn = transcript.turns
        generation = await self._generate(list(transcript.ids), trajectory_id=self._trajectory_id, turn=turn)
        transcript.write(generation.output_ids, generation.logprobs, generation.versions)
        conversation = self._rules.conversation
        answer: Any = generation.output_ids if conversation is None else conversation.text(generation.output_ids)
        began_ns = time.monotonic_ns()
        observation, reward, done, facts = await self._environment.step(answer)
        if calls := facts.get("tool_calls", 0):
            self.tool_calls += calls
            self.tool_ns += time.monotonic_ns() - began_ns
        self.reward += reward
        self.correct = facts.get("correct", self.correct)
        if (tokens := facts.get("answer_tokens")) is not None:
            self.answer_tokens = (self.answer_tokens or 0) + tokens
        if done:
            self.outcome = "finished"
        elif transcript.turns < self._rules.task.turns_max:
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
            raise EnvironmentFailedError(
                f"{self._rules.task.environment}: observation {str(observation)[:100]!r} cannot be read: {error}"
            ) from None
        self.transcript.read(ids)

    def _is_rechecked(self) -> bool:
        """Return whether to recheck the trajectory. The draw depends only on its name, so that a repeated trajectory
        gets the same result."""
        if not self._rules.rechecks or self.reward < self._rules.verifier.threshold:
            return False
        drawn = int.from_bytes(hashlib.sha256(self._trajectory_id.encode()).digest()[:8]) / 2**64
        return drawn < self._rules.task.recheck_share

    def _lose(self, reason: str, *, attempts: int, failed: bool) -> None:
        logger.warning("turn %d of %s is lost: %s", self.transcript.turns, self._trajectory_id, reason)
        self.outcome, self.reason = "lost", reason
        self.loss = Loss(reason=reason, attempts=attempts, failed=failed)


def trajectory_event(trajectory: Trajectory, trainer_version: int) -> events.Trajectory:
    """Return the event of a trajectory for the ledger. `trainer_version` is the version of the weights that learn from
    the trajectory."""
    return events.Trajectory(
        **_labels(trajectory),
        task=trajectory.task,
        outcome=trajectory.outcome,
        turns=trajectory.turns,
        prompt_tokens=trajectory.prompt_tokens,
        output_tokens=trajectory.output_tokens,
        answer_tokens=trajectory.answer_tokens,
        staleness=trajectory.staleness(trainer_version),
        duration_ns=trajectory.duration_ns,
        tool_calls=trajectory.tool_calls,
        tool_ns=trajectory.tool_ns,
        reason=trajectory.reason,
    )


def verdict(trajectory: Trajectory, *, stale: bool) -> events.Verdict:
    """Return the verdict on a trajectory. `stale` tells whether the trainer dropped it because of its age."""
    return events.Verdict(
        **_labels(trajectory),
        verifier=trajectory.verifier.name,
        verifier_version=trajectory.verifier.version,
        reward=trajectory.reward,
        threshold=trajectory.verifier.threshold,
        accepted=trajectory.accepted,
        correct=trajectory.correct,
        stale=stale,
    )


def _labels(trajectory: Trajectory) -> dict[str, Any]:
    fields = {name: getattr(trajectory, name) for name in ("trajectory_id", "group_id", "step")}
    return {**fields, "policy_version": trajectory.version}
