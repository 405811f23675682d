"""A finished trajectory in plain Python values: it crosses processes by pickle, and needs no torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    reason: str
    attempts: int  #: Attempts at that turn, and whether an engine failed at it or refused it.
    failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """Tokens of one finished trajectory and its result. `ids`, `mask`, `logprobs` and `versions` have one length.
    `mask` is True for generated tokens; elsewhere `logprobs` (of the sampling engine) are 0.0 and `versions` -1."""

    trajectory_id: str
    group_id: str
    step: int
    task: str
    outcome: Literal["finished", "truncated", "lost"]
    ids: list[int]
    mask: list[bool]
    logprobs: list[float]
    versions: list[int]
    reward: float
    correct: bool
    turns: int
    answer_tokens: int
    duration_ns: int
    loss: Loss | None = None

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.mask) == len(self.logprobs) == len(self.versions):
            raise ValueError(
                f"trajectory {self.trajectory_id}: {len(self.ids)} ids, {len(self.mask)} mask, "
                f"{len(self.logprobs)} logprobs, {len(self.versions)} versions: they must match"
            )

    @property
    def output_tokens(self) -> int:
        return sum(self.mask)

    @property
    def prompt_tokens(self) -> int:
        """Return the tokens that the policy did not generate, each counted once."""
        return len(self.ids) - self.output_tokens

    @property
    def version(self) -> int | None:
        """Return the oldest version of a generated token; None without one."""
        return min((version for version, made in zip(self.versions, self.mask, strict=True) if made), default=None)

    def staleness(self, trainer_version: int) -> int:
        """Return the trainer's version minus the oldest of a generated token; 0 without one."""
        return 0 if self.version is None else trainer_version - self.version
