"""The command: chooses stages and a GPU, prints what came of them, and writes the report after every stage."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from rose.accept import harness
from rose.accept.harness import Ended
from rose.accept.report import Report, finish
from rose.accept.stage import STAGES
from rose.errors import UserError
from rose.terminal import echo

_INTERRUPTED = 130


def accept(*, quick: bool, only: Sequence[str], gpu: int | None, strict: bool, file: Path | None) -> int:
    """Run the stages; returns the exit code: 0 measured, 1 with `strict` if a claim does not hold or a stage
    was skipped, 130 interrupted.

    Raises UserError for a stage or a GPU that is not there, and for a file that cannot be written.
    """
    for name in only:
        if name not in {stage.name for stage in STAGES}:
            raise UserError(f"stage {name!r} is none of {', '.join(stage.name for stage in STAGES)}: change --only")
    if file is not None and not file.parent.is_dir():
        raise UserError(f"{file} cannot be written: {file.parent} is no folder; change --json")
    if file is not None and (file.is_symlink() or (file.exists() and not file.is_file())):
        raise UserError(f"{file} cannot be written: it is there, and no regular file; change --json")
    if file is not None and not os.access(file.parent, os.W_OK):
        raise UserError(f"{file} cannot be written: you may not write to {file.parent}; change --json")
    gpu = _usable(gpu)
    chosen = [stage for stage in STAGES if not only or stage.name in only]
    where = "on CPU cores: torch can use no GPU here" if gpu is None else f"on GPU {gpu}"
    longest_s = sum(
        stage.quick_seconds if quick else stage.seconds for stage in chosen if gpu is not None or not stage.needs_gpu
    )
    echo(f"{len(chosen)} stages {where}; {longest_s:.0f} s at most", err=True)
    report = Report("gpu", quick)
    interrupted = False
    skipped: list[str] = []

    def say(ended: Ended) -> None:
        if ended.skipped:
            skipped.append(ended.stage)
        _say(ended)

    try:
        harness.run(chosen, report, gpu=gpu, keep=lambda so_far: _write(so_far, file), say=say)
    except KeyboardInterrupt:
        interrupted = True
        echo("stopped: the report has the stages before", err=True)
    finish(report, None)
    if file is not None and report.detail.get("stages"):
        echo(f"written to {file}", err=True)
    failing = [claim for claim in report.claims if not claim.holds]
    if failing:
        echo(f"{len(failing)} of {len(report.claims)} claims do not hold here", err=True)
    if skipped:
        echo(f"{len(skipped)} of {len(chosen)} stages were skipped: {', '.join(skipped)}", err=True)
    return _INTERRUPTED if interrupted else int(strict and bool(failing or skipped))


def _say(ended: Ended) -> None:
    how = f"skipped: {ended.skipped}" if ended.skipped else ended.failed or "done"
    echo(f"{ended.stage}: {how} ({ended.took_s:.0f} s)", err=True)
    for name, value in ended.facts.items():
        echo(f"    {name}: {value}", err=True)
    if ended.failed and ended.log:
        echo(*(f"  | {line}" for line in ended.log.splitlines()), err=True)


def _write(report: Report, file: Path | None) -> None:
    if file is not None:
        partial = file.with_name(file.name + ".partial")
        partial.write_text(report.text())
        partial.replace(file)


def _usable(gpu: int | None) -> int | None:
    """The GPU asked for, else the first one; None where there is none. Raises UserError for one that is not there."""
    try:
        import torch
    except ImportError:
        count = 0
    else:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if gpu is not None and not 0 <= gpu < count:
        raise UserError(f"GPU {gpu} is not there, torch can use {count}: change --gpu")
    return gpu if gpu is not None else (0 if count else None)
