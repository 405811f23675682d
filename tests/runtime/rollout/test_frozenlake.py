import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.transfer.sampler import Episode
from rose.config import TaskConfig
from rose.runtime.rollout import vocabulary as v
from rose.runtime.rollout.frozenlake import STEPS, distances, parse
from rose.runtime.rollout.trajectory import NOT_GENERATED

LEFT, DOWN, RIGHT, UP = v.MOVES


def say(episode: Episode, move: int) -> list[int]:
    return [*episode.lake.around(), move, v.EOT]


def turn(episode: Episode, output: list[int], version: int = 0) -> None:
    episode.apply(output, [-0.5] * len(output), [version] * len(output))


tasks = st.builds(
    TaskConfig,
    size=st.integers(3, 8),
    frozen_share=st.floats(0.6, 1),
    slippery=st.booleans(),
    turns_max=st.integers(1, 6),
)
outputs = st.lists(st.integers(0, v.SIZE - 1), max_size=8) | st.sampled_from([[move, v.EOT] for move in v.MOVES])


@settings(max_examples=60, deadline=None)
@given(task=tasks, seed=st.integers(0, 2**32 - 1), data=st.data())
def test_episode_invariants(task: TaskConfig, seed: int, data: st.DataObject) -> None:
    episode = Episode(task, seed)
    assert not any(episode.mask)
    generated: list[int] = []
    before: list[int] = []
    for number in range(task.turns_max):
        prompt = list(episode.ids)
        assert prompt[: len(before)] == before
        output = data.draw(outputs)
        before_step = episode.lake.position
        episode.apply(output, [-float(i) for i in range(len(output))], [number] * len(output))
        assert episode.turns == number + 1
        assert parse(output) is not None or episode.lake.position == before_step
        generated += output
        before = prompt + output
        assert episode.ids[: len(before)] == before
        assert len(episode.ids) == len(episode.mask) == len(episode.logprobs) == len(episode.versions)
        assert [i for i, made in zip(episode.ids, episode.mask, strict=True) if made] == generated
        assert all(
            (version == NOT_GENERATED) != made for version, made in zip(episode.versions, episode.mask, strict=True)
        )
        assert all(0 <= i < v.SIZE for i in episode.ids)
        if episode.done:
            break
    assert episode.done
    row, col = episode.lake.position
    tile = episode.lake.board[row][col]
    assert episode.lake.terminated == (tile in "GH")
    assert episode.reward == (tile == "G")
    with pytest.raises(ValueError, match="they must match"):
        episode.apply([v.EOT], [0.0], [])


@settings(max_examples=60, deadline=None)
@given(size=st.integers(3, 8), seed=st.integers(0, 2**32 - 1))
def test_shortest_way_reaches_the_goal_in_as_many_turns(size: int, seed: int) -> None:
    episode = Episode(TaskConfig(size=size, turns_max=64), seed)
    steps_left = distances(episode.lake.board)
    expected = steps_left[0, 0]
    while not episode.done:
        row, col = episode.lake.position
        after = [steps_left.get((row + down, col + right), 999) for down, right in STEPS]
        assert min(after) == steps_left[row, col] - 1
        turn(episode, say(episode, v.MOVES[after.index(min(after))]))
    assert (episode.reward, episode.turns) == (1.0, expected)


def text(ids: list[int]) -> str:
    return " ".join(v.NAMES[token] for token in ids)


def test_conversation_reads_as_documented() -> None:
    episode = Episode(TaskConfig(size=3, frozen_share=1.0, turns_max=3), 0)
    assert text(episode.ids) == "BOS START F01 F02 F10 F11 F12 F20 F21 GOAL AT00"
    turn(episode, say(episode, RIGHT))
    assert text(episode.ids[-8:]) == "WALL F F WALL RIGHT EOT MOVED AT01"
    turn(episode, say(episode, UP))
    assert text(episode.ids[-8:]) == "START F F WALL UP EOT BLOCKED AT01"
    turn(episode, say(episode, DOWN))
    assert text(episode.ids[-6:]) == "START F F WALL DOWN EOT"
    assert episode.done
    assert not episode.lake.terminated
    assert len(say(episode, UP)) == 6


def test_malformed_output_costs_the_turn_and_moves_nothing() -> None:
    for output in ([], [v.EOT], [RIGHT], [RIGHT, v.BOS], [v.WALL, v.EOT], [RIGHT] * 8):
        episode = Episode(TaskConfig(), 0)
        turn(episode, output)
        assert (episode.lake.position, episode.turns, episode.reward) == ((0, 0), 1, 0.0)
        assert episode.ids[-2:] == [v.MALFORMED, v.at(0, 0)]


def test_seed_decides_the_board_and_slip_seed_the_slips() -> None:
    task = TaskConfig(size=8, slippery=True, frozen_share=1.0, turns_max=20)
    ways = []
    for slip_seed in (1, 1, 2):
        episode = Episode(task, 5, slip_seed=slip_seed)
        while not episode.done:
            turn(episode, [RIGHT, v.EOT])
        ways.append(episode.ids)
    assert ways[0] == ways[1] != ways[2]
    assert Episode(TaskConfig(), 1).lake.board != Episode(TaskConfig(), 2).lake.board
    assert any(v.SLIPPED in way for way in ways)
