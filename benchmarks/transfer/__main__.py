"""`python -m benchmarks.transfer`: what a new version of the weights takes to reach an engine, in bytes and in seconds,
beside XOR + zstd and other ways of sending it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.transfer import chain, join, link, pause, sizes, speed
from benchmarks.transfer.scope import FULL, QUICK, Scope
from rose.accept.report import Report, arguments, finish, phase

PARTS = {
    "sizes": sizes.measure,
    "chain": chain.measure,
    "speed": speed.measure,
    "link": link.measure,
    "join": join.measure,
    "pause": pause.measure,
}


def main() -> None:
    """Run every part, or those named; the exit code is 0 when the measuring itself worked."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", action="append", choices=PARTS, help="measure this part alone; may be repeated")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure; else the current one")
    given = parser.parse_args()
    report = Report("transfer", given.quick, provenance="simulated")
    try:
        measure(report, given.folder, QUICK if given.quick else FULL, given.only or list(PARTS))
    finally:
        # What was measured before a part failed is worth having.
        finish(report, given.json)


def measure(report: Report, home: Path, scope: Scope, parts: list[str]) -> None:
    """Some of the parts, each in a folder of its own under `home`; they leave nothing there."""
    for name in parts:
        with phase(name), tempfile.TemporaryDirectory(prefix=f"transfer-benchmark-{name}-", dir=home) as folder:
            PARTS[name](report, Path(folder), scope)


if __name__ == "__main__":
    main()
