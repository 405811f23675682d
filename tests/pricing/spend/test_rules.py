from __future__ import annotations

import shutil
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.pricing.closing.period import NS_PER_DAY, Period
from rose.pricing.closing.restate import restate
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.cost import Cost, Question, ask
from rose.pricing.spend.currency import Rate
from rose.pricing.spend.gather import gather
from rose.pricing.spend.rules import of_gathered, priced_by
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, T0_NS, close
from tests.pricing.conftest import WEEK_CLOSE_ID
from tests.pricing.spend.test_credits import credit
from tests.pricing.spend.test_shared import CITED, USD, book_with, shared

#: Each day costs $86.40: research $3.60 for an hour of rollouts (on the 15th $10.80), chat the rest, all of it idle.
TEN_DAYS = Period(T0_NS, T0_NS + 10 * DAY_NS)
EURO = Rate(
    currency="EUR",
    usd_per_unit=Decimal("1.5"),
    day=date(2026, 6, 10),
    source="bank",
    source_date=date(2026, 6, 10),
    book="by hand 1",
)
PLATFORM = shared(usd_per_month="300", split='"usage"')


def by_team(root: Path, period: Period, book: PriceBook, **only: str) -> Cost:
    return ask(root, Question(period=period, by=("team",), only=only), book)


def amounts(cost: Cost) -> dict[str, tuple[float, float, float]]:
    return {
        line.values[0]: (line.cost_nano / USD, line.shared_nano / USD, line.credits_nano / USD) for line in cost.lines
    }


@pytest.mark.long
def test_a_team_has_its_shares_and_credits_beside_what_it_cost(weeks: Path) -> None:
    fixed = shared("desk", usd_per_month="30", shares="{ ops = 1 }")
    book = book_with(PLATFORM, shared("idle", share_of='"idle"', split='"even"'), fixed, credit("vendor", "500"))
    made = by_team(weeks, TEN_DAYS, book)
    # Of $100 for ten days, and of $828 of idle time: chat had all of that.
    chat, research, ops = (amounts(made)[team] for team in ("chat", "research", "ops"))
    assert (chat[:2], research[:2], ops[:2]) == ((828, 95.833333333 + 414 - 828), (36, 4.166666667 + 414), (0, 10))
    assert made.total.cost_nano == made.bill_nano == 864 * USD
    assert (made.total.shared_nano, made.total.credits_nano) == (110 * USD, -500 * USD)
    assert made.total.total_nano == sum(line.total_nano for line in made.lines) == 474 * USD
    data = made.to_json()
    assert {row["rest_nano"] for row in data["credits"]} == {0}
    assert {(row["name"], row["rule"]) for row in data["shared_costs"]} == {
        ("platform", "$300 a month, by usage"),
        ("idle", "idle cost moved, the same for each team"),
        ("desk", "$30 a month, ops 1"),
    }
    assert data["total"]["total_nano"] == 474 * USD
    euros = made.converted(EURO)
    # Direct cost, each rule, and credits are rounded once each.
    assert abs(euros.total.total_nano - EURO.convert(474 * USD)) <= 2
    assert euros.total.total_nano == EURO.convert(864 * USD) + euros.ruled.nano
    assert sum(line.total_nano for line in euros.lines) == euros.total.total_nano
    assert sum(share.nano for share in euros.ruled.shares if share.name == "idle") == 0
    for team in ("chat", "ops"):
        only = by_team(weeks, TEN_DAYS, book, team=team)
        assert only.lines == tuple(line for line in made.lines if line.values == (team,))
    with pytest.raises(PricingError, match="has team 'opps'; did you mean 'ops'"):
        by_team(weeks, TEN_DAYS, book, team="opps")


def test_without_rules_and_in_other_dimensions_an_answer_is_as_it_was(weeks: Path) -> None:
    plain = by_team(weeks, TEN_DAYS, book_with())
    assert not plain.ruled
    assert "total_nano" not in plain.to_json()["total"]
    ruled = ask(weeks, Question(period=TEN_DAYS, by=("team", "bucket")), book_with(PLATFORM))
    assert not ruled.ruled
    assert ruled.total.total_nano == ruled.bill_nano


@pytest.mark.long
def test_a_credit_has_no_more_than_earlier_periods_left(weeks: Path) -> None:
    book = book_with(credit("vendor", "1000", "2026-06-03"))
    cuts = [T0_NS + day * DAY_NS for day in (0, 5, 11, 20)]
    parts = [by_team(weeks, Period(*span), book) for span in pairwise(cuts)]
    assert [part.total.credits_nano / USD for part in parts] == [-259.2, -518.4, -222.4]
    assert [part.ruled.credits[0].rest_nano / USD for part in parts] == [740.8, 222.4, 0]
    whole = by_team(weeks, Period(cuts[0], cuts[-1]), book)
    assert whole.total.credits_nano == -1000 * USD


@pytest.mark.long
def test_what_is_open_before_takes_of_a_credit_whatever_book_priced_the_first_hours_asked_for(weeks: Path) -> None:
    first, second, third = (Period(T0_NS + day * DAY_NS, T0_NS + (day + 7) * DAY_NS) for day in (0, 7, 14))
    close(weeks, second, now_us=(T0_NS + 21 * DAY_NS) // 1000)
    book = book_with(credit("vendor", "1000"))
    rest = Period(second.from_ns, third.to_ns)
    parts = [by_team(weeks, period, book).total.credits_nano for period in (first, rest)]
    assert parts == [by_team(weeks, period, book).total.credits_nano for period in (first, third)]
    assert [nano / USD for nano in parts] == [-604.8, -395.2]


@pytest.mark.long
def test_a_month_without_a_charge_takes_of_a_credit_what_is_shared_in_it(weeks: Path) -> None:
    book = book_with(shared("desk", usd_per_month="300", shares="{ ops = 1 }"), credit("vendor", "500", "2026-05-01"))
    whole = by_team(weeks, Period(T0_NS - 31 * DAY_NS, TEN_DAYS.to_ns), book)
    june = by_team(weeks, TEN_DAYS, book)
    assert (whole.total.credits_nano, june.total.credits_nano) == (-500 * USD, -200 * USD)


@pytest.mark.long
def test_each_hour_is_under_the_rules_of_the_book_that_priced_it(half_closed: Path) -> None:
    root = half_closed / "ledger"
    cost = by_team(root, TEN_DAYS, book_with(PLATFORM))
    # Seven days were closed, and corrected, by a book without rules.
    assert cost.total.shared_nano == 30 * USD
    dearer = BOOK_TOML.replace("3.60", "3.97").replace('version = "1"', 'version = "3"')
    ruled = pricebook.parse(dearer + shared(usd_per_month="60", split='"even"') + CITED, "ruled.toml")
    assert restate(root, WEEK_CLOSE_ID, "shared costs", ruled, now_us=(T0_NS + 23 * DAY_NS) // 1000)
    assert by_team(root, TEN_DAYS, book_with(PLATFORM)).total.shared_nano == 44 * USD
    assert [span.to_ns - span.from_ns for span, _ in priced_by(root, gather(root, TEN_DAYS, ruled))] == [10 * DAY_NS]


@pytest.fixture(scope="module")
def asked(weeks_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[PriceBook, Period], Cost]:
    root = Path(shutil.copytree(weeks_made, tmp_path_factory.mktemp("asked") / "ledger"))
    return lambda book, period: by_team(root, period, book)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    usd=st.lists(st.integers(0, 10**15), min_size=3, max_size=3),
    first=st.integers(0, 18),
    days=st.integers(1, 2),
    split=st.sampled_from(['"usage"', '"even"']),
)
def test_the_total_is_the_bill_with_the_shares_and_credits_to_the_nano(
    asked: Callable[[PriceBook, Period], Cost], usd: list[int], first: int, days: int, split: str
) -> None:
    dollars = [f"{nano // USD}.{nano % USD:09}" for nano in usd]
    book = book_with(
        shared(usd_per_month=dollars[0], split=split),
        shared("idle", share_of='"idle"', split=split),
        credit("all", dollars[1]),
        credit("chat", dollars[2], team='"chat"'),
    )
    made = asked(book, Period(T0_NS + first * NS_PER_DAY, T0_NS + (first + days) * NS_PER_DAY))
    monthly = sum(share.nano for share in made.ruled.shares if share.name == "platform")
    assert abs(monthly - usd[0] * days / 30) <= 1
    assert made.total.total_nano == made.bill_nano + monthly + sum(row.nano for row in made.ruled.credits)
    assert all(line.total_nano >= 0 for line in made.lines if line.cost_nano + line.shared_nano >= 0)


def test_a_period_is_the_sum_of_its_months(weeks: Path) -> None:
    book = book_with(PLATFORM)
    may_and_june = Period(T0_NS - DAY_NS, T0_NS + DAY_NS)
    made = of_gathered(weeks, gather(weeks, may_and_june, book))
    # Nobody was there in May: its day of the cost is nobody's.
    assert {(share.team, share.nano > 0) for share in made.shares} == {
        ("unallocated", True),
        ("chat", True),
        ("research", True),
    }
    assert sum(share.nano for share in made.shares if share.team == "unallocated") == round(300 * USD / 31)


@pytest.mark.long
def test_what_is_not_over_has_of_a_month_what_went_by(weeks: Path) -> None:
    book = book_with(PLATFORM, shared("idle", share_of='"idle"', split='"even"'))
    quarter = Period(T0_NS, T0_NS + 92 * DAY_NS)
    question, now_us = Question(period=quarter, by=("team",)), (T0_NS + 6 * DAY_NS + DAY_NS // 48) // 1000
    made = ask(weeks, question, book, now_us=now_us)
    assert made.total.shared_nano == 60 * USD, "six days of June, and nothing of July and August"
    assert {share.rule for share in made.ruled.shares} == {
        "$300 a month, by usage, until now (2026-06-07 UTC)",
        "idle cost moved, the same for each team",
    }
    assert ask(weeks, question, book, now_us=quarter.to_ns // 1000).total.shared_nano == 900 * USD
    over = Question(period=Period(T0_NS, T0_NS + 6 * DAY_NS), by=("team",))
    assert {share.rule for share in ask(weeks, over, book_with(PLATFORM), now_us=now_us).ruled.shares} == {
        "$300 a month, by usage"
    }


@pytest.mark.long
def test_closing_does_not_change_what_is_shared(weeks: Path) -> None:
    book = book_with(PLATFORM, credit("vendor", "500"))
    week = Period(T0_NS, T0_NS + 7 * DAY_NS)
    before = by_team(weeks, TEN_DAYS, book)
    close(weeks, week, book, now_us=(T0_NS + 21 * DAY_NS) // 1000)
    assert by_team(weeks, TEN_DAYS, book).ruled == before.ruled
