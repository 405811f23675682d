"""The result of a turn, and the events that are made from it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rose.client.address import ClientError
from rose.events import Step, Trajectory, Verdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
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
    """The tokens of one turn. `logprobs` and `versions` have one value for each output token."""

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    attempts: Sequence[Attempt]
    prompt_ids: Sequence[int] = ()
    trajectory_id: str | None = None
    group_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Tokens of a streamed turn. If `anew` is True, they replace all earlier parts. The last part has `generation`."""

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    generation: Generation | None = None
    anew: bool = False


class GenerationLost(Exception):  # noqa: N818 - a turn is lost, as in the ledger's outcome "lost"
    """No engine could complete the turn. `attempts` has all attempts."""

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(message)
        self.attempts = attempts


class Generate(Protocol):
    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation: ...


def attempts_of(answer: Mapping[str, Any]) -> list[Attempt]:
    records = (answer.get("rose") or {}).get("attempts", [])
    return [Attempt(**{name: record[name] for name in Attempt.__slots__}) for record in records]


def judged(
    generations: Sequence[Generation],
    rewards: Sequence[float],
    *,
    verifier: str,
    verifier_version: str | None = None,
    threshold: float = 1.0,
    task: str = "task",
    trainer_version: int,
    correct: Sequence[bool] | None = None,
    answer_tokens: Sequence[int] | None = None,
) -> list[Trajectory | Verdict]:
    """Return a `Trajectory` and a `Verdict` per single-turn generation. Rewards of `threshold` or more are accepted.
    Staleness is counted from `trainer_version`. By default, all output tokens are answer tokens. Raises ClientError."""
    for name, values in (("rewards", rewards), ("correct", correct), ("answer_tokens", answer_tokens)):
        if values is not None and len(values) != len(generations):
            raise ClientError(f"{name} has {len(values)} values for {len(generations)} generations: give one for each")
    events: list[Trajectory | Verdict] = []
    for number, (generation, reward) in enumerate(zip(generations, rewards, strict=True)):
        trajectory_id, group_id, step = generation.trajectory_id, generation.group_id, generation.step
        if trajectory_id is None or group_id is None or step is None:
            raise ClientError(f"generation {number} has group_id {group_id!r} and step {step}: pass both to `generate`")
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
                verifier_version=verifier_version,
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
    """Return the event of a step that published `policy_version`. The phases of the step must not overlap."""
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
