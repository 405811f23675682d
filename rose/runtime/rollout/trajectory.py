"""The record of a finished trajectory, as it travels from the rollout side to the trainer.

Plain Python values only: it crosses processes by pickle, and needs no torch on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Loss:
    """Why a trajectory was lost: what the controller said of the turn that it ended with."""

    reason: str
    #: Engines that worked on that turn, and whether one of them failed at it or refused it.
    attempts: int
    failed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Trajectory:
    """Tokens of one finished trajectory and what became of it.

    `ids`, `mask`, `logprobs` and `versions` have one length. `mask` is True for generated tokens; `logprobs` are
    those of the engine that sampled them (behaviour policy), 0.0 elsewhere; `versions` is -1 elsewhere.
    """

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
    #: Ground truth: the goal was reached.
    correct: bool
    turns: int
    answer_tokens: int
    duration_ns: int
    #: Of one that is lost.
    loss: Loss | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.ids), len(self.mask), len(self.logprobs), len(self.versions)}
        if len(lengths) != 1:
            raise ValueError(
                f"trajectory {self.trajectory_id}: {len(self.ids)} ids, {len(self.mask)} mask, "
                f"{len(self.logprobs)} logprobs, {len(self.versions)} versions: they must match"
            )

    @property
    def output_tokens(self) -> int:
        """Tokens the policy generated."""
        return sum(self.mask)

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the conversation that the policy did not generate, each counted once."""
        return len(self.ids) - self.output_tokens

    @property
    def version(self) -> int | None:
        """The oldest policy version that made one of its tokens; None if none was made."""
        return min((version for version, made in zip(self.versions, self.mask, strict=True) if made), default=None)

    def staleness(self, trainer_version: int) -> int:
        """The trainer's version minus the oldest that made a token (0 if none was made)."""
        return 0 if self.version is None else trainer_version - self.version
