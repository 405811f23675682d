"""`python -m benchmarks.transfer`: what a new version of the weights takes to reach an engine, in bytes and in seconds,
beside XOR + zstd and other ways of sending it."""

from benchmarks.shared import arguments, measure_parts, measured
from benchmarks.transfer import cases, join, link, pause, shards
from benchmarks.transfer.scope import FULL, QUICK
from rose.accept.report import Report

PARTS = {
    "cases": cases.measure,
    "link": link.measure,
    "join": join.measure,
    "shards": shards.measure,
    "pause": pause.measure,
}


def main() -> None:
    """Run every part, or those of `--only`; the exit code is 0 when the measuring itself worked."""
    given = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report, scope = Report("transfer", given.quick, provenance="simulated"), QUICK if given.quick else FULL
    parts = {name: lambda report, folder, part=part: part(report, folder, scope) for name, part in PARTS.items()}
    with measured(report, given.json, given.folder) as folder:
        measure_parts(report, parts, folder, given.only)


if __name__ == "__main__":
    main()
