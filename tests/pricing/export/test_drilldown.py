from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rose.pricing.export import bill as billing
from rose.pricing.export import drilldown
from rose.pricing.export.bill import Bill
from rose.pricing.price_books import pricebook
from rose.pricing.table import Table
from tests.pricing.export.conftest import NAME, RUN

#: What each drill-down sums to; the others sum to the bill.
OF = {
    "By policy version and task": ("rollout",),
    "Waste by cause": ("rollout",),
    "Idle": ("idle", "unaccounted"),
    "Transfer and energy": ("transfer", "energy"),
}


def check_sums(bill: Bill) -> None:
    nano = {bucket: cost for bucket, (_, cost) in drilldown.by_bucket(bill.charges.frame).items()}
    assert sum(nano.values()) == bill.charges.total_nano
    corrected = {
        drilldown.CORRECTIONS: bill.total_nano - bill.charges.total_nano,
        drilldown.WITH_CORRECTIONS: bill.total_nano,
    }
    for table in drilldown.tables(bill):
        for index, column in enumerate(table.columns):
            if column.kind == "money" and table.name != "Corrections":
                parent = sum(nano.get(bucket, 0) for bucket in OF.get(table.name, tuple(nano)))
                parent = corrected.get(column.name, parent)
                assert table.total(index) == parent, (table.name, column.name)


@pytest.fixture(scope="module")
def tables(close_bill: Bill) -> dict[str, Table]:
    return {table.name: table for table in drilldown.tables(close_bill)}


def test_every_drill_down_sums_to_its_parent(close_bill: Bill) -> None:
    check_sums(close_bill)


def test_teams_and_runs_bear_both_views(tables: dict[str, Table], close_bill: Bill) -> None:
    teams = {row[0]: row[1:] for row in tables["By team"].rows}
    assert set(teams) == {"research", "chat"}
    # What idles on a device that also made rollouts is borne by research too, fully loaded.
    assert teams["research"][2] != teams["research"][1]
    ((run_id, name, ns, amortized, loaded),) = tables["By run"].rows
    assert (run_id, name, ns) == (RUN, NAME, 3 * 4 * 3600 * 10**9)
    assert amortized == loaded == close_bill.charges.total_nano


def test_policy_versions_are_in_the_order_of_numbers(period_bill: Bill) -> None:
    frame = period_bill.charges.frame
    many = dataclasses.replace(
        period_bill.charges, frame=frame.with_columns(policy_version=frame["policy_version"] * 5)
    )
    table = next(t for t in drilldown.tables(dataclasses.replace(period_bill, parts=(many,))) if "policy" in t.name)
    assert [row[0] for row in table.rows] == ["0", "5", "10", "15"]


def test_waste_idle_and_prices_say_why(tables: dict[str, Table]) -> None:
    assert {row[0] for row in tables["Waste by cause"].rows} == {"not wasted", "stale"}
    assert {row[:2] for row in tables["Waste by cause"].rows} >= {("not wasted", "rejected"), ("stale", "stale")}
    assert {(row[0], row[1]) for row in tables["Idle"].rows} >= {
        ("idle", "could have been lent"),
        ("idle", "could not be lent"),
    }
    assert any(row[0] == "unaccounted" for row in tables["Idle"].rows)
    assert [row[:3] for row in tables["Transfer and energy"].rows] == [
        ("energy", "", "chat"),
        ("transfer", "inter-region", "research"),
        ("transfer", "loopback", "research"),
    ]
    # What is sent is no energy, and what is drawn no bytes: neither is 0.
    assert [(row[3] is None, row[4] is None) for row in tables["Transfer and energy"].rows] == [
        (True, False),
        (False, True),
        (False, True),
    ]
    assert all(row[6:] == ("made up for the tests", "2026-01-01") for row in tables["Prices used"].rows)


def test_corrections_are_shown_apart(tables: dict[str, Table], close_bill: Bill, period_bill: Bill) -> None:
    table = tables["Corrections"]
    assert table.total(len(table.columns) - 1) == close_bill.corrections[0].total_nano > 0
    assert {row[:2] for row in table.rows} == {(f"{close_bill.close_id}/1", "a new contract")}
    assert {row[2] for row in table.rows} == {"2026-03-01"}
    open_period = drilldown.tables(period_bill)[-1]
    assert (open_period.rows, "not closed" in open_period.notes[0]) == ((), True)


def test_a_run_without_tags_is_unallocated(sample_kept: Path) -> None:
    made = billing.of_period(sample_kept, pricebook.load("example"))
    assert [row[0] for row in drilldown.tables(made)[0].rows] == [drilldown.UNALLOCATED]
