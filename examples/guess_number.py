"""An environment of your own: the policy guesses a number. In the `pyproject.toml` of its package:

    [project.entry-points."rose.environments"]
    guess-number = "guess_number:GuessNumber"

Then a fleet file names it: [task] environment = "guess-number", options = { most = 50 }."""

import random
import re
from typing import Any


class GuessNumber:
    """One trajectory. It runs in a process of its own, and may block, start programs or fail."""

    verifier_version = "1"  #: Raise it when the same answers are judged in another way.
    threshold = 1.0  #: Rewards from here on are accepted.

    def __init__(self, most: int = 100) -> None:
        self._most = most

    def reset(self, seed: int) -> str:
        """Begin the task of `seed`; the trajectories of a group share it. Return what the policy sees first."""
        self._number = random.Random(seed).randint(1, self._most)
        self._guesses: list[int] = []
        return f"I think of a number from 1 to {self._most}. Guess it."

    def step(self, answer: str) -> tuple[str | None, float, bool, dict[str, Any]]:
        """Return (observation, reward, done, info) for the policy's answer."""
        digits = re.findall(r"\d{1,9}", answer)
        if not digits:
            return "That is no number.", 0.0, False, {}
        self._guesses.append(int(digits[-1]))
        if self._guesses[-1] == self._number:
            return None, 1.0, True, {}
        return "higher" if self._guesses[-1] < self._number else "lower", 0.0, False, {}

    def recheck(self) -> bool:
        """Judge an accepted trajectory again, in another way: here it was no luck at the first try."""
        return len(self._guesses) > 1
