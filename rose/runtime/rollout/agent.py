"""One trajectory from first prompt to last turn, against anything that generates tokens.

The agent knows nothing of engines: a `Generate` callable (the gateway's client, or a model in this process) takes a
prompt and returns tokens with where and how each attempt at them ran.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal

from rose import events
from rose.client.generation import Attempt, Generate, GenerationLost
from rose.client.generation import Generation as Generation  # noqa: PLC0414 - what a `Generate` returns
from rose.runtime.rollout.frozenlake import Episode
from rose.runtime.rollout.trajectory import Trajectory

#: The environment itself says whether the goal was reached, so its verdict is ground truth.
VERIFIER = "frozenlake-goal"
THRESHOLD = 1.0


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
    """`play` an episode and record a `Turn` per attempt and one `Trajectory`.

    The verdict is left to `verdict`, recorded once the trainer took or dropped the trajectory, so that each
    trajectory has exactly one.
    """

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

    trajectory = await play(
        episode, generate, trajectory_id=trajectory_id, group_id=group_id, step=step, attempted=record_attempts
    )
    record(trajectory_event(trajectory, trainer_version()))
    return trajectory


def _ignore(_attempts: Sequence[Attempt], _turn: int, _answer_tokens: int) -> None:
    pass


async def play(
    episode: Episode,
    generate: Generate,
    *,
    trajectory_id: str,
    group_id: str,
    step: int,
    attempted: Callable[[Sequence[Attempt], int, int], None] = _ignore,
) -> Trajectory:
    """Play `episode` to its end. `attempted` gets each turn's attempts, its number and its answer tokens.

    A lost turn ends the trajectory with outcome "lost", keeping the turns before it.
    """
    began_ns = time.monotonic_ns()
    outcome: Literal["finished", "truncated", "lost"] | None = None
    while not episode.done:
        turn = episode.turns
        try:
            generation = await generate(episode.prompt_ids(), trajectory_id=trajectory_id, turn=turn)
        except GenerationLost as lost:
            attempted(lost.attempts, turn, 0)
            outcome = "lost"
            break
        result = episode.apply(generation.output_ids, generation.logprobs, generation.versions)
        attempted(generation.attempts, turn, result.answer_tokens)
    return Trajectory(
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


def trajectory_event(trajectory: Trajectory, trainer_version: int) -> events.Trajectory:
    """What the ledger keeps of a trajectory; `trainer_version` is of the weights that learn from it."""
    return events.Trajectory(
        trajectory_id=trajectory.trajectory_id,
        policy_version=trajectory.version,
        group_id=trajectory.group_id,
        step=trajectory.step,
        task=trajectory.task,
        outcome=trajectory.outcome,
        turns=trajectory.turns,
        prompt_tokens=trajectory.prompt_tokens,
        output_tokens=trajectory.output_tokens,
        answer_tokens=trajectory.answer_tokens,
        staleness=trajectory.staleness(trainer_version),
        duration_ns=trajectory.duration_ns,
    )


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
