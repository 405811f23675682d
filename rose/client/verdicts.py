"""The events of steps whose trajectories are one turn each, as trainers with verifiable rewards mostly play them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rose.client.errors import ClientError
from rose.client.generation import Generation
from rose.events import Step, Trajectory, Verdict


def judged(
    generations: Sequence[Generation],
    rewards: Sequence[float],
    *,
    verifier: str,
    threshold: float = 1.0,
    task: str = "task",
    trainer_version: int,
    correct: Sequence[bool] | None = None,
    answer_tokens: Sequence[int] | None = None,
) -> list[Trajectory | Verdict]:
    """A `Trajectory` and a `Verdict` for each generation, one turn each; a reward of at least `threshold` is accepted.

    `trainer_version` is the version of the weights that learn from them. `correct` is ground truth where it is known;
    `answer_tokens` how many tokens of each are the answer proper, all of them if left out. Raises ClientError.
    """
    for name, values in (("rewards", rewards), ("correct", correct), ("answer_tokens", answer_tokens)):
        if values is not None and len(values) != len(generations):
            raise ClientError(f"{name} has {len(values)} values for {len(generations)} generations: give one for each")
    events: list[Trajectory | Verdict] = []
    for number, (generation, reward) in enumerate(zip(generations, rewards, strict=True)):
        trajectory_id, group_id, step = generation.trajectory_id, generation.group_id, generation.step
        if trajectory_id is None or group_id is None or step is None:
            raise ClientError(
                f"generation {number} has group_id {group_id!r} and step {step}: give `generate` both, to judge it"
            )
        oldest = min(generation.versions, default=None)
        output_tokens = len(generation.output_ids)
        events += [
            Trajectory(
                trajectory_id=trajectory_id,
                policy_version=oldest,
                group_id=group_id,
                step=step,
                task=task,
                outcome="finished",
                turns=1,
                prompt_tokens=len(generation.prompt_ids),
                output_tokens=output_tokens,
                answer_tokens=output_tokens if answer_tokens is None else answer_tokens[number],
                staleness=0 if oldest is None else trainer_version - oldest,
                duration_ns=sum(attempt.queue_ns + attempt.duration_ns for attempt in generation.attempts),
            ),
            Verdict(
                trajectory_id=trajectory_id,
                policy_version=oldest,
                group_id=group_id,
                step=step,
                verifier=verifier,
                reward=reward,
                threshold=threshold,
                accepted=reward >= threshold,
                correct=None if correct is None else correct[number],
            ),
        ]
    return events


def step_over(
    step: int,
    generations: Sequence[Generation],
    rewards: Sequence[float],
    *,
    threshold: float = 1.0,
    policy_version: int,
    loss: float | None = None,
    rollout_ns: int,
    train_ns: int,
    publish_ns: int,
) -> Step:
    """A step that is over; `policy_version` is the version that it published. Times are nanoseconds, one after the
    other."""
    return Step(
        step=step,
        policy_version=policy_version,
        groups=len({generation.group_id for generation in generations}),
        trajectories=len(generations),
        trajectories_accepted=sum(reward >= threshold for reward in rewards),
        reward_mean=sum(rewards) / max(1, len(rewards)),
        loss=loss if loss is not None and math.isfinite(loss) else None,
        entropy=None,
        kl=None,
        grad_norm=None,
        tokens_trained=sum(len(generation.output_ids) for generation in generations),
        rollout_ns=rollout_ns,
        train_ns=train_ns,
        sync_ns=publish_ns,
        total_ns=rollout_ns + train_ns + publish_ns,
    )
