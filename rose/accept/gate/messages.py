"""What the stage `gate` and its two processes tell each other. Nothing here loads torch; times are monotonic ns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

#: What an engine is asked first: to make its layers, learn how long they take, and join the page.
START = "start"
#: Of every serving request, and the most that the page promises room for.
PROMPT_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Arrival:
    """A serving request: when it comes, monotonic nanoseconds, and how many steps it takes."""

    at_ns: int
    steps: int


@dataclass(frozen=True, slots=True)
class Step:
    """A serving step: due when its request had come and the step before it had ended. Monotonic nanoseconds."""

    due_ns: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Yield:
    """A rollout step gave way between two layers.

    `on_device`: layers that the device had not done when the gate saw the wish, and `left` when it said that the
    device was given. `after_wish` layers ended after the wish, the last of them `free_ns` after it.
    """

    on_device: int
    left: int
    after_wish: int
    free_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Where a process runs. `core`: of a host without a GPU. `environment` is set before CUDA starts, which it does
    `at_once` or when the process is told to start."""

    device: str
    page: Path
    core: int | None
    graph: bool
    at_once: bool
    environment: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """`step_ns` is what a step takes with the device to itself."""

    layers: int
    tokens: int
    step_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Serve:
    """Serve these requests; none is begun after `until_ns`."""

    arrivals: tuple[Arrival, ...]
    until_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RollOut:
    """Run steps in [from_ns, until_ns). `idle_class`: as what Linux runs only when nothing else wants the core."""

    layers_ahead: int
    idle_class: bool
    from_ns: int
    until_ns: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RolledOut:
    """`taken`: yields that were the kernel's taking the core; `yields` are those between two layers."""

    steps: int
    yields: tuple[Yield, ...]
    taken: int
    abandoned: int
    ended: int


@dataclass(frozen=True, slots=True)
class Failed:
    """The process could not do what it was asked; the traceback is in the log. `absent`: a module is not there."""

    why: str
    absent: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What a mode's round came to, in [from_ns, until_ns). `rollout` is None where none was at work."""

    mode: str
    from_ns: int
    until_ns: int
    steps: tuple[Step, ...]
    rollout: RolledOut | None
