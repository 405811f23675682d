from __future__ import annotations

import csv
import io
import json

import pytest

from dashboard import format as words
from rose.pricing.document import Report, to_csv


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (119, "119 s"), (600, "10 min"), (7200, "2 h"), (200_000, "2.31 days")]
)
def test_durations(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_the_csv_has_every_figure_of_the_json_with_all_that_must_stand_beside_it(built: Report) -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(built.to_json()))))
    assert len(rows) == words.to_json(built).count('"unit":')
    by_name = {row["figure"]: row for row in rows}
    total = by_name["amortized.total"]
    assert total["value"] == str(built.amortized["total"].value)
    assert (total["unit"], total["view"], total["currency"]) == ("nano_usd", "amortized", "USD")
    assert (total["from"], total["provenance"]) == ("2026-06-01T00:00:00.000000Z", "simulated")
    assert all(row["unit"] and row["view"] and row["currency"] and row["from"] and row["provenance"] for row in rows)
    assert all(row["value"] or row["why"] for row in rows)
    assert json.loads(words.to_json(built)) == json.loads(json.dumps(built.to_json()))
