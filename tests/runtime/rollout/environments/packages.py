import os
import subprocess
import sys
from contextlib import contextmanager

import pytest

GUESSING = '''
import os, signal, subprocess, time

import gymnasium
from gymnasium.spaces import Box, Text

print("an import that prints")


class Guess:
    """The number is the seed. Other answers are trouble."""

    verifier = "guessing"
    verifier_version = "7"
    threshold = 0.5

    def __init__(self, hang_at=None):
        self._hang_at = hang_at

    def reset(self, seed):
        if seed == self._hang_at:
            time.sleep(1000)
        self._seed = seed
        return f"Guess {seed}."

    def step(self, answer):
        if answer == "hang":
            pow(3, 10**9)  # It holds the interpreter's lock.
        elif answer == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif answer == "flood":
            return "x" * 10**7, 0.0, False, {}
        elif answer == "print":
            os.write(1, b"x" * 10**7)
        elif answer == "grow":
            bytearray(4 << 30)
        elif answer == "start":
            tool = subprocess.Popen(["sleep", "1000"])
            return str(tool.pid), 0.0, False, {"tool_calls": 1}
        elif answer == "nothing":
            return None, float("nan"), True, {}
        elif answer == "boast":
            return "", 0.0, True, {"tool_calls": "many", "answer_tokens": -1, "correct": 1}
        elif answer == "odd":
            return 1
        return "no", 0.75 * (answer == str(self._seed)), answer == str(self._seed), {}

    def recheck(self):
        return self._seed % 2 == 0


class Echo(gymnasium.Env):
    observation_space = Text(100)
    action_space = Text(100)

    def __init__(self, most=3):
        self._most = most

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._word = str(self.np_random.integers(1000))
        return f"Say {self._word}.", {}

    def step(self, action):
        return "again", float(action == self._word), action == self._word, False, {}


class Numbers(Echo):
    observation_space = Box(0, 1)


gymnasium.register("guessing/Echo-v0", Echo)
gymnasium.register("guessing/Numbers-v0", Numbers)
'''

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "{module}"
version = "1.0"

[project.entry-points."rose.environments"]
{entry}

[tool.setuptools]
py-modules = ["{module}"]
"""


@contextmanager
def installed(folder, module, text, entry):
    """Install a distribution of one module and one entry point for the processes that are started meanwhile."""
    source, target = folder / "source", folder / "installed"
    source.mkdir()
    (source / f"{module}.py").write_text(text)
    (source / "pyproject.toml").write_text(PROJECT.format(module=module, entry=entry))
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(target), str(source)], check=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", f"{target}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        yield


@pytest.fixture(scope="session")
def guessing(tmp_path_factory):
    with installed(tmp_path_factory.mktemp("guessing"), "guessing", GUESSING, 'guess = "guessing:Guess"'):
        yield
