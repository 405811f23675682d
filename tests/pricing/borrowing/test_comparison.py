import dataclasses
from collections.abc import Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing.borrowing import comparison
from rose.pricing.borrowing.alternatives import Comparison, compare
from rose.pricing.borrowing.savings import DEDICATED, LOADED, NOTHING, Alternative, Saving
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.run.tokens import UNKNOWN, Spread, rollout_outputs
from rose.pricing.stats import bootstrap
from rose.pricing.stats.bootstrap import Interval
from tests.pricing.marginal_cost.lending_books import book_with

#: What an hour of the sample's devices costs.
PRICE = Fraction(235, 100)
#: What the 252 s cost that the tokens would have taken beyond idle time.
BEYOND = PRICE * 252 / 3600
STEADY = Spread(0.05, 9)


def steady(run: PricedRun) -> PricedRun:
    cost = dataclasses.replace(run.cost, spreads={"borrowed": STEADY, "dedicated": STEADY})
    return dataclasses.replace(run, cost=cost)


@pytest.fixture(scope="module")
def dear_spot(sample_kept: Path) -> Iterator[PricedRun]:
    book = book_with(
        ("interruptions_per_hour = 0.05", "interruptions_per_hour = 720"),
        ('class = "h100-sxm"\ncommitment = "on demand"', 'class = "h100-sxm"\ncommitment = "by the hour"'),
    )
    with priced(Ledger(sample_kept), "run", book) as run:
        yield steady(run)


@pytest.fixture(scope="module")
def compared(dear_spot: PricedRun) -> Comparison:
    return compare(dear_spot)


def test_the_sample_by_hand(compared: Comparison, dear_spot: PricedRun) -> None:
    borrow, counted = dear_spot.borrow, dear_spot.tokens["borrowed"]
    part = rollout_outputs(dear_spot.charged)["serving", "h100-sxm"]
    assert (part.generated, part.useful, part.stale) == (counted.generated, counted.useful, counted.by_fate["stale"])
    assert (compared.borrowed.useful, compared.borrowed.generated, compared.dedicated.useful) == (1400, 3500, 5600)
    ways = {way.name: way for way in compared.alternatives}
    cash = {name: None if way.cash is None else way.cash.usd for name, way in ways.items()}
    less = {name: None if way.less is None else way.less.usd for name, way in ways.items()}
    by_the_hour, high, spot = "h100-sxm by the hour", "h100-sxm on demand, high end", "h100-sxm spot"
    assert list(ways) == [DEDICATED, LOADED, by_the_hour, high, spot, NOTHING]
    # 2160 s of rollouts made 5600 useful tokens, so 1400 would have taken 540 s.
    assert (ways[DEDICATED].usd, ways[DEDICATED].basis) == (PRICE * 540 / 3600, "measured")
    # The borrowed 1440 s in the same view; of the 540 s, dedicated devices sat idle for 288 s, and the other 252 s
    # would have been bought.
    assert less[DEDICATED] == PRICE * (540 - 1440) / 3600
    assert (ways[DEDICATED].added_usd, cash[DEDICATED]) == (BEYOND, BEYOND - borrow.usd)
    assert (ways[LOADED].added_usd, cash[LOADED]) == (None, None)
    assert cash[by_the_hour] == Fraction(199, 100) * 252 / 3600 - borrow.usd
    # Of that device's hour, training took 1080 s and with its share of the idle time more.
    assert PRICE * 540 / 3600 < (ways[LOADED].usd or 0) < PRICE * 3600 / 3600 / 4
    assert ways[by_the_hour].usd == Fraction(199, 100) * 540 / 3600
    # Every turn took 1 s, so a turn at a random instant is 0.5 s old, and 720 interruptions an hour lose a tenth.
    assert ways[spot].usd == Fraction(540, 3600) / Fraction(9, 10)
    assert "720 interruptions an hour, each losing 0.5 s" in ways[spot].explained
    assert (ways[NOTHING].usd, less[NOTHING], cash[NOTHING]) == (0, None, -borrow.usd)
    for way in ways.values():
        # Three groups bound nothing; nothing is known of how steadily all time of dedicated devices was used.
        assert (way.interval, way.no_interval) == (None, UNKNOWN if way.name == LOADED else bootstrap.TOO_FEW)
        if way.cash is not None:
            assert (way.cash.interval, way.cash.no_interval) == (None, bootstrap.TOO_FEW)


def test_it_is_said_whether_borrowing_paid(priced_sample: PricedRun) -> None:
    answer = comparison.comparison(priced_sample)
    assert answer.figure("savings", "useful tokens borrowed").value == 1400
    bill, time = answer.table("bill").row(DEDICATED), answer.table("device_time").row(DEDICATED)
    charged, borrowed = (answer.table(name).row("borrowed") for name in ("bill", "device_time"))
    assert bill["marginal cost"].value == 164_500_000
    assert bill[comparison.CASH].value == 164_500_000 - charged["marginal cost"].value
    assert time["less by borrowing"].value == time["cost"].value - borrowed["cost"].value
    assert {time["cost"].view, borrowed["cost"].view, time["less by borrowing"].view} == {"amortized"}
    assert {bill["marginal cost"].view, charged["marginal cost"].view, bill[comparison.CASH].view} == {"marginal"}
    gain, ratio, m = (row["value"].value for row in answer.table("multiplier").records())
    assert (m, gain) == (pytest.approx((1 + ratio) / gain), pytest.approx(1.25))
    assert bill[comparison.CASH].no_interval
    assert answer.paragraph("says").text.startswith("Borrowing came out cheaper, without an interval (")


def test_a_dear_route_turns_the_borrow_into_a_loss(sample_kept: Path) -> None:
    book = book_with(
        ('route = "inter-region"\nusd_per_gb = 0.02', 'route = "inter-region"\nusd_per_gb = 5'),
        ("interruptions_per_hour = 0.05", "interruptions_per_hour = 7200"),
    )
    with priced(Ledger(sample_kept), "run", book) as run:
        answer = comparison.comparison(run)
    assert answer.figure("bill", DEDICATED, comparison.CASH).value < -9 * 10**9
    assert answer.figure("multiplier", "M").value > 1
    assert "no work would finish" in answer.figure("bill", "h100-sxm spot", comparison.CASH).text


def test_without_a_dedicated_device_the_book_s_price_is_assumed(
    write_ledger: Any, sample_made: Sequence[events.Event]
) -> None:
    root = write_ledger([event for event in sample_made if event.device_id != "r0"])
    own = (
        'pool = "rollout"\nusd_per_hour = 4\ncommitment = "own"\nvalid_from = 2026-01-01\n'
        'source = "test"\nsource_date = 2026-01-01\n'
    )
    with priced(
        Ledger(root), "run", book_with(("[[power]]", f'[[device]]\nclass = "h100-sxm"\n{own}\n[[power]]'))
    ) as run:
        ways = {way.name: way for way in compare(run).alternatives}
        answer = comparison.comparison(run)
    # The 1440 s that were borrowed, at the price of a rollout device.
    assert (ways[DEDICATED].usd, ways[DEDICATED].basis) == (Fraction(4 * 1440, 3600), "assumed")
    assert LOADED not in ways
    assert answer.figure("multiplier", "M").value is None
    # 3500 tokens less 1000 stale ones in 1440 s: what a preemption lost would have been kept.
    assert ways["h100-sxm on demand"].usd == Fraction(199, 100) * Fraction(1440 * 1400, 2500) / 3600
    assert ways["h100-sxm on demand"].basis == "assumed"


@pytest.mark.parametrize("factors", [(10, 10, -1, 1), (0, 10, 1, 1), (10, 0, 1, 0)])
def test_a_bill_that_fell_and_a_run_without_both_have_no_multiplier(
    priced_sample: PricedRun, factors: tuple[int, int, int, int]
) -> None:
    *tokens, charged, dedicated = factors
    rows = comparison.multiplier(priced_sample.make, *tokens, Fraction(charged), Fraction(dedicated))
    assert {figure.value for _, figure in rows} == {None}


@pytest.mark.parametrize(
    ("low", "high", "good", "good_without_gaps"),
    [
        (1.0, 4.0, None, True),
        (1.0, None, None, True),
        (-4.0, -1.0, False, False),
        (-4.0, 0.0, False, False),
        (0.0, 4.0, None, None),
        (-1.0, 4.0, None, None),
        (None, None, None, None),
    ],
)
def test_a_verdict_rests_on_the_interval_and_on_the_known_costs(
    low: float | None,
    high: float | None,
    good: bool | None,
    good_without_gaps: bool | None,
    priced_sample: PricedRun,
    compared: Comparison,
) -> None:
    interval = None if low is None else Interval(low=low, high=high)
    usd = Fraction(-3 if high is not None and high < 0 else 3)
    saving = Saving(usd=usd, interval=interval, no_interval=None if interval else "energy: a guess")
    way = Alternative(name=DEDICATED, usd=Fraction(5), basis="measured", explained="", cash=saving)
    borrow = priced_sample.borrow
    whole = dataclasses.replace(borrow, terms={name: term for name, term in borrow.terms.items() if not term.unknown})
    assert borrow.absent
    assert whole.absent == whole.missing == ()
    assert comparison.worth_it(saving, borrow) is good
    assert comparison.worth_it(saving, whole) is good_without_gaps
    one = dataclasses.replace(compared, alternatives=(way,))
    assert ("NOT worth it" in comparison.in_short(one, whole)) == (good is False)
    assert ("was worth it" in comparison.in_short(one, whole)) == (good_without_gaps is True)
