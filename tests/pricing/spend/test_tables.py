from __future__ import annotations

import csv
import io
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from rose.pricing.closing.period import Period
from rose.pricing.spend import tables
from rose.pricing.spend.cost import Cost, Question, ask
from tests.pricing.closing.conftest import DAY_NS, T0_NS
from tests.pricing.conftest import printed


@pytest.fixture(scope="module")
def cost(half_closed_kept: Path) -> Cost:
    question = Question(period=Period(T0_NS, T0_NS + 8 * DAY_NS), by=("team", "bucket"), only={"team": "research"})
    return ask(half_closed_kept / "ledger", question, str(half_closed_kept / "book.toml"))


def test_a_table_says_what_is_closed_and_what_is_open(cost: Cost) -> None:
    text = printed(tables.terminal(cost))
    assert "2026-06-01 through 2026-06-08, UTC [amortized; USD, live]" in text
    assert "closed: 2026-06-01-to-2026-06-08-live-1 with 1 correction; open, priced now: 2026-06-08T00" in text
    # An hour a day of rollouts: seven at $3.60 + 10% and one at $3.60.
    assert "team research only: $31.32 of the period's bill of $751.68" in text
    assert "research rollout $31.32 100.0% $2.52 $3.60" in text


def test_csv_has_every_line_to_the_nano_and_no_formula(cost: Cost) -> None:
    (row,) = csv.DictReader(io.StringIO(tables.csv_text(cost)))
    assert Decimal(row["cost"]) == Decimal(row["closed"]) + Decimal(row["corrections"]) + Decimal(row["open"])
    assert (row["cost"], row["device_hours"], row["bucket"]) == ("31.320000000", "8.000000000", "rollout")
    (line,) = cost.lines
    hostile = replace(cost, lines=(replace(line, values=("=1+1", "rollout")),))
    assert tables.csv_text(hostile).splitlines()[1].startswith("'=1+1,rollout,")
