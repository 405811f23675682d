"""The example as an installed package, played in its own process."""

import asyncio
import re
from pathlib import Path

import pytest

from rose.config import TaskConfig
from rose.runtime.rollout.environments.environment_client import EnvironmentWorkers
from tests.runtime.rollout.environments.packages import installed

PROGRAM = Path(__file__).parents[2] / "examples" / "guess_number.py"
TEXT = PROGRAM.read_text(encoding="utf-8")


@pytest.fixture
def environment(tmp_path):
    (entry,) = re.findall(r"^    (guess-number = .*)$", TEXT, re.MULTILINE)
    with installed(tmp_path, "guess_number", TEXT, entry):
        workers = EnvironmentWorkers(TaskConfig(environment="guess-number", options={"most": 8}))
        yield workers
        workers.close()


async def halving(workers, seed):
    """Return what each guess got, and the second verdict."""
    low, high, rewards, done = 1, 8, [], False
    async with workers.open() as game:
        assert await game.reset(seed) == "I think of a number from 1 to 8. Guess it."
        assert (await game.step("Well."))[0] == "That is no number."
        while not done:
            guess = (low + high) // 2
            hint, reward, done, _ = await game.step(f"It is {guess}.")
            low, high = (guess + 1, high) if hint == "higher" else (low, guess - 1)
            rewards.append(reward)
        return rewards, await game.recheck()


def test_a_player_that_halves_wins(environment):
    for seed in range(8):
        rewards, right = asyncio.run(halving(environment, seed))
        assert sum(rewards) == rewards[-1] == 1.0
        assert (len(rewards) <= 4, right) == (True, len(rewards) > 1)
    assert (environment.traits.verifier, environment.traits.rechecks) == ("guess-number", True)


def test_it_is_short():
    assert len(TEXT.splitlines()) < 60
