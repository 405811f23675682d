"""Play one trajectory with a `Generate` callable (the gateway's client, or a model in this process)."""

import logging
import time
from typing import Any, Literal

from rose import events
from rose.client.generation import Generate, GenerationLost
from rose.runtime.rollout.frozenlake import Episode
from rose.runtime.rollout.trajectory import Loss, Trajectory

logger = logging.getLogger(__name__)

VERIFIER = "frozenlake-goal"  #: The environment knows whether the goal was reached, so its verdict is ground truth.
THRESHOLD = 1.0


async def play(episode: Episode, generate: Generate, *, trajectory_id: str, group_id: str, step: int) -> Trajectory:
    """Play `episode` to its end. A lost turn ends the trajectory as "lost" with its earlier turns."""
    began_ns = time.monotonic_ns()
    loss: Loss | None = None
    while not episode.done:
        try:
            generation = await generate(episode.prompt_ids(), trajectory_id=trajectory_id, turn=episode.turns)
        except GenerationLost as error:
            logger.warning("turn %d of %s is lost: %s", episode.turns, trajectory_id, error)
            failed = any(attempt.outcome == "failed" for attempt in error.attempts)
            loss = Loss(reason=str(error), attempts=len(error.attempts), failed=failed)
            break
        episode.apply(generation.output_ids, generation.logprobs, generation.versions)
    duration_ns = time.monotonic_ns() - began_ns
    return trajectory_of(episode, trajectory_id, group_id, step, duration_ns=duration_ns, loss=loss)


def trajectory_of(
    episode: Episode, trajectory_id: str, group_id: str, step: int, *, duration_ns: int, loss: Loss | None = None
) -> Trajectory:
    outcome: Literal["finished", "truncated", "lost"] = "finished" if episode.terminated else "truncated"
    return Trajectory(
        trajectory_id=trajectory_id,
        group_id=group_id,
        step=step,
        task=episode.task.name,
        outcome=outcome if loss is None else "lost",
        ids=episode.ids,
        mask=episode.mask,
        logprobs=episode.logprobs,
        versions=episode.versions,
        reward=episode.reward,
        correct=episode.reward >= THRESHOLD,
        turns=episode.turns,
        answer_tokens=episode.answer_tokens,
        duration_ns=duration_ns,
        loss=loss,
    )


def trajectory_event(trajectory: Trajectory, trainer_version: int) -> events.Trajectory:
    """Return the ledger's event of a trajectory; `trainer_version` is of the weights that learn from it."""
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
    )


def verdict(trajectory: Trajectory, *, stale: bool) -> events.Verdict:
    """Return the verifier's verdict; `stale`: the trainer dropped the trajectory for age."""
    return events.Verdict(
        **_labels(trajectory),
        verifier=VERIFIER,
        reward=trajectory.reward,
        threshold=THRESHOLD,
        accepted=trajectory.reward >= THRESHOLD,
        correct=trajectory.correct,
        stale=stale,
    )


def _labels(trajectory: Trajectory) -> dict[str, Any]:
    fields = {name: getattr(trajectory, name) for name in ("trajectory_id", "group_id", "step")}
    return {**fields, "policy_version": trajectory.version}
