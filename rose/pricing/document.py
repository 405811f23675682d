"""The facts of a run, and the head of its reports."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.pricing.figures import Stamp
from rose.pricing.table import Paragraph

SCHEMA = 3


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
