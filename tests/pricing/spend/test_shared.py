from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.money import nano_usd_of
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.shared import NO_TEAM, shares
from tests.pricing.closing.conftest import BOOK_TOML, charges_of, frames_of_charges

CITED = 'source = "board"\nsource_date = 2026-01-01\n'
JUNE, JULY = (int(datetime(2026, month, 1, tzinfo=UTC).timestamp()) * 10**9 for month in (6, 7))
HOUR = 3600 * 10**9
USD = 10**9


def book_with(*rules: str) -> PriceBook:
    return pricebook.parse(BOOK_TOML + "".join(f"\n{rule}{CITED}" for rule in rules), "rules.toml")


def shared(name: str = "platform", **fields: str) -> str:
    return f'[[shared_cost]]\nname = "{name}"\n' + "".join(f"{key} = {value}\n" for key, value in fields.items())


def charge(team: str, usd: int, bucket: str = "serving", day: int = 1, **fields: Any) -> dict[str, Any]:
    return {"team": team, "cost_nano": usd * USD, "bucket": bucket, "hour": datetime(2026, 6, day), **fields}


FRAME = charges_of(
    [
        charge("chat", 60),
        charge("research", 30),
        charge("unallocated", 10),
        charge("unallocated", 5, "idle"),
        charge("chat", 9, "idle"),
    ]
)


def by_team(book: PriceBook, frame: pl.DataFrame = FRAME, span: tuple[int, int] = (JUNE, JULY)) -> dict[str, Fraction]:
    nano: dict[str, Fraction] = {}
    for share in shares(book, frame, *span):
        nano[share.team] = nano.get(share.team, Fraction()) + Fraction(share.nano, USD)
    return nano


@pytest.mark.parametrize(
    ("fields", "usd"),
    [
        ({"usd_per_month": "99", "split": '"usage"'}, {"chat": 69, "research": 30}),
        ({"usd_per_month": "99", "split": '"even"'}, {"chat": Fraction(99, 2), "research": Fraction(99, 2)}),
        ({"usd_per_month": "100", "shares": "{ research = 0.6, ops = 0.4 }"}, {"research": 60, "ops": 40}),
        (
            {"share_of": '"unallocated"', "split": '"even"'},
            {"chat": Fraction(15, 2), "research": Fraction(15, 2), "unallocated": -15},
        ),
        # Idle time of a team is pooled with the rest: by what else the teams cost, 60 to 30.
        (
            {"share_of": '"idle"', "split": '"usage"'},
            {"chat": Fraction(28, 3) - 9, "research": Fraction(14, 3), "unallocated": -5},
        ),
    ],
)
def test_an_amount_is_added_and_a_part_of_the_bill_is_moved(fields: dict[str, str], usd: dict[str, Any]) -> None:
    shares_usd = by_team(book_with(shared(**fields)))
    assert shares_usd == {team: Fraction(nano_usd_of(Fraction(amount)), USD) for team, amount in usd.items()}


def test_idle_time_of_no_team_is_moved_once() -> None:
    idle = shared("idle", share_of='"idle"', split='"even"')
    rest = shared("rest", share_of='"unallocated"', split='"even"')
    for rules in ((idle, rest), (rest, idle)):
        assert by_team(book_with(*rules)) == {"chat": 12 - 9, "research": 12, "unallocated": -15}


def test_a_month_is_the_sum_of_its_parts_to_the_nano() -> None:
    book = book_with(shared(usd_per_month="1000.01", split='"usage"', valid_from="2026-06-11"))
    cuts = [JUNE, JUNE + 7 * HOUR, JUNE + 401 * HOUR, JUNE + 407 * HOUR, JULY, JULY + 744 * HOUR]
    parts = [sum(share.nano for share in shares(book, FRAME, *span)) for span in pairwise(cuts)]
    assert sum(parts[:-1]) == nano_usd_of(Fraction("1000.01")) - round(Fraction("1000.01") * USD * 10 / 30)
    assert parts[0] == 0, "before it holds"
    assert (sum(parts[1:3]), parts[-1]) == (round(Fraction("1000.01") * USD * (407 - 240) / 720), 1000_010_000_000)


def test_costs_count_while_the_rule_holds() -> None:
    frame = charges_of([charge("chat", 100, day=1), charge("chat", 10, day=20), charge("research", 10, day=20)])
    book = book_with(shared(usd_per_month="30", split='"usage"', valid_from="2026-06-16"))
    assert by_team(book, frame) == {"chat": Fraction(15, 2), "research": Fraction(15, 2)}


def test_without_a_team_all_is_unallocated_and_the_share_says_so() -> None:
    frame = charges_of([charge("unallocated", 10)])
    amount = shared(usd_per_month="99", split='"usage"')
    (share,) = shares(book_with(amount), frame, JUNE, JULY)
    assert (share.name, share.team, share.nano) == ("platform", "unallocated", 99 * USD)
    assert share.rule == f"$99 a month, by usage; {NO_TEAM}"
    moves = book_with(shared(share_of='"unallocated"', split='"usage"'))
    assert by_team(moves, frame) == {"unallocated": 0}


@settings(max_examples=30, deadline=None)
@given(frames_of_charges(), st.integers(0, 10**12), st.integers(0, 719), st.integers(1, 720))
def test_amounts_sum_to_the_amount_and_moves_to_zero(frame: pl.DataFrame, usd: int, first: int, hours: int) -> None:
    from_ns = JUNE + first * HOUR
    dollars = f"{usd // 1000}.{usd % 1000:03}"
    amounts = [{"split": '"usage"'}, {"split": '"even"'}, {"shares": "{ a = 0.333, b = '0.667' }"}]
    book = book_with(
        *(shared(f"m{number}", usd_per_month=dollars, **way) for number, way in enumerate(amounts)),
        *(shared(part, share_of=f'"{part}"', split='"usage"') for part in ("idle", "unallocated")),
    )
    sums: dict[str, int] = {}
    for share in shares(book, frame, from_ns, from_ns + hours * HOUR):
        sums[share.name] = sums.get(share.name, 0) + share.nano
    assert sums.get("idle", 0) == sums.get("unallocated", 0) == 0
    assert sums["m0"] == sums["m1"] == sums["m2"]
    if first + hours <= 720:
        assert abs(sums["m0"] - Fraction(usd * 10**6 * hours, 720)) <= 1
