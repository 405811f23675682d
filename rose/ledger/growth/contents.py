"""What lies in a compacted file: whose events, from when to when."""

from __future__ import annotations

from dataclasses import dataclass

from rose.ledger import segments


@dataclass(frozen=True, slots=True)
class Share:
    """The events of one run in a file. Times are `at_us`, the least and the greatest."""

    run_id: str | None
    events: int
    first_us: int
    last_us: int


def shares(content: bytes) -> tuple[Share, ...]:
    """What each run has in the bytes of a Parquet file, by its id."""
    table = segments.read_rows(content, ["run_id", "at_us"])
    grouped = table.group_by("run_id", use_threads=False)
    rows = grouped.aggregate([("at_us", "count"), ("at_us", "min"), ("at_us", "max")]).to_pylist()
    listed = [Share(row["run_id"], row["at_us_count"], row["at_us_min"], row["at_us_max"]) for row in rows]
    return tuple(sorted(listed, key=lambda share: share.run_id or ""))
