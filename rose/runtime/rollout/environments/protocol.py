"""The interface of an environment, and the lookup of environments by name. Other virtual environments import this
module, so it needs only the standard library."""

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
    """One trajectory of a task. Optional attributes are `verifier` (default: the environment's name),
    `verifier_version`, `threshold` (default: 1.0), `token_ids` and `stop_token_ids`. If `token_ids` is True,
    observations and answers are token ids, and one of `stop_token_ids` ends an answer. The optional method `recheck`
    judges the finished trajectory in another way, and returns a bool."""

    def reset(self, seed: int) -> Observation:
        """Begin the task that `seed` selects, and return the first observation. All trajectories of a group have the
        same seed."""

    def step(self, answer: Any) -> tuple[Observation | None, float, bool, Mapping[str, Any]]:
        """Return (observation, reward, done, info). The rewards of a trajectory are added up. `info` may contain
        `tool_calls` (a count), `answer_tokens` (a count, without reasoning) and `correct` (the ground truth so far)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits:
    """The properties of an environment."""

    verifier: str
    verifier_version: str | None = None
    threshold: float = 1.0
    token_ids: bool = False
    stop_token_ids: Sequence[int] = ()
    rechecks: bool = False

    @classmethod
    def of(cls, environment: object, name: str) -> Traits:
        declared = {field: getattr(environment, field) for field in cls.__slots__ if hasattr(environment, field)}
        return cls(**{"verifier": name, **declared, "rechecks": hasattr(environment, "recheck")})


class EnvironmentNameError(UserError):
    """`task.environment` names no environment that can be loaded here."""


def load(name: str, options: Mapping[str, Any]) -> Callable[[], Environment]:
    """Return a function that makes environments. Raises EnvironmentNameError, or any error of the package."""
    kind, _, rest = name.partition(":")
    if kind == "gymnasium" and rest:
        _need(name, "gymnasium")
        from rose.runtime.rollout.environments.gymnasium_text import GymnasiumText

        return lambda: GymnasiumText(rest, options)
    if kind == "verifiers" and rest:
        _need(name, "verifiers")
        from rose.runtime.rollout.environments.verifiers_tasks import VerifiersTasks

        return VerifiersTasks(rest, options).environment
    if name == "arithmetic":
        from rose.runtime.rollout.environments.arithmetic import Arithmetic

        return lambda: Arithmetic(**options)
    points = {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}
    if name not in points:
        raise EnvironmentNameError(
            f"task.environment {name!r} is not built in, gymnasium:ID, verifiers:NAME, or an entry point "
            f"of group {GROUP!r} in this Python{did_you_mean(name, {FROZENLAKE, 'arithmetic', *points})}"
        )
    make: Callable[..., Environment] = points[name].load()
    return lambda: make(**options)


def _need(name: str, package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise EnvironmentNameError(
            f"task.environment {name!r} needs the package {package!r}, which this Python does not have: "
            f"`pip install {package}`, or set task.python to the Python of a virtual environment that has it"
        )
