"""The cost report of one run as data: figures under names, and plain values for JSON."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.ledger.commands.output import csv_cells
from rose.pricing.borrowing.report.savings import Savings
from rose.pricing.figures import BookFacts, Figure, Stamp
from rose.pricing.run.operations import Engines, Latency, Preemptions, Syncs
from rose.pricing.table import Paragraph

#: Version of the JSON's layout.
SCHEMA = 1
_CSV_COLUMNS = (
    "figure",
    "value",
    "unit",
    "text",
    "view",
    "basis",
    "low",
    "high",
    "why",
    "no_interval",
    "currency",
    "from",
    "to",
    "provenance",
    "verified",
    "run_id",
    "price_book",
    "price_book_chosen",
    "example_prices",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Which run, and the serving traffic it saw; latency is only meant with the trace's scale beside it."""

    run_id: str
    name: str
    #: `running`, `ended` or `failed`.
    status: str
    #: UTC, in ISO 8601; None while it runs.
    ended_at: str | None
    reason: str | None
    trace: str | None
    trace_keep_share: float | None
    trace_length_scale: float | None
    trace_output_length_scale: float | None
    trace_time_scale: float | None
    #: Stand-ins ran for SGLang's compiled kernels: no time of the run is SGLang's.
    native_kernels: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceRow:
    """One stay of one device: provisioned time, cost, and time by bucket."""

    device_id: str
    pool: str
    device_class: str
    provisioned: Figure
    cost: Figure
    time: Mapping[str, Figure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Borrow:
    """m, the marginal price of a borrowed device-hour, by term, and what each term rests on."""

    #: Lowest probability stated that the fleet would have existed without the leases; None where none is stated.
    idle_anyway: float | None
    borrowed: Figure
    per_device_hour: Mapping[str, Figure]
    explained: Mapping[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceLine:
    """Cost per correct answer with rollout tokens priced on one line.

    `measured` is dollars per accepted trajectory, `per_correct` the same over PPV where there is an audit, `formula`
    CPM * R * (1 + pi * rho) / alpha per million answer tokens.
    """

    token_cost: Figure
    pi: Figure
    measured: Figure
    per_correct: Figure
    formula: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class RunShare:
    """What one run has of a fleet that several share: an RL run, or the fleet's own. Each cost sums to the bill."""

    run_id: str
    name: str
    #: Who pays, by the run's tags; None where they do not say.
    team: str | None
    time: Figure
    amortized: Figure
    fully_loaded: Figure
    #: Of the amortized bill.
    share: Figure


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything the command line and the dashboard show of a run's cost."""

    stamp: Stamp
    run: RunFacts
    price_book: BookFacts
    provisioned: Figure
    #: By bucket; the times sum to `provisioned`.
    device_time: Mapping[str, Figure]
    device_share: Mapping[str, Figure]
    devices: tuple[DeviceRow, ...]
    #: Of a fleet's run, it and the RL runs that share the fleet; empty for a run on its own, and for an RL run.
    runs: tuple[RunShare, ...]
    #: By bucket, and `total`. Amortized and fully loaded totals both equal the fleet's cost; of an RL run that shares a
    #: fleet the fully loaded one has its part of the idle time too.
    amortized: Mapping[str, Figure]
    fully_loaded: Mapping[str, Figure]
    #: By term, and `total`: what the borrow added to the bill.
    marginal: Mapping[str, Figure]
    borrow: Borrow
    #: By placement, then by fate, with `generated`, `useful` and `wasted_share`.
    tokens: Mapping[str, Mapping[str, Figure]]
    #: Per million useful tokens, by placement, then by view.
    token_cost: Mapping[str, Mapping[str, Figure]]
    harvest_share: Figure
    #: Cash saved and capacity avoided, never one number.
    savings: Savings
    #: Idle time of serving devices under a lease: lent, and not used. In the bucket `idle`.
    leased_unused: Figure
    #: rho, alpha, accept_rate, r, cpm, phi, ppv.
    factors: Mapping[str, Figure]
    #: How the formula moves with each factor, in dollars per million answer tokens for each unit of the factor.
    partials: Mapping[str, Figure]
    accept_by_step: Mapping[int, Figure]
    #: By price line.
    cost_per_correct: Mapping[str, PriceLine]
    #: CPM * R * (1 + pi * rho) / alpha at the prices rollout tokens really had, and the same over PPV.
    c3: Figure
    c3_per_correct: Figure
    #: `granted`, and by closing with `open`; the closings sum to `granted`.
    leases: Mapping[str, Figure]
    preemptions: Mapping[str, Preemptions]
    syncs: Syncs
    engines: Engines
    #: `all`, `lent`, `not lent`.
    latency: Mapping[str, Latency]

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`; amounts are whole nano-dollars, times whole nanoseconds."""
        return to_json(self)


def heading(run: RunFacts, stamp: Stamp, traffic: str = "") -> Paragraph:
    """What a document on a run begins with: which run, when, beside what `traffic`, and by which prices."""
    return Paragraph(
        f" ({run.run_id}), {run.status}, {stamp.provenance}",
        lead=f"Run {run.name}",
        more=(f"{utc(stamp.from_ns)} to {utc(stamp.to_ns)}{traffic}", stamp.book.line),
    )


def to_json(document: Any) -> dict[str, Any]:
    """Plain values of a document's fields, with the version of their layout."""
    return {"schema": SCHEMA, **_json(document)}


def figures(data: Any, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every figure of a document's plain values, by the path of its name: `devices.0.cost`."""
    if isinstance(data, list):
        data = dict(enumerate(data))
    if not isinstance(data, dict):
        return
    if "unit" in data and "period" in data:
        yield path, data
        return
    for key, item in data.items():
        yield from figures(item, f"{path}.{key}" if path else str(key))


def to_csv(report: Mapping[str, Any]) -> str:
    """One line for each figure of a report's plain values, by the path of its name, with what must stand beside it."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(_CSV_COLUMNS)
    for name, figure in figures(report):
        cells = {**figure, **figure["period"], "figure": name, "run_id": report["run"]["run_id"]}
        lines.writerow(csv_cells(cells[column] for column in _CSV_COLUMNS))
    return text.getvalue()


def _json(value: Any) -> Any:
    if isinstance(value, Figure | Stamp):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_json(item) for item in value]
    if dataclasses.is_dataclass(value):
        return {field.name: _json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value
