"""`python -m rose.accept.runner STAGE ...`: one stage in this process; `harness` starts it and reads its file."""

from __future__ import annotations

import argparse
import importlib
import traceback
from pathlib import Path

from rose.accept.stage import Scope, SkippedError, StageReport


def main() -> None:
    """Measure; what comes of it, a failure too, is in the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stage", help="its module, with `measure`")
    parser.add_argument("--gpu", type=int)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    report = StageReport(given.stage, given.quick, file=given.out)
    report.save()
    scope = Scope(gpu=given.gpu, quick=given.quick, seconds=given.seconds, folder=given.folder)
    try:
        importlib.import_module(given.stage).measure(scope, report)
        report.failed = None
    except SkippedError as error:
        report.skipped, report.failed = str(error), None
    except Exception as error:
        report.failed = f"{type(error).__name__}: {error}"
        traceback.print_exc()
    report.save()


if __name__ == "__main__":
    main()
