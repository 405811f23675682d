import asyncio
from dataclasses import replace

import pytest

from rose.client.generation import Attempt, Generation, GenerationLost
from rose.config import TaskConfig
from rose.runtime.rollout import vocabulary as v
from rose.runtime.rollout.agent import play, trajectory_event, verdict
from rose.runtime.rollout.frozenlake import Episode
from rose.runtime.rollout.trajectory import Loss, Trajectory

TASK = TaskConfig(size=3, frozen_share=1.0)
DOWN, RIGHT = v.MOVES[1], v.MOVES[2]
ATTEMPT = Attempt(
    engine_id="rollout-0/rollout",
    device_id="rollout-0",
    lease_id="lease-1",
    outcome="completed",
    placement="prefix",
    policy_version=3,
    prompt_tokens=11,
    cached_tokens=8,
    output_tokens=2,
    queue_ns=5,
    duration_ns=7,
)


class Scripted:
    """Generates the given moves; the turn `cut_at` is preempted after one token and completed by a second attempt."""

    def __init__(self, moves: list[int], cut_at: int | None = None, lose_at: int | None = None) -> None:
        self.moves, self.cut_at, self.lose_at = moves, cut_at, lose_at
        self.prompts: list[list[int]] = []

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation:
        self.prompts.append(input_ids)
        attempts = [ATTEMPT]
        if turn == self.cut_at:
            first = replace(ATTEMPT, outcome="preempted", output_tokens=1, policy_version=2)
            attempts = [first, replace(ATTEMPT, engine_id="serving-0/rollout", output_tokens=1)]
        if turn == self.lose_at:
            raise GenerationLost("no engine is left", [replace(ATTEMPT, outcome="failed", output_tokens=1)])
        versions = [2 if turn == self.cut_at else 3, 3]
        return Generation(
            output_ids=[self.moves[turn], v.EOT], logprobs=[-0.5, 0.0], versions=versions, attempts=attempts
        )


def run(generate: Scripted) -> Trajectory:
    return asyncio.run(play(Episode(TASK, 0), generate, trajectory_id="t", group_id="g", step=4))


def test_a_goal_is_reached_turn_by_turn() -> None:
    generate = Scripted([RIGHT, RIGHT, DOWN, DOWN], cut_at=1)
    trajectory = run(generate)
    assert (trajectory.outcome, trajectory.reward, trajectory.correct, trajectory.turns) == ("finished", 1.0, True, 4)
    assert trajectory.output_tokens == 8
    ended = trajectory_event(trajectory, 3)
    assert (ended.policy_version, ended.staleness, ended.output_tokens, ended.answer_tokens) == (2, 1, 8, 4)
    assert ended.prompt_tokens + ended.output_tokens == len(trajectory.ids)
    assert all(
        later[: len(earlier)] == earlier for earlier, later in zip(generate.prompts, generate.prompts[1:], strict=False)
    )


def test_lost_turn_ends_the_trajectory_and_keeps_the_turns_before(caplog: pytest.LogCaptureFixture) -> None:
    trajectory = run(Scripted([RIGHT] * 4, lose_at=1))
    assert caplog.messages == ["turn 1 of t is lost: no engine is left"]
    assert (trajectory.outcome, trajectory.turns, trajectory.output_tokens, trajectory.correct) == ("lost", 1, 2, False)
    assert trajectory.loss == Loss(reason="no engine is left", attempts=1, failed=True)


def test_verdict_follows_the_goal_and_a_trajectory_refuses_uneven_lists() -> None:
    won, lost = run(Scripted([RIGHT, RIGHT, DOWN, DOWN])), run(Scripted([RIGHT] * TASK.turns_max))
    for stale in (True, False):
        judged = verdict(won, stale=stale)
        assert (judged.accepted, judged.correct, judged.stale, judged.verifier) == (
            True,
            True,
            stale,
            "frozenlake-goal",
        )
        assert not verdict(lost, stale=stale).accepted
    with pytest.raises(ValueError, match="they must match"):
        replace(won, logprobs=[])
