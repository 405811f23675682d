import json
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing import formulas
from rose.pricing.answers import frontier
from rose.pricing.answers.elasticity import Elasticity
from rose.pricing.answers.frontier import Spend
from rose.pricing.charges.allocation import ALL_BUCKETS, TIME_BUCKETS, Allocation, DeviceCost
from rose.pricing.run.cost_per_correct import Groups, TokenCost
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.run.tokens import FATES, Tokens
from rose.pricing.stats import bootstrap
from tests.pricing import reference
from tests.pricing.answers.conftest import device_cost, token_cost

S = 10**9
UNKNOWN = Elasticity(value=None, interval=None, draws=None, units=0, says="not enough data: none")


def eta(value: float, spread: float = 0) -> Elasticity:
    """An elasticity known within `spread` either way."""
    draws = np.linspace(value - spread, value + spread, bootstrap.RESAMPLES)
    return Elasticity(value=value, interval=bootstrap.interval(draws, 100), draws=draws, units=100, says="made up")


@given(st.floats(0.01, 3), st.floats(0.01, 2), st.floats(0.1, 100), st.floats(0.1, 100))
def test_where_both_are_known_the_answer_is_the_author_s(
    eta_n: float, eta_t: float, inference: float, training: float
) -> None:
    expected = reference.frontier(
        n=8, training=100, eta_n=eta_n, eta_t=eta_t, usd_per_n=inference / 8, usd_per_t=training / 100
    )
    assume(abs(expected.left - expected.right) > 1e-6)
    answer = frontier.next_step(eta(eta_n), eta(eta_t), (1 / inference, 1 / training), "dollar")
    assert answer.side == ("inference" if expected.left > expected.right else "training")
    assert answer.gain_inference == pytest.approx(expected.gain_inference_per_usd)
    assert answer.gain_training == pytest.approx(expected.gain_training_per_usd)


@given(st.floats(0.01, 2), st.floats(-1, 1), st.floats(1, 64), st.floats(0.01, 9), st.integers(1, 9999))
def test_free_slack_goes_where_the_formula_says(
    eta_n: float, eta_t: float, n: float, rollouts: float, answers: int
) -> None:
    growth = rollouts / (n * answers), 1 / 500
    to_inference = reference.slack_to_inference(
        eta_n=eta_n, n=n, rollouts_per_s=rollouts, answers=answers, eta_t=eta_t, compute_per_s=1, training=500
    )
    answer = frontier.next_step(eta(eta_n), eta(eta_t), growth, "slack second")
    assume(answer.gain_inference != answer.gain_training)
    assert answer.side == ("inference" if to_inference else "training")


@given(st.floats(0.01, 0.99), st.floats(1, 64), st.floats(0.1, 100), st.floats(0.1, 100))
def test_more_independent_tries_are_never_worth_a_dollar(p: float, n: float, inference: float, training: float) -> None:
    growth = 1 / inference, 1 / training
    answer = frontier.next_step(eta(formulas.best_of_n_elasticity(p, n)), eta(0.001), growth, "dollar")
    assert answer.side == "training"
    assert "one more rollout at its price raises it" in answer.says.lower()


@pytest.mark.parametrize(
    ("eta_n", "eta_t", "side", "says"),
    [
        (eta(0.5, 0.1), eta(0.3, 0.1), "training", "at its price raises it and more training at its price low"),
        (eta(0.5, 0.1), eta(-0.3, 0.1), "neither", "lowers cost per correct on neither side"),
        (eta(0.5, 0.1), eta(0.1, 0.5), frontier.UNKNOWN, "may not lower it at all. One more rollout at its price ra"),
        (eta(1.2, 0.9), eta(0.3, 0.1), frontier.UNKNOWN, "the difference. More training at its price lowers it."),
        (eta(1.31, 0.2), eta(0.3, 0.1), frontier.UNKNOWN, "lowers it and more training at its price lowers it."),
        (eta(1.5, 0.1), UNKNOWN, frontier.UNKNOWN, "not known, or has no interval. One more rollout at its price low"),
        (eta(1.0, 0.1), eta(-0.5, 0.1), frontier.UNKNOWN, "is not clear: the better side may not lower it at all"),
        (UNKNOWN, UNKNOWN, frontier.UNKNOWN, "Where the next dollar lowers cost per correct faster is not clear: an e"),
    ],
)
def test_a_direction_is_named_only_where_the_intervals_allow_no_other(
    eta_n: Elasticity, eta_t: Elasticity, side: str, says: str
) -> None:
    answer = frontier.next_step(eta_n, eta_t, (1.0, 1.0), "dollar")
    assert answer.side == side
    assert says in answer.says


def test_the_quotient_is_given_only_where_training_raises_alpha() -> None:
    assert frontier.left(eta(0.5), eta(0.25)) == pytest.approx(-2)
    assert frontier.left(eta(0.5), eta(-0.25)) is None
    assert frontier.left(UNKNOWN, eta(0.25)) is None


def device(pool: str, **nano: int) -> DeviceCost:
    time, dollars = ({bucket: nano.get(bucket, 0) for bucket in buckets} for buckets in (TIME_BUCKETS, ALL_BUCKETS))
    loaded = {"serving": sum(nano.values())}
    amounts = {"bucket_ns": time, "amortized_nano_usd": dollars, "fully_loaded_nano_usd": loaded}
    return device_cost(pool, pool, 0, sum(time.values()), **amounts)


def run() -> tuple[Allocation, dict[str, Tokens], TokenCost]:
    """A nano-dollar for each nanosecond; 40 useful tokens borrowed for 2 dollars, 60 dedicated for 12."""
    lent = device("serving", serving=30 * S, rollout=8 * S, headroom=5 * S, idle=5 * S, transfer=3 * S)
    own = device("rollout", rollout=12 * S, train=6 * S, sync=1 * S, idle=4 * S, transfer=2 * S, energy=1 * S)
    allocation = Allocation(devices=(lent, own))
    none = dict.fromkeys(FATES, 0)
    tokens = {
        "borrowed": Tokens(none | {"accepted": 40, "lost": 10}),
        "dedicated": Tokens(none | {"rejected": 60}),
        "unallocated": Tokens(none | {"lost": 90}),
    }
    paid = {"borrowed": Fraction(2), "dedicated": Fraction(12)}
    return allocation, tokens, token_cost(("8/40", "12/60", "2/40", "14/100"), Fraction(2, 5), 100, paid=paid)


def test_the_dollars_on_both_sides() -> None:
    allocation, _, cost = run()
    spend = frontier.spend(allocation, cost)
    assert isinstance(spend, Spend)
    assert spend.inference_usd == 30
    # 100 tokens at 0.2, and train, sync, transfer and energy of the dedicated device.
    assert (spend.rollouts_usd, spend.other_training_usd, spend.training_usd) == (20, 10, 30)
    assert (spend.rollout_share, spend.borrowed_share, spend.cost_ratio) == (Fraction(2, 3), Fraction(2, 5), 0.25)
    # With borrowing, training cost what was paid for it: 12 + 2 + 10.
    assert spend.training_with_borrowing_usd == pytest.approx(24)
    assert spend.kappa3 == pytest.approx(30 / 24)


@given(*[st.integers(1, 10**12) for _ in range(3)], st.integers(0, 10**6), st.integers(1, 10**6))
def test_with_borrowing_training_cost_what_was_paid(
    dedicated: int, borrowed: int, other: int, borrowed_tokens: int, dedicated_tokens: int
) -> None:
    useful = borrowed_tokens + dedicated_tokens
    paid = borrowed if borrowed_tokens else 0
    c_d = Fraction(dedicated, dedicated_tokens)
    c_o = Fraction(borrowed, borrowed_tokens) if borrowed_tokens else Fraction(0)
    shares = {"borrowed_share": Fraction(borrowed_tokens, useful), "cost_ratio": c_o / c_d}
    dollars = {"inference_usd": Fraction(1), "rollouts_usd": c_d * useful, "other_training_usd": Fraction(other)}
    spend = Spend(**dollars, **shares)
    assert spend.training_with_borrowing_usd == pytest.approx(dedicated + paid + other)


def test_what_is_missing_is_said_and_not_taken_as_nothing() -> None:
    allocation, _, cost = run()
    no_serving = Allocation(devices=allocation.devices[1:])
    assert "no serving device spent time on serving" in str(frontier.spend(no_serving, cost))
    assert "the bill of the fleet's run" in str(frontier.spend(no_serving, cost, shares_fleet=True))
    for line, usd, says in (
        ("dedicated", None, "no useful token was made on dedicated devices"),
        ("opportunistic", Fraction(-1), "borrowing lowered the bill"),
    ):
        assert says in str(frontier.spend(allocation, replace(cost, by_line={**cost.by_line, line: usd})))


def test_what_a_slack_second_yields() -> None:
    allocation, tokens, _ = run()
    groups = Groups(trajectories=38, judged_groups=4, judged_groups_trajectories=32, rows=[])
    # 50 of the 200 tokens were made in the 8 borrowed seconds: 9.5 of the 38 trajectories, 6 seconds were updates.
    assert frontier.slack(allocation, tokens, groups) == (19 / 16 / 32, 1 / 6)
    assert "no group was judged" in str(frontier.slack(allocation, tokens, replace(groups, judged_groups=0)))
    assert "no update was made" in str(frontier.slack(allocation.in_pools("serving"), tokens, groups))
    outside = frontier.slack(allocation.in_pools("serving"), tokens, groups, updates=8)
    assert "8 updates ran outside the fleet" in str(outside)
    assert "no rollout ran on a serving device" in str(frontier.slack(allocation.in_pools("rollout"), tokens, groups))


def many_steps(made: list[events.Event]) -> list[events.Event]:
    """The sample with its groups in each of twelve steps, and g0 solved in the later ones only; updates between."""
    grouped = [event for event in made if isinstance(event, events.Turn | events.Trajectory | events.Verdict)]
    rest = [event for event in made if event not in grouped]
    for step in range(12):
        for event in grouped:
            ids = {name: f"{getattr(event, name)}-{step}" for name in ("group_id", "trajectory_id")}
            copy = replace(event, step=step, **ids)
            if isinstance(copy, events.Verdict) and event.trajectory_id == "t0" and step < 6:
                copy = replace(copy, accepted=False)
            rest.append(copy)
        counts: Any = {"groups": 3, "trajectories": 9, "trajectories_accepted": 3, "tokens_trained": 1}
        times: Any = {"rollout_ns": 1, "train_ns": 90 * 10**9, "sync_ns": 1, "total_ns": 1}
        unknown: Any = dict.fromkeys(("entropy", "kl", "grad_norm"))
        rest.append(events.Step(step=step, reward_mean=0, loss=0, **counts, **times, **unknown))
    return rest


def test_the_frontier_of_a_run(sample_made: list[events.Event], write_ledger: Callable[..., Path]) -> None:
    with priced(Ledger(write_ledger(many_steps(sample_made)))) as run:
        answer = frontier.frontier(run)
    eta = answer.table("elasticities")
    assert eta.row(frontier.N)["value"].value == 3
    # 12 groups each of 4, 4 and 1 trajectories: the usual one has 4.
    assert "24 judged groups of 4 or more" in eta.row(frontier.ETA_N)["value"].text
    assert (eta.row(frontier.ETA_T)["value"].value or 0) > 0
    assert "33 groups; training before them grew 11-fold" in eta.row(frontier.ETA_T)["rests on"]
    # Three of the six judged in each step were accepted, and t0 of the first six steps was not: 30 of 72.
    assert eta.row(frontier.INDEPENDENT)["value"].value == pytest.approx(formulas.best_of_n_elasticity(30 / 72, 3))
    assert "an elasticity is not known" in eta.row(frontier.LEFT)["value"].text
    for name in (frontier.TWO_LINES, frontier.THREE_LINES):
        row = answer.table("answers").row(name)
        assert row["side"] == frontier.UNKNOWN
        assert row["training"].value is not None
        assert row["inference"].value is None
    assert "not enough data" in answer.paragraph("rollouts").text
    assert "Independent tries always stay below 1%" in answer.paragraph("rollouts").text
    json.dumps(answer.to_json(), allow_nan=False)


def test_the_dollars_of_the_sample(priced_sample: PricedRun) -> None:
    run = priced_sample
    answer = frontier.frontier(run)
    inference, training, as_paid, psi, phi, _, threshold, kappa3 = (
        row["value"].value for row in answer.table("spend").records()
    )
    # Two half hours of 720 s of serving at $2.35 an hour.
    assert inference == 940_000_000
    # 7000 useful tokens at 1.41 / 5600, and the dedicated device's 1080 s of updates and 72 s of syncs.
    assert training == 1_762_500_000 + 752_000_000
    assert psi == pytest.approx(1.7625 / 2.5145)
    assert phi == pytest.approx(0.2)
    borrowed = round(sum(run.cost.paid.values()) * 10**9) - 1_410_000_000
    assert as_paid == pytest.approx(1_410_000_000 + 752_000_000 + borrowed, abs=2)
    assert threshold == pytest.approx(0.94 / 2.5145)
    assert kappa3 == pytest.approx(940_000_000 / as_paid)
    assert answer.table("answers").row(frontier.FREE)["side"] == frontier.UNKNOWN
    rests_on = {row["what"]: row["rests on"] for row in answer.table("elasticities").records()}
    assert "2 judged groups of 4 or more trajectories" in rests_on[frontier.ETA_N]
    assert "0 steps were judged after the first update" in rests_on[frontier.ETA_T]
