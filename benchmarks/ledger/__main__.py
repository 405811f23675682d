"""`python -m benchmarks.ledger`: what the ledger takes, keeps and answers, beside DuckDB's INSERT and SQLite's WAL."""

from benchmarks.ledger import hostile, kills, record, scale
from benchmarks.shared import arguments, measure_parts, measured
from rose.accept.report import Report

PARTS = {
    "record": record.measure,
    "throughput": record.measure_throughput,
    "scale": scale.measure,
    "receipt": scale.measure_receipt,
    "hostile": hostile.measure,
    "kills": kills.measure,
    "full_disk": kills.measure_full_disk,
}


def main() -> None:
    """Run every part, or those of `--only`; the exit code is 0 when the measuring itself worked."""
    given = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report = Report("ledger", given.quick)
    with measured(report, given.json, given.folder) as folder:
        measure_parts(report, PARTS, folder, given.only)


if __name__ == "__main__":
    main()
