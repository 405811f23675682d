"""What a stage is: a module of this package with `measure(scope, report)`, run in a process of its own."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rose.accept.report import Report


class SkippedError(Exception):
    """A stage that cannot run on this host; the message says why, and what would let it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """`seconds` is its hard time-out, `quick_seconds` in a quick run; one that `takes_rest` has in addition what stages
    before it left of theirs. One that needs a GPU is skipped without."""

    name: str
    about: str
    seconds: float
    quick_seconds: float
    needs_gpu: bool = True
    takes_rest: bool = False


#: In the order in which they run: facts first, then what later stages rely on. 480 s at most, 55 s where no GPU is.
STAGES = (
    Stage(name="host", about="what this host is", seconds=15, quick_seconds=10, needs_gpu=False),
    Stage(name="ceilings", about="what the card can do at most", seconds=20, quick_seconds=15),
    Stage(name="cuda_tests", about="the project's tests that need CUDA", seconds=60, quick_seconds=45),
    Stage(name="gate", about="one process gives way to another", seconds=105, quick_seconds=25, needs_gpu=False),
    Stage(name="weights", about="new weights under a running model", seconds=70, quick_seconds=20, needs_gpu=False),
    Stage(name="vmm", about="memory that goes from one process to another", seconds=40, quick_seconds=20),
    Stage(name="power", about="the device's meter", seconds=20, quick_seconds=12, needs_gpu=False),
    Stage(name="engines", about="two SGLang engines on the card", seconds=150, quick_seconds=120, takes_rest=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """What a stage is asked for. `gpu` None: on CPU cores. It is stopped after `seconds`; `folder` is its own."""

    gpu: int | None
    quick: bool
    seconds: float
    folder: Path

    @property
    def device(self) -> str:
        """The device as torch names it."""
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"


@dataclass(slots=True)
class StageReport(Report):
    """A report that is written to `file` with every claim and fact, so that a stage that hangs leaves what it had."""

    file: Path = Path()
    facts: dict[str, object] = field(default_factory=dict)
    skipped: str | None = None
    #: Why it did not run to its end; while it runs, that it did not yet.
    failed: str | None = "it ended without a word"

    def claim(self, name: str, value: float, unit: str, target: float, better: Literal["lower", "higher"]) -> None:
        """Add a figure and keep it."""
        Report.claim(self, name, value, unit, target, better)
        self.save()

    def fact(self, name: str, value: object) -> None:
        """Add something that is so, with no target, and keep it."""
        self.facts[name] = value
        self.save()

    def save(self) -> None:
        """Write all so far: the file is whole at any time."""
        text = json.dumps(
            {
                "claims": self.to_json()["claims"],
                "facts": self.facts,
                "detail": self.detail,
                "skipped": self.skipped,
                "failed": self.failed,
            }
        )
        partial = self.file.with_suffix(".partial")
        partial.write_text(text)
        partial.replace(self.file)
