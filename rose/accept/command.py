"""Runs `rose accept`: selects stages and a GPU, prints each outcome, and rewrites the report after each stage."""

import os
from collections.abc import Sequence
from pathlib import Path

from rose.accept.report import Report
from rose.accept.stage import STAGES, StageReport, run_stages
from rose.errors import UserError
from rose.ledger.files.layout import write_file
from rose.terminal import echo

_INTERRUPTED = 130


def accept(*, quick: bool, only: Sequence[str], gpu: int | None, strict: bool, file: Path | None) -> int:
    """Run stages. Return 130 after an interrupt; if `strict`, 1 after a failed claim or a skipped stage; else 0."""
    names = [stage.name for stage in STAGES]
    for name in only:
        if name not in names:
            raise UserError(f"unknown stage {name!r}, expected one of {', '.join(names)}: change --only")
    if file is not None:
        _check_writable(file)
    gpu = _usable(gpu)
    chosen = [stage for stage in STAGES if not only or stage.name in only]
    where = "on CPU cores: torch can use no GPU here" if gpu is None else f"on GPU {gpu}"
    longest_s = sum(stage.limit_s(quick) for stage in chosen if gpu is not None or not stage.needs_gpu)
    echo(f"{len(chosen)} stages {where}; {longest_s:.0f} s at most", err=True)
    report, skipped, code = Report("gpu", quick), list[str](), 0

    def ended(outcome: StageReport) -> None:
        skipped.extend([outcome.benchmark] if outcome.skipped else [])
        if file is not None:
            write_file(file, report.text().encode(), sync=False)
        _print(outcome)

    try:
        run_stages(chosen, report, gpu=gpu, ended=ended)
    except KeyboardInterrupt:
        code = _INTERRUPTED
        echo("stopped: the report has the stages that had ended", err=True)
    report.show()
    if file is not None and report.detail.get("stages"):
        echo(f"written to {file}", err=True)
    if failing := sum(not claim.holds for claim in report.claims):
        echo(f"{failing} of {len(report.claims)} claims do not hold here", err=True)
    if skipped:
        echo(f"{len(skipped)} of {len(chosen)} stages were skipped: {', '.join(skipped)}", err=True)
    return code or int(strict and bool(failing or skipped))


def _print(outcome: StageReport) -> None:
    how = f"skipped: {outcome.skipped}" if outcome.skipped else outcome.failed or "done"
    echo(f"{outcome.benchmark}: {how} ({outcome.took_s:.0f} s)", err=True)
    for name, value in outcome.facts.items():
        echo(f"    {name}: {value}", err=True)
    if outcome.failed and outcome.log:
        echo(*(f"  | {line}" for line in outcome.log.splitlines()), err=True)


def _check_writable(file: Path) -> None:
    special = file.is_symlink() or (file.exists() and not file.is_file())
    if special or not file.parent.is_dir() or not os.access(file.parent, os.W_OK):
        raise UserError(f"--json: {file} cannot be written: name a regular file in a folder that you may write to")


def _usable(gpu: int | None) -> int | None:
    try:
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    except ImportError:
        count = 0
    if gpu is not None and not 0 <= gpu < count:
        raise UserError(f"there is no GPU {gpu}, torch can use {count} GPUs: change --gpu")
    return gpu if gpu is not None else (0 if count else None)
