"""What a turn comes back as."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """One engine's work on a turn. `prompt_tokens` includes the turn's tokens that earlier attempts kept."""

    engine_id: str
    device_id: str
    lease_id: str | None
    outcome: Literal["completed", "preempted", "failed"]
    placement: str
    policy_version: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    queue_ns: int
    duration_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Generation:
    """The tokens of one turn, over all its attempts; `logprobs` and `versions` are per output token."""

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    attempts: Sequence[Attempt]
    #: What it was made for, as it was asked; None where the caller keeps that.
    prompt_ids: Sequence[int] = ()
    trajectory_id: str | None = None
    group_id: str | None = None
    step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Tokens of a turn that came together; the last one of a turn has all of it as `generation`.

    `anew`: the turn was lost, and is made once more. It begins with this part; those before it are none of it.
    """

    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    generation: Generation | None = None
    anew: bool = False


class GenerationLost(Exception):  # noqa: N818 - a turn is lost, as in the ledger's outcome "lost"
    """A turn could not be completed on any engine; `attempts` are those that were made."""

    def __init__(self, message: str, attempts: Sequence[Attempt] = ()) -> None:
        super().__init__(message)
        self.attempts = attempts


class Generate(Protocol):
    """Generates one turn of a trajectory. Raises GenerationLost when it cannot be completed anywhere."""

    async def __call__(self, input_ids: list[int], *, trajectory_id: str, turn: int) -> Generation: ...


_ATTEMPT_FIELDS = tuple(field.name for field in fields(Attempt))


def attempts_of(answer: Mapping[str, Any]) -> list[Attempt]:
    """The attempts in a gateway's answer, whether at its top (an error) or in its `meta_info`."""
    records = (answer.get("rose") or {}).get("attempts", [])
    return [Attempt(**{name: record[name] for name in _ATTEMPT_FIELDS}) for record in records]
