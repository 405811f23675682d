"""The interface of an environment, and how the name in a fleet file leads to one. A worker process in another virtual
environment imports this module too, so it needs nothing but the standard library."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose.errors import UserError, did_you_mean

GROUP = "rose.environments"  #: Entry points of this group name environments of other packages.
FROZENLAKE = "frozenlake"  #: Played in the trainer's process: it runs no tools and no code of others.

#: Token ids, or text: one user message, or a list of messages with `role` and `content`.
Observation = Sequence[int] | str | Sequence[Mapping[str, str]]


class Environment(Protocol):
    """One trajectory of a task. `verifier` (default: the environment's name), `verifier_version` and `threshold`
    (default: 1.0) may be attributes. With `token_ids = True`, observations and answers are token ids instead of text;
    `stop_token_ids` then end an answer. A method `recheck() -> bool` may judge the finished trajectory again, in
    another way than `step` did."""

    def reset(self, seed: int) -> Observation:
        """Begin the task of `seed`: trajectories of one group have one seed. Return what the policy sees first."""

    def step(self, answer: Any) -> tuple[Observation | None, float, bool, Mapping[str, Any]]:
        """Return (observation, reward, done, info) for the policy's answer. Rewards of a trajectory are added. `info`
        may have `tool_calls` (tools that this step called), `answer_tokens` (tokens of the answer proper) and
        `correct` (whether the trajectory is right so far, where the environment knows the truth)."""


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
    """Return what makes one environment for each trajectory. Raises EnvironmentNameError, and the package's errors."""
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
            f"task.environment {name!r} is neither shipped, nor gymnasium:ID, nor verifiers:NAME, nor an entry point "
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
