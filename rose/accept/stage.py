"""Stages of acceptance, each in its own process. A crash, a hang or a missing report is a failed claim."""

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
from rose.ledger.files.layout import write_file

_LOG_LINES = 15
_SAVED = ("facts", "detail", "skipped", "failed")
_SHARED_MEMORY = Path("/dev/shm")


class SkippedError(Exception):
    """This host cannot run the stage. The message says why, and how to change that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """A module with `measure(scope, report)`. With `takes_rest`, it gets the time that earlier stages did not use."""

    name: str
    seconds: float
    quick_seconds: float
    needs_gpu: bool = True
    takes_rest: bool = False
    package: str = "rose.accept.stages"

    def limit_s(self, quick: bool) -> float:
        return self.quick_seconds if quick else self.seconds


STAGES = (  # In running order: facts first, then properties that later stages rely on.
    Stage(name="host", seconds=35, quick_seconds=25, needs_gpu=False),
    Stage(name="cuda_tests", seconds=60, quick_seconds=45),
    Stage(name="gate", seconds=85, quick_seconds=25, needs_gpu=False),
    Stage(name="beside", seconds=240, quick_seconds=60, needs_gpu=False),
    Stage(name="weights", seconds=70, quick_seconds=20, needs_gpu=False),
    Stage(name="vmm", seconds=40, quick_seconds=20),
    Stage(name="power", seconds=20, quick_seconds=12, needs_gpu=False),
    Stage(name="engines", seconds=170, quick_seconds=120, takes_rest=True),
    Stage(name="busy_engines", seconds=450, quick_seconds=200, takes_rest=True),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    gpu: int | None
    quick: bool
    seconds: float
    folder: Path

    @property
    def device(self) -> str:
        return "cpu" if self.gpu is None else f"cuda:{self.gpu}"


@dataclass(slots=True)
class StageReport(Report):
    """The outcome of a stage, saved to `file` after every change. If `skipped` and `failed` are None, it ended well."""

    file: Path = Path()
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = "it ended without a report"
    took_s: float = 0.0
    log: str = ""  # Last lines that the stage printed.

    def claim(self, name: str, value: float, unit: str, target: float, better: Literal["lower", "higher"]) -> None:
        self.claims.append(Claim(name, value, unit, target, better))
        self.save()

    def fact(self, name: str, value: object) -> None:
        self.facts[name] = value
        self.save()

    def save(self) -> None:
        parts = {"claims": claims_json(self.claims)} | {name: getattr(self, name) for name in _SAVED}
        write_file(self.file, json.dumps(parts).encode(), sync=False)

    def load(self) -> None:
        kept = json.loads(self.file.read_text())
        self.claims = [Claim(**{name: claim[name] for name in Claim.__dataclass_fields__}) for claim in kept["claims"]]
        self.facts, self.detail, self.skipped, self.failed = (kept[name] for name in _SAVED)

    def row(self) -> dict[str, Any]:
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
    outcome.file, log, work = folder / "out.json", folder / "log", folder / "work"
    work.mkdir()
    scope = {"gpu": gpu, "quick": outcome.quick, "seconds": seconds, "folder": str(work)}
    module = f"{stage.package}.{stage.name}"
    command = [sys.executable, "-m", "rose.accept.stage", module, json.dumps(scope), str(outcome.file)]
    failed: str | None = None
    began_s = time.monotonic()
    with log.open("wb") as output:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, **streams)
        try:
            if code := process.wait(seconds):
                failed = f"killed by signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            failed = f"stopped after {seconds:g} s"
        finally:
            with suppress(ProcessLookupError):  # Ends the stage's processes too, also after an interrupt.
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
    importlib.import_module("rose.accept.stage").main()  # By its own name, because stages import the same classes.
