from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import bill, of_close, open_parts
from rose.pricing.closing.close import restate
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    CLOSE_ID,
    DAY_NS,
    DEARER,
    FIRST_HOUR,
    HOUR_NS,
    NEXT_DAY_US,
    T0_NS,
    begun,
    close,
    slice_,
    write,
)

DAY = Period(T0_NS, T0_NS + DAY_NS)


def test_open_hours_are_priced_and_closed_ones_are_as_booked(fleet: Path) -> None:
    open_bill = bill(Ledger(fleet), FIRST_HOUR, DEARER)
    assert (open_bill.closes, set(open_bill.frame["closed"])) == ({}, {False})
    assert open_bill.frame["cost_nano"].sum() == BILL_NANO + 360_000_000
    close(fleet)
    # The book given prices open hours only: what is closed stays what it was.
    closed_bill = bill(Ledger(fleet), FIRST_HOUR, DEARER)
    assert (closed_bill.closes, set(closed_bill.frame["closed"])) == ({CLOSE_ID: 0}, {True})
    assert closed_bill.frame["cost_nano"].sum() == BILL_NANO
    restate(Ledger(fleet), CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    restated = bill(Ledger(fleet), FIRST_HOUR, "no-such-book.toml")
    assert restated.frame["cost_nano"].sum() == restated.total_nano == BILL_NANO + 360_000_000
    assert [(part.state, part.invoice_id, part.total_nano) for part in restated.parts] == [
        ("closed", CLOSE_ID, BILL_NANO),
        ("correction", f"{CLOSE_ID}/1", 360_000_000),
    ]
    assert restated.newest_book.sha256 == DEARER.sha256
    # As it was known before the correction.
    assert of_close(Ledger(fleet), CLOSE_ID, NEXT_DAY_US * 1000).total_nano == BILL_NANO


def test_a_period_between_two_closes_is_one_bill(tmp_path: Path) -> None:
    root = write(tmp_path / "ledger", [*begun(), slice_(0, serving=3 * 3600)])
    for first in (0, 2):
        close(root, Period(T0_NS + first * HOUR_NS, T0_NS + (first + 1) * HOUR_NS), with_open_runs=True)
    whole_bill = bill(Ledger(root), Period(T0_NS, T0_NS + 3 * HOUR_NS), BOOK)
    by_hour = whole_bill.frame.group_by("hour", "closed").agg(pl.col("cost_nano").sum()).sort("hour")
    assert by_hour["cost_nano"].to_list() == [3_600_000_000] * 3
    assert by_hour["closed"].to_list() == [True, False, True]
    by_team = by_hour.with_columns(team=pl.lit("chat")).select("hour", "team", "closed", "cost_nano")
    assert whole_bill.by("team").sort("hour").rows() == by_team.rows()
    # A part of a close is a part of a bill.
    assert (
        bill(Ledger(root), Period(T0_NS + HOUR_NS, T0_NS + 3 * HOUR_NS), BOOK).frame["cost_nano"].sum() == 7_200_000_000
    )


def test_what_has_no_bill_says_why(fleet: Path) -> None:
    with pytest.raises(PricingError, match="no run lies in 2026-07-01"):
        bill(Ledger(fleet), Period(T0_NS + 30 * DAY_NS, T0_NS + 31 * DAY_NS), BOOK)
    with pytest.raises(PricingError, match="no device time was provisioned in 2026-06-01"):
        bill(Ledger(fleet), DAY, BOOK, provenance="replay")
    write(fleet, [*begun(), slice_(0, serving=60)], "replayer", "replay")
    with pytest.raises(PricingError, match=r"different provenance.*live, replay"):
        bill(Ledger(fleet), DAY, BOOK)
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    with pytest.raises(PricingError, match="does not verify"):
        bill(Ledger(fleet), DAY, BOOK, provenance="live")
    assert not bill(Ledger(fleet, allow_unverified=True), FIRST_HOUR, BOOK, provenance="live").stamp.verified


HOURS = st.integers(0, 100)


@given(HOURS, st.integers(1, 60), st.lists(st.tuples(HOURS, st.integers(1, 30)), max_size=5))
def test_every_hour_that_no_close_covers_is_open(begin: int, length: int, cuts: list[tuple[int, int]]) -> None:
    def hours(part: Period) -> set[int]:
        return set(range(part.from_ns // HOUR_NS, part.to_ns // HOUR_NS))

    def made(from_hour: int, hours: int) -> Period:
        return Period(from_hour * HOUR_NS, (from_hour + hours) * HOUR_NS)

    whole, taken = made(begin, length), [made(*cut) for cut in cuts]
    left = open_parts(whole, taken)
    assert set().union(*map(hours, left)) == hours(whole) - set().union(*map(hours, taken))
    assert sum(len(hours(part)) for part in left) == len(set().union(*map(hours, left)))
    assert left == sorted(left)
    for part in taken:
        assert whole.overlaps(part) == bool(hours(whole) & hours(part))
