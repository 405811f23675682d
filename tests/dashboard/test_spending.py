"""What the Overview adds up of charges, held against the charges themselves."""

from __future__ import annotations

from datetime import date, datetime
from fractions import Fraction

import polars as pl
import pytest

from dashboard.spending import Rows
from rose.pricing.closing.period import NS_PER_DAY, Period

_CHARGES = (
    # hour, team, bucket, kind, pool, lease, rollout, nano-dollars, nanoseconds
    (datetime(2026, 6, 1, 1), "red", "rollout", "capacity", "serving", "l1", True, 10, 30),
    (datetime(2026, 6, 1, 2), "red", "rollout", "energy", "serving", "l1", True, 5, 30),
    (datetime(2026, 6, 1, 3), None, "idle", "capacity", "serving", None, False, 7, 11),
    (datetime(2026, 6, 3, 1), "red", "rollout", "capacity", "dedicated", None, True, 100, 60),
    (datetime(2026, 6, 3, 1), "blue", "sync", "capacity", None, "l2", True, 1, 2),
)
_NAMES = ("hour", "team", "bucket", "kind", "pool", "lease_id", "rollout", "amount_nano", "ns")


@pytest.fixture
def rows() -> Rows:
    charges = pl.DataFrame(_CHARGES, schema=_NAMES, orient="row")
    return Rows.of(charges, Period(1780272000 * 10**9, 1780272000 * 10**9 + 3 * NS_PER_DAY))


def test_sums_are_those_of_the_charges(rows: Rows) -> None:
    assert rows.summed["amount_nano"].sum() == rows.frame["amount_nano"].sum() == 123
    assert rows.rollout_nano == rows.rollout["amount_nano"].sum() == 116
    assert rows.by_team() == [("red", 115, 115), ("unallocated", 7, 0), ("blue", 1, 1)]
    assert not rows.is_empty


def test_energy_is_no_time_of_its_own(rows: Rows) -> None:
    assert rows.borrowed_share == Fraction(30, 90)


def test_each_day_has_its_own_and_none_is_left_out(rows: Rows) -> None:
    nano, first = pl.col("amount_nano").sum(), date(2026, 6, 1)
    assert list(rows.by_day(nano).iter_rows()) == [(first, 22), (date(2026, 6, 2), 0), (date(2026, 6, 3), 101)]
    assert list(rows.by_day(nano, teams=["red"])["amount_nano"]) == [15, 0, 100]
    assert rows.by_day(nano, teams=["green"]).is_empty()


def test_no_charge_at_all(rows: Rows) -> None:
    nothing = Rows.of(rows.frame.clear(), rows.period)
    assert nothing.is_empty
    assert (nothing.rollout_nano, nothing.borrowed_share, nothing.by_team()) == (0, None, [])
