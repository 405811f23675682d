"""Acceptance stages: their table, the process that runs one, and the loop that runs them one after another.

A stage is a module with `measure(scope, report)`. It runs in a process group of its own with a hard time-out. A stage
that crashes, hangs or leaves no report is a claim that does not hold; the others still run.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rose.accept.report import ROOT, Claim, Report, claims_json

_LOG_LINES = 15
_SHARED_MEMORY = Path("/dev/shm")


class SkippedError(Exception):
    """A stage that cannot run on this host; the message says why, and what would let it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A stage and its hard time-out: `seconds`, and `quick_seconds` in a quick run.

    A stage with `takes_rest` also gets the time that the stages before it did not use. A stage that needs a GPU is
    skipped on a host without one.
    """

    name: str
    seconds: float
    quick_seconds: float
    needs_gpu: bool = True
    takes_rest: bool = False
    package: str = "rose.accept.stages"

    def limit_s(self, quick: bool) -> float:
        """Return the time-out without the rest of other stages."""
        return self.quick_seconds if quick else self.seconds


#: In the order in which they run: facts first, then what later stages rely on. At most 480 s, 55 s without a GPU.
STAGES = (
    Stage(name="host", seconds=35, quick_seconds=25, needs_gpu=False),
    Stage(name="cuda_tests", seconds=60, quick_seconds=45),
    Stage(name="gate", seconds=85, quick_seconds=25, needs_gpu=False),
    Stage(name="weights", seconds=70, quick_seconds=20, needs_gpu=False),
    Stage(name="vmm", seconds=40, quick_seconds=20),
    Stage(name="power", seconds=20, quick_seconds=12, needs_gpu=False),
    Stage(name="engines", seconds=170, quick_seconds=120, takes_rest=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Holds the limits of a stage: its GPU (None: CPU cores), its time in `seconds` and a folder of its own."""

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
    """The outcome of a stage. It is written to `file` with every claim and fact, so that a hang loses nothing.

    `skipped` and `failed` say why; with neither the stage ran to its end.
    """

    file: Path = Path()
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = "it ended without a report"
    took_s: float = 0.0
    #: The end of what the stage printed.
    log: str = ""

    def claim(self, name: str, value: float, unit: str, target: float, better: Literal["lower", "higher"]) -> None:
        """Add a figure and save it."""
        self.claims.append(Claim(name, value, unit, target, better))
        self.save()

    def fact(self, name: str, value: object) -> None:
        """Add a figure that has no target and save it."""
        self.facts[name] = value
        self.save()

    def save(self) -> None:
        """Write everything so far; the file is whole at any time."""
        names = ("facts", "detail", "skipped", "failed")
        partial = self.file.with_suffix(".partial")
        partial.write_text(json.dumps({"claims": claims_json(self.claims)} | {n: getattr(self, n) for n in names}))
        partial.replace(self.file)

    def load(self) -> None:
        """Read what the stage's process saved. Raises OSError, or an error of the file's form."""
        kept = json.loads(self.file.read_text())
        claims = [{name: claim[name] for name in Claim.__dataclass_fields__} for claim in kept["claims"]]
        self.claims = [Claim(**claim) for claim in claims]
        self.facts, self.detail, self.skipped, self.failed = (
            kept[name] for name in ("facts", "detail", "skipped", "failed")
        )

    def row(self) -> dict[str, Any]:
        """Return the stage's part of the detail of a whole run; its claims are the run's."""
        parts = {
            "seconds": round(self.took_s, 1),
            "skipped": self.skipped,
            "failed": self.failed,
            "facts": self.facts,
            "detail": self.detail,
            "log": self.log if self.failed else "",
        }
        return {name: part for name, part in parts.items() if part not in (None, "", {})}


def run_stages(
    stages: Sequence[Stage], report: Report, *, gpu: int | None, ended: Callable[[StageReport], object]
) -> None:
    """Run stages on the GPU of this index, or on CPU cores, and add them to `report`; `ended` is called after each."""
    home = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    rows = report.detail.setdefault("stages", {})
    rest_s = 0.0
    for stage in stages:
        seconds = stage.limit_s(report.quick) + rest_s * stage.takes_rest
        outcome = StageReport(stage.name, report.quick)
        if gpu is None and stage.needs_gpu:
            outcome.skipped, outcome.failed = "this host has no GPU that torch can use", None
        else:
            with tempfile.TemporaryDirectory(prefix=f"rose-accept-{stage.name}-", dir=home) as folder:
                _run(stage, outcome, Path(folder), gpu, seconds)
        report.claims += outcome.claims
        if not outcome.skipped:
            rest_s = max(0.0, seconds + rest_s * (not stage.takes_rest) - outcome.took_s)
            report.claim(f"{stage.name}: ran to its end", int(outcome.failed is None), "", 1, "higher")
        rows[stage.name] = outcome.row()
        ended(outcome)


def _run(stage: Stage, outcome: StageReport, folder: Path, gpu: int | None, seconds: float) -> None:
    """Run one stage in a process group of its own, and read what it left."""
    outcome.file, log, work = folder / "out.json", folder / "log", folder / "work"
    work.mkdir()
    scope = {"gpu": gpu, "quick": outcome.quick, "seconds": seconds, "folder": str(work)}
    command = [sys.executable, "-m", "rose.accept.stage", f"{stage.package}.{stage.name}", json.dumps(scope)]
    failed: str | None = None
    began_s = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, str(outcome.file)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            if code := process.wait(seconds):
                failed = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            failed = f"stopped after {seconds:g} s"
        finally:
            # All that it started ends with it, also if this process is interrupted.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    outcome.took_s = time.monotonic() - began_s
    outcome.log = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    try:
        outcome.load()
        outcome.failed = failed or outcome.failed
    except (OSError, ValueError, LookupError, TypeError):
        outcome.failed = failed or "it left no report that can be read"


def main() -> None:
    """Run one stage in this process; its report, also of a failure, is in the file."""
    module, scope, file = sys.argv[1], json.loads(sys.argv[2]), Path(sys.argv[3])
    report = StageReport(module, scope["quick"], file=file)
    report.save()
    try:
        importlib.import_module(module).measure(Scope(**scope | {"folder": Path(scope["folder"])}), report)
        report.failed = None
    except SkippedError as error:
        report.skipped, report.failed = str(error), None
    except Exception as error:
        report.failed = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    report.save()


if __name__ == "__main__":
    # Under the name by which stages import it: its classes are not two.
    importlib.import_module("rose.accept.stage").main()
