"""`python -m benchmarks.ledger`: the ledger's speed and size, beside DuckDB's INSERT and SQLite's WAL."""

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
    given = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report = Report("ledger", given.quick)
    with measured(report, given.json, given.folder) as folder:
        measure_parts(report, PARTS, folder, given.only)


if __name__ == "__main__":
    main()
