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
    options = arguments(__doc__, folder=True, only=PARTS).parse_args()
    report = Report("ledger", options.quick)
    with measured(report, options.json, options.folder) as folder:
        measure_parts(report, PARTS, folder, options.only)


if __name__ == "__main__":
    main()
