import math
from pathlib import Path
from typing import Any

import pytest

from rose.events import KINDS, Event
from rose.ledger.files import rows, segments
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import run_report
from rose.pricing.answers.run_report import Report
from tests.long_form import usual
from tests.pricing.conftest import sample_events


def _damaged(event: Event) -> list[rows.Row]:
    odd: dict[str, list[Any]] = {"BIGINT": [2**63 - 1, -(2**63), -1], "DOUBLE": [math.nan, math.inf]}
    fields, values = rows.fields_of(event.kind), rows.encode(event)
    damaged = []
    for index, field in enumerate(fields):
        for value in odd.get(field.sql_type, ["", None] if field.name in KINDS[event.kind].needs else []):
            if value != -1 or field.name != "staleness":
                damaged.append((event.kind, (*values[:index], value, *values[index + 1 :])))
    return damaged


@pytest.mark.parametrize("kind", sorted({event.kind for event in sample_events()})[:: usual(12, long=1)])
def test_a_report_is_that_of_the_events(kind: str, sample: Path, sample_report: Report) -> None:
    example = next(event for event in sample_events() if event.kind == kind)
    LedgerWriter.open(sample, "damage", "run", "replay").close()
    tail = segments.recover(sample, "damage")
    assert tail is not None
    segments.write_next(sample, tail, rows.table("damage", 0, "run", "replay", _damaged(example)))
    assert Ledger(sample).verify().ok
    assert run_report.build(Ledger(sample)).to_json() == sample_report.to_json()
