import asyncio
import os
import signal
import time
from contextlib import contextmanager

import psutil
import pytest

from rose.config import TaskConfig
from rose.runtime.rollout.environments.environment_client import (
    EnvironmentFailedError,
    EnvironmentStartError,
    EnvironmentWorkers,
)
from rose.runtime.rollout.environments.protocol import Traits
from tests.runtime.conftest import until

pytestmark = pytest.mark.usefixtures("guessing")


@contextmanager
def workers(environment="guess", **fields):
    opened = EnvironmentWorkers(TaskConfig(environment=environment, **fields))
    try:
        yield opened
    finally:
        opened.close()


async def failure(opened, answer):
    async with opened.open() as environment:
        await environment.reset(4)
        assert await environment.step("5") == ("no", 0.0, False, {})
        with pytest.raises(EnvironmentFailedError) as failed:
            await environment.step(answer)
        return str(failed.value)


def test_an_environment_of_another_distribution_is_played():
    async def play(opened, seed):
        async with opened.open() as environment:
            assert await environment.reset(seed) == f"Guess {seed}."
            assert await environment.step("print") == ("no", 0.0, False, {})
            assert await environment.step(str(seed)) == ("no", 0.75, True, {})
            return await environment.recheck()

    with workers() as opened:
        assert opened.traits == Traits(
            verifier="guessing", verifier_version="7", threshold=0.5, stop_token_ids=[], rechecks=True
        )

        async def all_at_once():
            return await asyncio.gather(*(play(opened, seed) for seed in range(20)))

        assert asyncio.run(all_at_once()) == [True, False] * 10


TROUBLE = {
    "hang": "guess.step took longer than 1.0 s",
    "die": "guess.step died",
    "flood": "guess.step sent more than 1000 bytes",
    "grow": "guess.step failed: MemoryError: ",
    "nothing": "guess: reward nan is not a finite number",
    "boast": "guess: info has tool_calls 'many', which is not a count, info has answer_tokens -1, which is not a "
    "count, info has correct 1, which is neither true nor false",
    "odd": "guess.step failed: TypeError: cannot unpack non-iterable int object",
}


def test_trouble_ends_one_trajectory_with_a_reason_and_others_go_on():
    with workers(call_s_max=1.0, memory_mb_max=200, observation_bytes_max=1000) as opened:

        async def all_at_once():
            return await asyncio.gather(*(failure(opened, answer) for answer in TROUBLE))

        async def unharmed():
            async with opened.open() as environment:
                await environment.reset(4)
                reasons = await all_at_once()
                assert await environment.step("4") == ("no", 0.75, True, {})
            return reasons

        assert asyncio.run(unharmed()) == list(TROUBLE.values())
        until(lambda: not psutil.Process(opened._server.pid).children())


@pytest.mark.parametrize("end", ["closed", "killed", "stopped"])
def test_what_a_tool_started_ends_with_its_trajectory(end):
    with workers() as opened:

        async def start():
            async with opened.open() as environment:
                await environment.reset(4)
                pid, *_ = await environment.step("start")
                assert psutil.pid_exists(int(pid))
                if end == "killed":
                    with pytest.raises(EnvironmentFailedError):
                        await environment.step("die")
                if end == "stopped":
                    opened._server.terminate()
                return int(pid)

        pid = asyncio.run(start())
        until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_dead_server_is_replaced():
    with workers() as opened:
        dead = opened._server
        os.kill(dead.pid, signal.SIGKILL)
        dead.wait()

        async def play():
            async with opened.open() as environment:
                return await environment.reset(3)

        assert asyncio.run(play()) == "Guess 3."
        assert opened._server.pid != dead.pid


def test_a_server_ends_with_its_trainer(tmp_path):
    child = os.fork()
    if child == 0:
        opened = EnvironmentWorkers(TaskConfig(environment="guess"))
        (tmp_path / "pid").write_text(str(opened._server.pid))
        time.sleep(1000)
    try:
        until((tmp_path / "pid").exists)
        until(lambda: (tmp_path / "pid").read_text())
        server = psutil.Process(int((tmp_path / "pid").read_text()))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    until(lambda: not server.is_running())


WRONG = [
    ({"environment": "gues"}, "'gues' .* did you mean 'guess'"),
    ({"environment": "frozenlakes"}, "did you mean 'frozenlake'"),
    ({"environment": "gymnasium:guessing:guessing/Nothing-v0"}, "'gymnasium:guessing:guessing/Nothing-v0'"),
    ({"environment": "gymnasium:guessing:guessing/Numbers-v0"}, "has observations of Box"),
    ({"environment": "verifiers:nothing-of-this-name"}, "verifiers"),
    ({"environment": "guess", "options": {"x": 1}}, r"task\.environment 'guess' cannot be loaded: TypeError: .*'x'"),
    ({"environment": "arithmetic", "options": {"digits": 0}}, "digits is 0"),
    ({"environment": "guess", "python": "/nowhere/python"}, r"task\.python '/nowhere/python' cannot be run"),
    ({"environment": "guess", "python": "/bin/false"}, "its process died"),
]


@pytest.mark.parametrize(("fields", "message"), WRONG)
def test_an_environment_that_cannot_be_loaded_is_named(fields, message):
    with pytest.raises(EnvironmentStartError, match=message):
        EnvironmentWorkers(TaskConfig(**fields))


def test_a_text_environment_of_gymnasium_is_played():
    async def play(opened, seed):
        async with opened.open() as environment:
            question = await environment.reset(seed)
            assert await environment.step("nothing") == ("again", 0.0, False, {})
            return question, await environment.step(question.removeprefix("Say ").rstrip("."))

    with workers("gymnasium:guessing:guessing/Echo-v0", options={"most": 2}) as opened:
        first, again, other = (asyncio.run(play(opened, seed)) for seed in (1, 1, 2))
        assert first == again != other
        assert first[1] == ("again", 1.0, True, {})
        assert opened.traits.verifier == "gymnasium:guessing:guessing/Echo-v0"
