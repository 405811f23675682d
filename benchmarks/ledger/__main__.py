"""`python -m benchmarks.ledger`: what the ledger takes, keeps and answers, against DuckDB's INSERT and SQLite's WAL."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.ledger import fleet, full_disk, hostile, kills, receipt, record, scale, soak, throughput
from rose.accept.report import Report, arguments, finish, phase


def main() -> None:
    """Run every part, or those named; the exit code is 0 when the measuring itself worked."""
    parts = {
        "record": record.measure,
        "throughput": throughput.measure,
        "scale": scale.measure,
        "receipt": receipt.measure,
        "fleet": fleet.measure,
        "hostile": hostile.measure,
        "kills": kills.measure,
        "full_disk": full_disk.measure,
        "soak": soak.measure,
    }
    parser = arguments(__doc__ or "")
    parser.add_argument("--only", action="append", choices=parts, help="measure this part alone; may be repeated")
    # A folder in memory would make every fsync free.
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="on the disk to measure; else the current one")
    given = parser.parse_args()
    report = Report("ledger", given.quick)
    try:
        with tempfile.TemporaryDirectory(prefix="ledger-benchmark-", dir=given.folder) as folder:
            for name, measure in parts.items():
                if not given.only or name in given.only:
                    home = Path(folder) / name
                    home.mkdir()
                    with phase(name):
                        measure(report, home)
    finally:
        # What was measured before a part failed is worth having.
        finish(report, given.json)


if __name__ == "__main__":
    main()
