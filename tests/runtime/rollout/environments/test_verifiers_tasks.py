"""With the real package: `verifiers` pins its dependencies, so that it rarely fits beside those of `make test`."""

import asyncio
import importlib.util
import os
import sys

import pytest

from rose.config import TaskConfig
from rose.runtime.rollout.environments.environment_client import EnvironmentStartError, EnvironmentWorkers
from rose.runtime.rollout.environments.tool_calls import format_call

PYTHON = os.environ.get("ROSE_TESTS_VERIFIERS_PYTHON") or (importlib.util.find_spec("verifiers") and sys.executable)

pytestmark = pytest.mark.skipif(
    not PYTHON, reason="ROSE_TESTS_VERIFIERS_PYTHON names no Python with `verifiers`: make a venv with it"
)

NO_TOOLS = {"tool_calls": 0}

IMPORTS = "import itertools\nimport verifiers.v1 as vf\n"

#: Environments as their authors write them: one turn with a reward, turns with a game, and what needs more.
PACKAGES = {
    "one_turn": """
class Data(vf.TaskData):
    number: int

class Guess(vf.Task[Data, vf.State, vf.TaskConfig]):
    @vf.reward(weight=2.0)
    async def right(self, trace) -> float:
        return float(trace.last_reply == str(self.data.number))

class Guesses(vf.Taskset[Guess, vf.TasksetConfig]):
    def load(self):
        for number in range(5):
            yield Guess(Data(prompt=f"Say {number}.", system_prompt="Be brief.", number=number), self.config.task)

__all__ = ["Guesses"]
""",
    "some_turns": """
class Data(vf.TaskData):
    number: int

class Guess(vf.Task[Data, vf.State, vf.TaskConfig]):
    pass

class Config(vf.TasksetConfig):
    most: int = 3

class GameConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()

class Game(vf.Env[GameConfig]):
    async def run(self, task, agents):
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and segment.last_reply != str(task.data.number):
                segment = await interaction.turn("wrong")
        interaction.trace.record_reward("game", 1 / interaction.trace.num_turns)

class Guesses(vf.Taskset[Guess, Config]):
    INFINITE = True

    def load(self):
        for number in itertools.count():
            yield Guess(Data(prompt="Guess.", number=number % self.config.most), self.config.task)

__all__ = ["Guesses", "Game"]
""",
    "with_tools": """
class Shop(vf.Toolset[vf.ToolsetConfig, vf.State]):
    async def setup_task(self, task):
        self.price = task.price

    @vf.tool
    async def price_of(self, thing: str, number: int = 1) -> str:
        "Return a price."
        if thing == "nothing":
            raise KeyError(thing)
        return f"{number * self.price} coins"

class Data(vf.TaskData):
    price: int

class Buy(vf.Task[Data, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Shop(vf.ToolsetConfig())]

    @vf.reward
    async def looked(self, trace) -> float:
        return float(trace.last_reply == str(self.data.price)) * len(trace.tool_messages)

class Purchases(vf.Taskset[Buy, vf.TasksetConfig]):
    def load(self):
        yield Buy(Data(prompt="What does a pen cost?", price=7), self.config.task)

__all__ = ["Purchases"]
""",
    "with_state": """
class Memory(vf.State):
    notes: list[str] = []

class Notes(vf.Toolset[vf.ToolsetConfig, Memory]):
    @vf.tool
    async def note(self, text: str) -> str:
        return text

class Keep(vf.Task[vf.TaskData, Memory, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Notes(vf.ToolsetConfig())]

class Keeps(vf.Taskset[Keep, vf.TasksetConfig]):
    def load(self):
        yield Keep(vf.TaskData(prompt="Keep it."), self.config.task)

__all__ = ["Keeps"]
""",
    "in_a_box": """
class Fix(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def passes(self, trace, runtime) -> float:
        return float((await runtime.run(["true"], {})).exit_code == 0)

class Fixes(vf.Taskset[Fix, vf.TasksetConfig]):
    def load(self):
        yield Fix(vf.TaskData(prompt="Fix it."), self.config.task)

__all__ = ["Fixes"]
""",
}


@pytest.fixture(autouse=True)
def packages(tmp_path, monkeypatch):
    for name, text in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(IMPORTS + text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


def play(name, games, **options):
    workers = EnvironmentWorkers(TaskConfig(environment=f"verifiers:{name}", python=PYTHON, options=options))

    async def one(seed, answers):
        async with workers.open() as environment:
            return [await environment.reset(seed), *[await environment.step(answer) for answer in answers]]

    async def every():
        return await asyncio.gather(*(one(*game) for game in games))

    try:
        assert workers.traits.verifier == f"verifiers:{name}"
        assert workers.traits.verifier_version >= "0.4"
        return asyncio.run(every())
    finally:
        workers.close()


def test_a_task_of_one_turn_is_judged_by_its_own_reward():
    (question, right), (_, wrong) = play("one_turn", [(8, ["3"]), (8, ["4"])])
    assert question == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 3."}]
    assert (right, wrong) == ((None, 2.0, True, NO_TOOLS), (None, 0.0, True, NO_TOOLS))


def test_an_environment_in_turns_runs_its_own_code():
    (first, *steps), (_, at_once) = play("some_turns", [(5, ["0", "1"]), (2, ["2"])], most=4)
    assert first == [{"role": "user", "content": "Guess."}]
    assert steps == [([{"role": "user", "content": "wrong"}], 0.0, False, NO_TOOLS), (None, 0.5, True, NO_TOOLS)]
    assert at_once == (None, 1.0, True, NO_TOOLS)


def test_tools_are_called_and_their_answers_read():
    good, unknown, failing = (
        format_call(name, {"thing": thing, "number": 2})
        for name, thing in (("shop_price_of", "pen"), ("shop", "pen"), ("shop_price_of", "nothing"))
    )
    ((first, *steps),) = play(
        "with_tools", [(0, [f"Wait. {good}", unknown + failing, "<tool_call>{1}</tool_call>", "7"])]
    )
    assert first[0]["role"] == "system"
    assert '"name": "shop_price_of", "description": "Return a price."' in first[0]["content"]
    assert first[1] == {"role": "user", "content": "What does a pen cost?"}
    assert steps[0] == ([{"role": "tool", "content": "14 coins"}], 0.0, False, {"tool_calls": 1})
    assert [message["content"].partition(":")[0] for message in steps[1][0]] == ["error", "error"]
    assert [step[3] for step in steps[1:]] == [{"tool_calls": 2}, {"tool_calls": 1}, NO_TOOLS]
    assert steps[3][1:3] == (4.0, True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("with_state", "has tools that share state"),
        ("in_a_box", "works in a container"),
        ("not-there", "is not installed"),
    ],
)
def test_what_needs_more_than_turns_of_text_is_refused(name, why):
    with pytest.raises(EnvironmentStartError, match=f"'verifiers:{name}' {why}"):
        EnvironmentWorkers(TaskConfig(environment=f"verifiers:{name}", python=PYTHON))
