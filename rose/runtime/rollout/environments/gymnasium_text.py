"""A Gymnasium environment whose observations and actions are text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.spaces import Text

from rose.runtime.rollout.environments.protocol import EnvironmentNameError


class GymnasiumText:
    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        try:
            self._environment = gymnasium.make(name, **options)
        except gymnasium.error.UnregisteredEnv as error:
            raise EnvironmentNameError(f"task.environment 'gymnasium:{name}' is not registered: {error}") from None
        for what, space in (
            ("observations", self._environment.observation_space),
            ("actions", self._environment.action_space),
        ):
            if not isinstance(space, Text):
                raise EnvironmentNameError(
                    f"task.environment 'gymnasium:{name}' has {what} of {space}, which are not text: wrap it in an "
                    "environment with Text spaces"
                )

    def reset(self, seed: int) -> str:
        return str(self._environment.reset(seed=seed)[0])

    def step(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self._environment.step(answer)
        return str(observation), float(reward), bool(terminated or truncated), {}
