"""The interface of environments, and their lookup. It needs only the standard library: any Python can run it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose.errors import UserError, did_you_mean

GROUP = "rose.environments"  #: Entry points of other packages' environments.
FROZENLAKE = "frozenlake"  #: Played in the trainer's process, since it runs no foreign code.

#: Token ids, a user message, or a list of messages with `role` and `content`.
Observation = Sequence[int] | str | Sequence[Mapping[str, str]]


class Environment(Protocol):
    """One trajectory of a task. It may have the attributes of `Traits`, and a method `recheck` that judges the finished
    trajectory in another way. If the attribute `token_ids` is True, observations and answers are token ids."""

    def reset(self, seed: int) -> Observation:
        """Begin the task of this seed, and return its first observation. A group's trajectories have the same seed."""

    def step(self, answer: Any) -> tuple[Observation | None, float, bool, Mapping[str, Any]]:
        """Return (observation, reward, done, info). The rewards are added up. `info` may have `tool_calls` (a count),
        `answer_tokens` (a count, without reasoning) and `correct` (by ground truth, so far)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    verifier: str
    verifier_version: str | None = None
    threshold: float = 1.0  #: Smallest accepted reward.
    token_ids: bool = False
    stop_token_ids: Sequence[int] = ()
    rechecks: bool = False

    @classmethod
    def of(cls, environment: object, name: str) -> Traits:
        declared = {field: getattr(environment, field) for field in cls.__slots__ if hasattr(environment, field)}
        return cls(**{"verifier": name, **declared, "rechecks": hasattr(environment, "recheck")})


class EnvironmentNameError(UserError):
    """`task.environment` is not the name of an environment that can be loaded here."""


class _GymnasiumText:
    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        import gymnasium
        from gymnasium.spaces import Text

        try:
            self._environment = gymnasium.make(name, **options)
        except gymnasium.error.UnregisteredEnv as error:
            raise EnvironmentNameError(f"task.environment 'gymnasium:{name}' is not registered: {error}") from None
        spaces = {"observations": self._environment.observation_space, "actions": self._environment.action_space}
        for what, space in spaces.items():
            if not isinstance(space, Text):
                problem = f"task.environment 'gymnasium:{name}' has {what} of {space}, not of Text"
                raise EnvironmentNameError(f"{problem}: wrap it in an environment with Text spaces")

    def reset(self, seed: int) -> str:
        return str(self._environment.reset(seed=seed)[0])

    def step(self, answer: str) -> tuple[str, float, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, _ = self._environment.step(answer)
        return str(observation), float(reward), bool(terminated or truncated), {}


def load(name: str, options: Mapping[str, Any]) -> Callable[[], Environment]:
    """Return a function that makes environments. Raises EnvironmentNameError, or any error of the package."""
    kind, _, rest = name.partition(":")
    if kind == "gymnasium" and rest:
        _need(name, "gymnasium")
        return lambda: _GymnasiumText(rest, options)
    if kind == "verifiers" and rest:
        _need(name, "verifiers")
        from rose.runtime.rollout.environments.verifiers_tasks import VerifiersTasks

        return VerifiersTasks(rest, options).environment
    if name == "arithmetic":
        from rose.runtime.rollout.environments.arithmetic import Arithmetic

        return lambda: Arithmetic(**options)
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        near = did_you_mean(name, {FROZENLAKE, "arithmetic", "gymnasium:ID", "verifiers:NAME", *points})
        raise EnvironmentNameError(f"task.environment {name!r} is not installed in this Python{near}")
    make: Callable[..., Environment] = points[name].load()
    return lambda: make(**options)


def _need(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        advice = f"`pip install {package}`, or set task.python to a Python that has it"
        raise EnvironmentNameError(f"task.environment {name!r} needs the missing package {package!r}: {advice}")
