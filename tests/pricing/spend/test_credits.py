from __future__ import annotations

from collections import Counter
from itertools import pairwise

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.credits import Applied, Billed, credits
from rose.pricing.spend.shared import Share, shares
from tests.pricing.closing.conftest import charges_of, frames_of_charges
from tests.pricing.spend.test_shared import HOUR, JULY, JUNE, USD, book_with, charge, shared

FRAME = charges_of(
    [
        charge("chat", 60),
        charge("chat", 15, device_class="h200", day=20),
        charge("research", 30),
        charge("unallocated", 10),
    ]
)


def credit(name: str, usd: str, since: str = "2026-06-01", **fields: str) -> str:
    more = "".join(f"{key.rstrip('_')} = {value}\n" for key, value in fields.items())
    return f'[[credit]]\nname = "{name}"\nusd = {usd}\nvalid_from = {since}\n{more}'


def taken(*rules: str, frame: pl.DataFrame = FRAME, shared_out: tuple[Share, ...] = ()) -> dict[str, dict[str, int]]:
    """Whole dollars by credit and team, and what is left by credit."""
    by_credit: dict[str, dict[str, int]] = {}
    for applied in credits(book_with(*rules), frame, shared_out, JUNE, JULY):
        by_credit.setdefault(applied.name, {})[applied.team] = applied.nano // USD
        by_credit[applied.name]["left"] = applied.rest_nano // USD
    return by_credit


def test_a_credit_is_divided_by_what_there_is_to_cover() -> None:
    assert taken(credit("vendor", "23")) == {"vendor": {"chat": -15, "research": -6, "unallocated": -2, "left": 0}}
    assert taken(credit("vendor", "23", team='"research"')) == {"vendor": {"research": -23, "left": 0}}
    assert taken(credit("vendor", "20", class_='"h200"')) == {"vendor": {"chat": -15, "left": 5}}
    assert taken(credit("vendor", "20", "2026-06-10")) == {"vendor": {"chat": -15, "left": 5}}
    assert taken(credit("vendor", "20", "2026-07-01")) == {}


def test_the_oldest_is_used_first_and_nothing_falls_below_zero() -> None:
    by_credit = taken(
        credit("later", "100", "2026-05-02"),
        credit("older", "50", "2026-05-01", team='"research"'),
        credit("class", "50", class_='"h200"'),
    )
    assert by_credit == {
        "older": {"research": -30, "left": 20},
        "later": {"chat": -75, "unallocated": -10, "left": 15},
        "class": {"unallocated": 0, "left": 50},
    }
    assert taken(credit("a", "10", class_='"h200"'), credit("b", "10", class_='"h200"')) == {
        "a": {"chat": -10, "left": 0},
        "b": {"chat": -5, "left": 5},
    }


def test_shares_are_covered_too_where_no_class_is_asked_for() -> None:
    added = (Share("platform", "research", 70 * USD, ""), Share("moved", "unallocated", -10 * USD, ""))
    whole = taken(credit("vendor", "500"), shared_out=added)
    assert whole == {"vendor": {"chat": -75, "research": -100, "left": 325}}
    assert taken(credit("vendor", "500", class_='"h100-sxm"', team='"research"'), shared_out=added) == {
        "vendor": {"research": -30, "left": 470}
    }


def test_what_earlier_periods_took_is_gone_by_their_own_books() -> None:
    book = book_with(credit("vendor", "100", "2026-06-01"))
    may_use = Billed(book=book, frame=FRAME, shares=(), from_ns=JUNE, to_ns=JUNE + 240 * HOUR)
    # Of ten days it took 100 * 100 of what all cost; nothing is left for the rest.
    assert credits(book, FRAME, (), JUNE + 240 * HOUR, JULY, [may_use]) == (Applied("vendor", "unallocated", 0, 0),)
    assert credits(book, FRAME, (), JUNE + 240 * HOUR, JULY) == (Applied("vendor", "chat", -15 * USD, 85 * USD),)
    before = Billed(book=book_with(), frame=FRAME, shares=(), from_ns=JUNE, to_ns=JUNE + 240 * HOUR)
    assert credits(book, FRAME, (), JUNE + 240 * HOUR, JULY, [before])[0].rest_nano == 85 * USD
    renewed = book_with(
        credit("vendor", "100", "2026-06-01", valid_to="2026-06-11"), credit("vendor", "7", "2026-06-11")
    )
    assert credits(renewed, FRAME, (), JUNE + 240 * HOUR, JULY, [may_use]) == (Applied("vendor", "chat", -7 * USD, 0),)


def in_turn(book: PriceBook, frame: pl.DataFrame, cuts: list[int]) -> list[tuple[Billed, tuple[Applied, ...]]]:
    done: list[Billed] = []
    periods = []
    for from_ns, to_ns in pairwise(cuts):
        shared_out = shares(book, frame, from_ns, to_ns)
        periods.append(
            (
                Billed(book=book, frame=frame, shares=shared_out, from_ns=from_ns, to_ns=to_ns),
                credits(book, frame, shared_out, from_ns, to_ns, done),
            )
        )
        done.append(periods[-1][0])
    return periods


@pytest.mark.long
@settings(max_examples=30, deadline=None)
@given(frames_of_charges(), st.lists(st.integers(0, 10**16), min_size=3, max_size=3), st.integers(1, 3))
def test_no_bill_falls_below_zero_and_no_credit_gives_more_than_it_has(
    frame: pl.DataFrame, nano: list[int], hours: int
) -> None:
    usd = [f"{amount // USD}.{amount % USD:09}" for amount in nano]
    book = book_with(
        credit("all", usd[0]),
        credit("chat", usd[1], team='"chat"'),
        credit("class", usd[2], class_='"h100-sxm"'),
        shared("idle", share_of='"idle"', split='"usage"'),
        shared("month", usd_per_month="1.23", split='"even"'),
    )
    given_ = dict(zip(("all", "chat", "class"), nano, strict=True))
    used: Counter[str] = Counter()
    for billed, applied in in_turn(book, frame, [JUNE, JUNE + hours * HOUR, JULY]):
        bill: Counter[str] = Counter()
        hour = pl.col("hour").dt.timestamp("ns")
        inside = billed.frame.filter((hour >= billed.from_ns) & (hour < billed.to_ns))
        for team, cost in inside.select("team", "cost_nano").iter_rows():
            bill[team] += cost
        for share in billed.shares:
            bill[share.team] += share.nano
        before = Counter(bill)
        for row in applied:
            bill[row.team] += row.nano
            used[row.name] -= row.nano
            assert row.nano <= 0
        assert all(row.rest_nano == given_[row.name] - used[row.name] for row in applied)
        assert all(bill[team] >= min(0, before[team]) for team in bill)
    assert all(used[name] <= amount for name, amount in given_.items())
