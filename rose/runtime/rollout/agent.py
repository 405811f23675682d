"""One trajectory from first prompt to last turn, against anything that generates tokens.

The agent knows nothing of engines: a `Generate` callable (the gateway's client, or a model in this process) takes a
prompt and returns tokens with where and how each attempt at them ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rose import events
from rose.runtime.rollout.frozenlake import Episode
from rose.runtime.rollout.trajectory import Trajectory

#: The environment itself says whether the goal was reached, so its verdict is ground truth.
VERIFIER = "frozenlake-goal"
THRESHOLD = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One engine's work on a turn. `prompt_tokens` includes the turn's tokens that earlier attempts kept."""

    engine_id: str
    device_id: str
    lease_id: str | None
    outcome: Literal["completed", "preempted", "failed"]
    placement: str
    policy_version: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ns: int
    duration_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """The tokens of one turn, over all its attempts; `logprobs` and `versions` are per output token."""

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    attempts: Sequence[Attempt]


class GenerationLost(Exception):  # noqa: N818 - a turn is lost, as in the ledger's outcome "lost"
    """A turn could not be completed on any engine; `attempts` are those that were made."""

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(message)
        self.attempts = attempts


class Generate(Protocol):
    """Generates one turn. Raises GenerationLost when the turn cannot be completed anywhere."""

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation: ...


async def run_trajectory(
    episode: Episode,
    generate: Generate,
    *,
    trajectory_id: str,
    group_id: str,
    step: int,
    trainer_version: Callable[[], int],
    record: events.Record,
) -> Trajectory:
    """Play `episode` to its end and record a `Turn` per attempt and one `Trajectory`.

    The verdict is left to `verdict`, recorded once the trainer took or dropped the trajectory, so that each
    trajectory has exactly one. A lost turn ends the trajectory with outcome "lost", keeping the turns before it.
    """
    began_ns = time.monotonic_ns()
    outcome: Literal["finished", "truncated", "lost"] | None = None

    def record_attempts(attempts: Sequence[Attempt], turn: int, answer_tokens: int) -> None:
        for number, attempt in enumerate(attempts):
            record(
                events.Turn(
                    device_id=attempt.device_id,
                    engine_id=attempt.engine_id,
                    lease_id=attempt.lease_id,
                    trajectory_id=trajectory_id,
                    policy_version=attempt.policy_version,
                    group_id=group_id,
                    step=step,
                    turn=turn,
                    attempt=number,
                    outcome=attempt.outcome,
                    placement=attempt.placement,
                    prompt_tokens=attempt.prompt_tokens,
                    cached_tokens=attempt.cached_tokens,
                    output_tokens=attempt.output_tokens,
                    # The answer closes a turn, so the last attempt made it.
                    answer_tokens=answer_tokens if number == len(attempts) - 1 else 0,
                    queue_ns=attempt.queue_ns,
                    duration_ns=attempt.duration_ns,
                )
            )

    while not episode.done:
        turn = episode.turns
        try:
            generation = await generate(episode.prompt_ids(), trajectory_id=trajectory_id, turn=turn)
        except GenerationLost as lost:
            record_attempts(lost.attempts, turn, 0)
            outcome = "lost"
            break
        result = episode.apply(generation.output_ids, generation.logprobs, generation.versions)
        record_attempts(generation.attempts, turn, result.answer_tokens)
    trajectory = Trajectory(
        trajectory_id=trajectory_id,
        group_id=group_id,
        step=step,
        task=episode.task.name,
        outcome=outcome or ("finished" if episode.terminated else "truncated"),
        ids=episode.ids,
        mask=episode.mask,
        logprobs=episode.logprobs,
        versions=episode.versions,
        reward=episode.reward,
        correct=episode.reward >= THRESHOLD,
        turns=episode.turns,
        answer_tokens=episode.answer_tokens,
        duration_ns=time.monotonic_ns() - began_ns,
    )
    record(
        events.Trajectory(
            trajectory_id=trajectory_id,
            policy_version=trajectory.version,
            group_id=group_id,
            step=step,
            task=trajectory.task,
            outcome=trajectory.outcome,
            turns=trajectory.turns,
            prompt_tokens=trajectory.prompt_tokens,
            output_tokens=trajectory.output_tokens,
            answer_tokens=trajectory.answer_tokens,
            staleness=trajectory.staleness(trainer_version()),
            duration_ns=trajectory.duration_ns,
        )
    )
    return trajectory


def verdict(trajectory: Trajectory, *, stale: bool) -> events.Verdict:
    """The verifier's word on a trajectory; `stale` says that the trainer dropped it for age."""
    return events.Verdict(
        trajectory_id=trajectory.trajectory_id,
        policy_version=trajectory.version,
        group_id=trajectory.group_id,
        step=trajectory.step,
        verifier=VERIFIER,
        reward=trajectory.reward,
        threshold=THRESHOLD,
        accepted=trajectory.reward >= THRESHOLD,
        correct=trajectory.correct,
        stale=stale,
    )
