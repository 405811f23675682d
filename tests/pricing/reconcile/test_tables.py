from __future__ import annotations

import dataclasses
import io
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from rose.pricing.console import show
from rose.pricing.reconcile import compare, invoice, ledger, tables
from rose.pricing.reconcile.compare import Reconciliation
from rose.pricing.table import Element
from rose.terminal import Screen
from tests.pricing.reconcile.conftest import BOOK, PERIOD, charge, whole, write_csv


@pytest.fixture(scope="module")
def made(fleet_of_four: Path, tmp_path_factory: pytest.TempPathFactory) -> Reconciliation:
    rows = [
        *whole(without=("GPU-0", "GPU-1")),
        charge("GPU-0", 1),
        charge("GPU-0", 1, "90.00"),
        charge("vol\x1b[31m-1", 2, "3.00", "5", ConsumedUnit="GB-Hours"),
        charge("vol-1" * 60, 2, "1.00"),
        charge("", 2, "19.00", None, ChargeCategory="Tax"),
        charge("GPU-2", 9),
        charge("GPU-3", 2, "-1.00", None, ChargeClass="Correction"),
        charge("GPU-3", 2, "-2.00", None),
    ]
    path = write_csv(tmp_path_factory.mktemp("tables") / "vendor.csv", [*rows, rows[0]])
    with invoice.opened(path) as (connection, facts):
        return compare.compare(connection, facts, *ledger.charges(fleet_of_four, PERIOD, BOOK), BOOK)


def shown(parts: Iterable[Element]) -> str:
    written = io.StringIO()
    show(parts, screen=Screen(file=written, width=100))
    return written.getvalue()


def test_everything_that_differs_is_shown(made: Reconciliation) -> None:
    text = shown(tables.terminal(made))
    words = " ".join(text.split())
    for says in (
        "2026-06-01 through 2026-06-03, UTC [amortized; USD, live]",
        "15 rows, 2026-06-01T00:00:00Z to 2026-06-10T00:00:00Z, invoice INV-7",
        "beyond the tolerance of 0.5%",
        "GPU-1 (s1) $259.20 $0.00 -$259.20 (-100.0%) missing on the invoice",
        "not on the invoice on 2 days",
        "What a resource of the vendor's is, [[vendor_resource]] of the price book says.",
        "Not compared, Tax: 1 row, billed $19.00, effective $19.00",
        "Not compared, transfer: $0.200000000 in the ledger, and the invoice has none",
        "Outside the period: 1 row, wholly or in part, effective $86.40",
        "The vendor's own corrections in it: -$1.00",
        "Rows that are there twice, and counted: 15 repeats 1",
        "Usage below zero that is no correction: rows 14 (-2.000000000000)",
    ):
        assert says.replace("$0.200000000", "$0.200") in words, text
    # What a stranger wrote moves no cursor and fills no screen.
    assert "\x1b" not in text
    assert "vol\\x1b[31m-1" in words
    assert max(map(len, text.splitlines())) <= 100
    assert "vol-1" * 60 not in "".join(text.split())


def test_json_has_every_line_and_sums_of_them(made: Reconciliation) -> None:
    data = json.loads(json.dumps(tables.to_json(made)))
    lines, total = data["devices"], data["total"]
    for name in (
        "ledger_nano",
        "effective_nano",
        "billed_nano",
        "difference_nano",
        "corrections_nano",
        "repeated_nano",
    ):
        assert sum(line[name] for line in lines) == sum(day[name] for day in data["days"]) == total[name]
    assert data["disagreement_nano"] == sum(abs(line["difference_nano"]) for line in lines)
    assert (data["within"], data["devices_left_off"], data["view"], data["currency"]) == (False, 0, "amortized", "USD")
    assert data["days_not_on_invoice"] == []
    (gpu_0,) = [line for line in lines if line["name"] == "GPU-0"]
    assert gpu_0["days"] == {"both": 1, "ledger_only": 2, "invoice_only": 0}
    assert (gpu_0["ledger_hours"], gpu_0["invoice_hours"]) == (72, 48)
    assert gpu_0["by_hours_nano"] + gpu_0["by_price_nano"] == gpu_0["difference_nano"]
    assert {day["day"] for day in data["device_days"] if day["name"] == "GPU-0"} == {
        "2026-06-01",
        "2026-06-02",
        "2026-06-03",
    }
    assert data["repeated_rows"] == {"count": 1, "first": [{"row": 15, "repeats": 1}]}


def test_what_agrees_is_one_line(made: Reconciliation) -> None:
    agreed = dataclasses.replace(made, lines=(), days=(), line_count=4)
    assert "4 of 4 lines agree within 0.5%" in shown(tables.terminal(agreed))


def test_days_that_follow_one_another_are_one(made: Reconciliation) -> None:
    days = tuple(day.day for day in made.days)
    gone = dataclasses.replace(made, uncovered=(days[0], days[2]))
    assert "charges nothing on 2026-06-01, 2026-06-03" in shown(tables.terminal(gone))
    gone = dataclasses.replace(made, uncovered=days)
    assert "charges nothing on 2026-06-01 to 2026-06-03" in shown(tables.terminal(gone))
