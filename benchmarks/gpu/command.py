"""The command: chooses stages and a GPU, prints what came of them, and writes the report after every stage."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks.gpu import harness
from benchmarks.gpu.harness import Ended
from benchmarks.gpu.stage import STAGES
from benchmarks.report import Report, arguments, finish

_INTERRUPTED = 130


def main(argv: list[str] | None = None) -> int:
    """Exit codes: 0 measured, 1 with `--strict` if a claim does not hold, 2 bad options."""
    given = _arguments(argv)
    gpu = given.gpu if given.gpu is not None else _first_gpu()
    chosen = [stage for stage in STAGES if not given.only or stage.name in given.only]
    report = Report("gpu", given.quick)
    where = "on CPU cores: this host has no GPU that torch can use" if gpu is None else f"on GPU {gpu}"
    longest = sum(s.quick_seconds if given.quick else s.seconds for s in chosen if gpu is not None or not s.needs_gpu)
    print(f"{len(chosen)} stages {where}; {longest:.0f} s at most", file=sys.stderr)
    try:
        harness.run(chosen, report, gpu=gpu, keep=lambda part: _write(part, given.json), say=_say)
    except KeyboardInterrupt:
        print("stopped: the stages so far are in the report", file=sys.stderr)
        finish(report, given.json)
        return _INTERRUPTED
    finish(report, given.json)
    failing = [claim.name for claim in report.claims if not claim.holds]
    if failing:
        print(f"{len(failing)} of {len(report.claims)} claims do not hold here", file=sys.stderr)
    return int(bool(failing) and given.strict)


def _say(ended: Ended) -> None:
    how = f"skipped: {ended.skipped}" if ended.skipped else ended.failed or "done"
    print(f"{ended.stage}: {how} ({ended.took_s:.0f} s)", file=sys.stderr, flush=True)
    if ended.failed and ended.log:
        print("\n".join(f"    {line}" for line in ended.log.splitlines()), file=sys.stderr)


def _write(report: Report, file: Path | None) -> None:
    if file is not None:
        partial = file.with_name(file.name + ".partial")
        partial.write_text(json.dumps(report.to_json(), indent=1) + "\n")
        partial.replace(file)


def _first_gpu() -> int | None:
    try:
        import torch
    except ImportError:
        return None
    return 0 if torch.cuda.is_available() else None


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = arguments(__doc__ or "")
    names = ", ".join(stage.name for stage in STAGES)
    parser.add_argument("--only", action="append", metavar="STAGE", help=f"this stage; may be repeated: {names}")
    parser.add_argument("--gpu", type=int, metavar="INDEX", help="this GPU; the first one if left out")
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a claim does not hold")
    given = parser.parse_args(argv)
    for name in given.only or ():
        if name not in {stage.name for stage in STAGES}:
            parser.error(f"--only {name!r} is none of {names}")
    return given
