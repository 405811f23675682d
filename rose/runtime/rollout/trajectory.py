"""Trajectories in plain Python values, which can be pickled without torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rose.runtime.rollout.environments.protocol import Traits

NOT_GENERATED = -1  #: Version of a token that no policy generated.


@dataclass(kw_only=True, slots=True)
class Transcript:
    """Tokens of a trajectory. Tokens of the environment have mask False, logprob 0.0 and version `NOT_GENERATED`."""

    ids: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    turns: int = 0

    def read(self, ids: Sequence[int]) -> None:
        self.ids += ids
        self.mask += [False] * len(ids)
        self.logprobs += [0.0] * len(ids)
        self.versions += [NOT_GENERATED] * len(ids)

    def write(self, output_ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        if not len(output_ids) == len(logprobs) == len(versions):
            lengths = len(output_ids), len(logprobs), len(versions)
            raise ValueError(f"output ids, logprobs and versions have lengths {lengths}: they must match")
        self.ids += output_ids
        self.mask += [True] * len(output_ids)
        self.logprobs += logprobs
        self.versions += versions
        self.turns += 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Game:
    """A trajectory to play. `number` is its place in the group. All games of a group have the same seed."""

    trajectory_id: str
    group_id: str
    seed: int
    number: int


@dataclass(kw_only=True, slots=True)
class Trajectory(Transcript):
    """A trajectory with its result. The result is final when `play` has returned the trajectory."""

    trajectory_id: str
    group_id: str
    step: int
    task: str
    traits: Traits
    outcome: Literal["finished", "truncated", "lost"] = "truncated"
    reward: float = 0.0
    duration_ns: int = 0
    correct: bool | None = None  #: Ground truth, if known.
    answer_tokens: int | None = None
    tool_calls: int = 0
    tool_ns: int = 0
    reason: str | None = None  #: Why it ended early.
    attempts: int = 0  #: Attempts at the lost turn.
    failed: bool = False  #: Whether an engine or the environment failed, so that it was lost.

    @property
    def accepted(self) -> bool:
        return self.reward >= self.traits.threshold

    @property
    def output_tokens(self) -> int:
        return sum(self.mask)

    @property
    def prompt_tokens(self) -> int:
        """Return how many tokens the policy did not generate. A token counts once, even if many prompts contain it."""
        return len(self.ids) - self.output_tokens

    @property
    def version(self) -> int | None:
        tokens = zip(self.versions, self.mask, strict=True)
        return min((version for version, generated in tokens if generated), default=None)

    def staleness(self, trainer_version: int) -> int:
        """Return `trainer_version` minus the oldest version that generated a token, or 0 if no token was generated."""
        return 0 if self.version is None else trainer_version - self.version
