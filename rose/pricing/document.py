"""The facts of a run, and reports in JSON and CSV."""

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.ledger.commands.output import csv_cells
from rose.pricing.figures import Stamp
from rose.pricing.table import Paragraph

SCHEMA = 3
_CSV_COLUMNS = (
    *("figure", "value", "unit", "text", "view", "basis", "low", "high", "why", "no_interval"),
    *("currency", "from", "to", "provenance", "verified", "run_id"),
    *("price_book", "price_book_chosen", "example_prices"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    run_id: str
    name: str
    provenance: str
    status: str  # `running`, `ended` or `failed`.
    began_ns: int  # UTC nanoseconds: decides token and verdict prices.
    ended_at: str | None  # ISO 8601, UTC; None while it runs.
    reason: str | None
    trace: str | None
    trace_keep_share: float | None
    trace_length_scale: float | None
    trace_output_length_scale: float | None
    trace_time_scale: float | None
    native_kernels: bool  # Stand-ins ran for SGLang's compiled kernels, so no time is SGLang's.


def heading(run: RunFacts, stamp: Stamp, traffic: str = "") -> Paragraph:
    return Paragraph(
        f" ({run.run_id}), {run.status}, {stamp.provenance}",
        lead=f"Run {run.name}",
        more=(f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}{traffic}", stamp.book.line),
    )


def to_json(parts: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        **{
            name: part.to_json() if hasattr(part, "to_json") else dataclasses.asdict(part)
            for name, part in parts.items()
        },
    }


def figures(data: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    if isinstance(data, list):
        data = {next(iter(row.values()), n) if isinstance(row, dict) else n: row for n, row in enumerate(data)}
    if not isinstance(data, dict):
        return
    if "unit" in data and "view" in data:
        yield path, data
        return
    for key, item in data.items():
        yield from figures(item, path if key == "rows" else f"{path}.{key}" if path else str(key))


def to_csv(report: Mapping[str, Any]) -> str:
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_CSV_COLUMNS)
    stamp = {**report["stamp"], **report["stamp"]["period"], "run_id": report["run"]["run_id"]}
    for name, figure in figures(report):
        cells = {**stamp, **figure, "figure": name}
        lines.writerow(csv_cells(cells[column] for column in _CSV_COLUMNS))
    return text.getvalue()
