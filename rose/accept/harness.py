"""Runs the stages one after another, each in a process group of its own with a hard time-out, and keeps what they say.

A stage that crashes, hangs or writes nonsense is a claim that does not hold; the others run all the same. The report is
rewritten after every stage.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rose.accept.report import ROOT, Claim, Report
from rose.accept.stage import Stage

_LOG_LINES = 15
_SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a stage ended. `skipped` and `failed` say why; with neither it ran to its end."""

    stage: str
    took_s: float
    claims: list[Claim] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    detail: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None
    failed: str | None = None
    log: str = ""

    def to_json(self) -> dict[str, Any]:
        """As the report's detail has it; its claims are the report's."""
        parts = {
            "seconds": round(self.took_s, 1),
            "skipped": self.skipped,
            "failed": self.failed,
            "facts": self.facts,
            "detail": self.detail,
            "log": self.log if self.failed else "",
        }
        return {name: part for name, part in parts.items() if part not in (None, "", {})}


def run(
    stages: Sequence[Stage],
    report: Report,
    *,
    gpu: int | None,
    keep: Callable[[Report], object],
    say: Callable[[Ended], object],
    package: str = "rose.accept.stages",
) -> None:
    """Run `stages`, modules of `package`, on the GPU of this index, or on CPU cores; `keep` and `say` are called after
    each."""
    home = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    report.detail.setdefault("stages", {})
    rest_s = 0.0
    for stage in stages:
        seconds = (stage.quick_seconds if report.quick else stage.seconds) + rest_s * stage.takes_rest
        with tempfile.TemporaryDirectory(prefix=f"rose-accept-{stage.name}-", dir=home) as folder:
            ended = _run(stage, package, Path(folder), gpu, report.quick, seconds)
        if not ended.skipped:
            rest_s = max(0.0, seconds + rest_s * (not stage.takes_rest) - ended.took_s)
        report.detail["stages"][stage.name] = ended.to_json()
        report.claims += ended.claims
        if not ended.skipped:
            report.claim(f"{stage.name}: ran to its end", int(ended.failed is None), "", 1, "higher")
        keep(report)
        say(ended)


def _run(stage: Stage, package: str, folder: Path, gpu: int | None, quick: bool, seconds: float) -> Ended:
    if gpu is None and stage.needs_gpu:
        return Ended(stage=stage.name, took_s=0.0, skipped="this host has no GPU that torch can use")
    out, log, work = folder / "out.json", folder / "log", folder / "work"
    work.mkdir()
    command = [sys.executable, "-m", "rose.accept.runner", f"{package}.{stage.name}", f"--seconds={seconds}"]
    command += [f"--folder={work}", f"--out={out}"]
    command += [*(["--quick"] if quick else []), *([] if gpu is None else [f"--gpu={gpu}"])]
    began = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            failed = None if process.wait(seconds) == 0 else _ended_with(process.returncode)
        except subprocess.TimeoutExpired:
            failed = f"it was not done after {seconds:g} s and was stopped"
        finally:
            # What it started goes with it, also if this process is interrupted.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return _read(stage, out, log, time.monotonic() - began, failed)


def _read(stage: Stage, out: Path, log: Path, took_s: float, failed: str | None) -> Ended:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
    try:
        kept = json.loads(out.read_text())
        parts = {name: kept[name] for name in ("facts", "detail", "skipped")}
        parts["claims"] = [_claim(**claim) for claim in kept["claims"]]
        failed = failed or kept["failed"]
    except (OSError, ValueError, KeyError, TypeError, AssertionError):
        parts, failed = {}, failed or "it left nothing that can be read"
    return Ended(stage=stage.name, took_s=took_s, failed=failed, log=tail, **parts)


def _claim(*, name: str, value: float, unit: str, target: float, better: Any, holds: bool) -> Claim:
    claim = Claim(name, value, unit, target, better)
    assert claim.holds == holds, claim
    return claim


def _ended_with(code: int) -> str:
    return f"it was killed by signal {signal.Signals(-code).name}" if code < 0 else f"it ended with exit code {code}"
