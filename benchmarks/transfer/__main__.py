"""`python -m benchmarks.transfer`: what a new version of the weights takes to reach an engine, in bytes and in seconds,
beside XOR + zstd and other ways of sending it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.shared import arguments, measure_parts, measured
from benchmarks.transfer import chain, codec, join, link, pause, shards
from benchmarks.transfer.scope import FULL, QUICK, Scope
from rose.accept.report import Report

PARTS = {
    "sizes": codec.measure_sizes,
    "chain": chain.measure,
    "speed": codec.measure_speed,
    "link": link.measure,
    "join": join.measure,
    "shards": shards.measure,
    "pause": pause.measure,
}


def main() -> None:
    """Run every part, or those named; the exit code is 0 when the measuring itself worked."""
    given = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report = Report("transfer", given.quick, provenance="simulated")
    with measured(report, given.json):
        measure(report, given.folder, QUICK if given.quick else FULL, given.only)


def measure(report: Report, home: Path, scope: Scope, only: Sequence[str] | None = None) -> None:
    """Every part, or `only` some; they leave nothing under `home`."""
    parts = {name: partial(_measure, part, scope) for name, part in PARTS.items()}
    measure_parts(report, parts, home, only)


def _measure(part: Callable[[Report, Path, Scope], None], scope: Scope, report: Report, folder: Path) -> None:
    part(report, folder, scope)


if __name__ == "__main__":
    main()
