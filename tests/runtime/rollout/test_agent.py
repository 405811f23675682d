import asyncio
from dataclasses import replace

import pytest

from rose.client.generation import Attempt, Generation, GenerationLost
from rose.config import TaskConfig
from rose.runtime.rollout import vocabulary as v
from rose.runtime.rollout.agent import Rules, play, trajectory_event, verdict
from rose.runtime.rollout.conversation import Conversation
from rose.runtime.rollout.environments.environment_client import EnvironmentFailedError, Here
from rose.runtime.rollout.environments.protocol import Traits
from rose.runtime.rollout.frozenlake import FrozenLake
from rose.runtime.rollout.trajectory import Game, Trajectory

TASK = TaskConfig(size=3, frozen_share=1.0)
RULES = Rules(task=TASK, traits=Traits(verifier="frozenlake-goal", verifier_version="1"))
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
    lake = Here(FrozenLake(TASK))
    return asyncio.run(play(RULES, lake, generate, Game(trajectory_id="t", group_id="g", seed=0, number=0), 4))


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
    assert (trajectory.reason, trajectory.attempts, trajectory.failed) == ("no engine is left", 1, True)


def test_verdict_follows_the_goal() -> None:
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


class Chatting:
    def __init__(self, conversation: Conversation, answers: list[str]) -> None:
        self.conversation, self.answers, self.prompts = conversation, answers, []

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation:
        self.prompts.append(self.conversation._tokenizer.decode(input_ids))
        ids = [*self.conversation._ids(self.answers[turn]), *self.conversation.stop_token_ids]
        return Generation(output_ids=ids, logprobs=[-0.5] * len(ids), versions=[2] * len(ids), attempts=[ATTEMPT])


class Shop:
    """Asks for a price until it gets 7. The tool `look` is called in between; `fail_at` is the method that fails."""

    def __init__(self, fail_at: str = "") -> None:
        self.fail_at = fail_at

    async def reset(self, seed: int) -> str:
        return await self._do("reset", "What does it cost?")

    async def step(self, answer: str):
        if answer == "look":
            seen = [{"role": "tool", "content": "7 coins"}]
            return await self._do("look", (seen, 0.25, False, {"tool_calls": 2}))
        return None, 0.5 * (answer == "7"), True, {}

    async def recheck(self) -> bool:
        return await self._do("recheck", False)

    async def _do(self, method, result):
        await asyncio.sleep(0.01)
        if method == self.fail_at:
            raise EnvironmentFailedError(f"shop.{method} died")
        return result


@pytest.fixture(scope="module")
def conversation(chat_model) -> Conversation:
    return Conversation(chat_model)


def shop(conversation: Conversation, answers: list[str], *, fail_at: str = "", share: float = 1.0, name: str = "t"):
    task = TaskConfig(environment="shop", recheck_share=share, turns_max=3)
    traits = Traits(verifier="price", verifier_version="3", threshold=0.5, rechecks=True)
    rules = Rules(task=task, traits=traits, conversation=conversation)
    generate = Chatting(conversation, answers)
    playing = play(rules, Shop(fail_at), generate, Game(trajectory_id=name, group_id="g", seed=1, number=0), 0)
    return asyncio.run(playing), generate.prompts


def test_messages_and_tools_are_read_after_each_answer(conversation: Conversation) -> None:
    trajectory, prompts = shop(conversation, ["look", "7"])
    assert prompts[1] == (f"{prompts[0]}look<|im_end|>\n<|im_start|>tool\n7 coins<|im_end|>\n<|im_start|>assistant\n")
    assert (trajectory.outcome, trajectory.reward, trajectory.accepted, trajectory.turns) == ("finished", 0.75, True, 2)
    made = [i for i, made in zip(trajectory.ids, trajectory.mask, strict=True) if made]
    assert conversation.text(made) == "look7"
    ended = trajectory_event(trajectory, 2)
    assert (ended.tool_calls, ended.answer_tokens, ended.reason) == (2, None, None)
    assert 10_000_000 <= ended.tool_ns <= ended.duration_ns
    judged = verdict(trajectory, stale=False)
    assert (judged.verifier, judged.verifier_version, judged.threshold, judged.correct) == ("price", "3", 0.5, False)


def test_a_share_of_what_was_accepted_is_judged_again(conversation: Conversation) -> None:
    names = [f"t-{number}" for number in range(40)]
    drawn = [shop(conversation, ["7"], share=0.25, name=name)[0].correct for name in names]
    assert 3 <= drawn.count(False) <= 18
    assert drawn.count(None) == 40 - drawn.count(False)
    assert drawn == [shop(conversation, ["7"], share=0.25, name=name)[0].correct for name in names]
    assert shop(conversation, ["6"])[0].correct is None, "it was not accepted"


FAILURES = [
    ("reset", ["7"], "lost", 0, 0.0, True),
    ("look", ["look", "7"], "truncated", 1, 0.0, False),
    ("recheck", ["7"], "finished", 1, 0.5, False),
]


@pytest.mark.parametrize(("fail_at", "answers", "outcome", "turns", "reward", "failed"), FAILURES)
def test_an_environment_that_fails_ends_the_trajectory(
    conversation, fail_at, answers, outcome, turns, reward, failed
) -> None:
    trajectory, _ = shop(conversation, answers, fail_at=fail_at)
    assert (trajectory.outcome, trajectory.turns, trajectory.reward) == (outcome, turns, reward)
    assert (trajectory.failed, trajectory.attempts) == (failed, 0)
    assert (trajectory.reason, trajectory.correct) == (f"shop.{fail_at} died", None)
    assert trajectory_event(trajectory, 2).reason == trajectory.reason


def test_an_endless_trajectory_is_cut_off(conversation: Conversation) -> None:
    trajectory, prompts = shop(conversation, ["look"] * 4)
    assert (trajectory.outcome, trajectory.turns, len(prompts)) == ("truncated", 3, 3)
    assert trajectory.mask[-1], "nothing is read that no answer follows"
