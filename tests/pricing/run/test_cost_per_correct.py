from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from rose.pricing import formulas
from rose.pricing.price_books import pricebook
from rose.pricing.run import cost_per_correct
from rose.pricing.run.cost_per_correct import Groups, Resamples, TokenCost
from rose.pricing.run.priced import PricedRun
from rose.pricing.run.tokens import UNKNOWN, Spread, Tokens
from rose.pricing.stats import bootstrap
from rose.pricing.stats.uncertainty import Estimate
from tests.pricing import reference
from tests.pricing.answers.conftest import EXACT, ends, token_cost, width

BOOK = pricebook.load("example")

SampleCosts = tuple[Groups, TokenCost, dict[str, Tokens]]

#: Midnight UTC at which the sample's run begins.
RUN_NS = 1_780_272_000 * 10**9
#: What the sample's borrow added to the bill; tests/pricing/marginal_cost/test_marginal.py has it by hand.
BORROW_USD = Fraction(413 * 1584) * Fraction(5, 4) / 36_000_000 + Fraction(4, 100)


@pytest.fixture(scope="module")
def sample_costs(priced_sample: PricedRun) -> SampleCosts:
    return priced_sample.groups, replace(priced_sample.cost, spreads=EXACT), dict(priced_sample.tokens)


def test_rates_of_the_sample(sample_costs: SampleCosts) -> None:
    groups, _, _ = sample_costs
    # Nine trajectories in three groups; g0 and g1 have an accepted one. Stale t2 is not judged, lost t3 neither.
    assert groups.rho == 2
    assert groups.alpha == Fraction(2, 3)
    assert groups.accept_rate == Fraction(3, 6)
    assert groups.ppv == Fraction(1, 2)
    assert groups.r == 4
    # No rejection is charged twice: (1 + rho) / alpha is trajectories over solved groups.
    assert (1 + groups.rho) / groups.alpha == Fraction(9, 2)


def test_token_prices_of_the_sample(sample_costs: SampleCosts) -> None:
    _, cost, made = sample_costs
    assert cost.by_line == {
        "serving": Fraction(94, 100) / 1400,
        "dedicated": Fraction(141, 100) / 5600,
        "opportunistic": BORROW_USD / 1400,
        "blended": (Fraction(141, 100) + BORROW_USD) / 7000,
    }
    assert cost.borrowed_share == Fraction(1, 5)
    # The same as p / (tau * (1 - w)), and the blend as the formula of the third price line has it.
    borrowed = made["borrowed"]
    assert borrowed.wasted_share is not None
    c = reference.useful_token_cost(2.35 / 3600, borrowed.generated / 1440, float(borrowed.wasted_share))
    assert float(cost.by_line["serving"] or 0) == pytest.approx(c)
    serving, dedicated, opportunistic = (float(cost.by_line[line] or 0) for line in cost_per_correct.LINES[:3])
    pi = formulas.rollout_price_ratio(serving, dedicated, opportunistic, 0.2)
    assert float(cost.pi("blended") or 0) == pytest.approx(pi)


def test_cost_per_accepted_is_a_sum_over_a_sum_and_the_formula_has_each_line(sample_costs: SampleCosts) -> None:
    groups, cost, _ = sample_costs
    measured = cost_per_correct.measured(cost, groups)
    assert measured["blended"] == (Fraction(141, 100) + BORROW_USD) / 3
    assert measured["dedicated"] == Fraction(141, 100) / 5600 * 7000 / 3
    assert cost_per_correct.measured(cost, replace(groups, accepted=0))["blended"] is None
    r = Fraction(4)
    assert cost_per_correct.formula(2.0, r, groups, Fraction(1)) == pytest.approx(2 * 4 * 3 / (2 / 3))
    pi = cost.pi("opportunistic")
    assert pi is not None
    assert cost_per_correct.formula(2.0, r, groups, pi) == pytest.approx(2 * 4 * (1 + float(pi) * 2) / (2 / 3))
    assert cost_per_correct.formula(2.0, None, groups, pi) is None
    assert cost_per_correct.formula(2.0, r, replace(groups, solved_groups=0), pi) is None
    assert cost_per_correct.formula(2.0, r, replace(groups, judged_groups=0), pi) is None


def test_the_interval_is_seeded_and_holds_the_figure(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    many = replace(groups, rows=[*groups.rows] * 30)
    drawn = cost_per_correct.resample(many)
    interval, over_ppv = cost_per_correct.measured_interval(cost, made, many, drawn, "blended")
    low, high = ends(interval)
    figure = float(cost_per_correct.measured(cost, groups)["blended"] or 0)
    # Thirty copies of the groups: a thirtieth of each dollar, over the accepted of one copy.
    assert low < figure / 30 < high
    assert ends(over_ppv)[0] < 2 * figure / 30
    again = cost_per_correct.measured_interval(cost, made, many, cost_per_correct.resample(many), "blended")
    assert again == (interval, over_ppv)
    assert cost_per_correct.resample(replace(groups, rows=groups.rows[:1])) is None
    assert cost_per_correct.measured_interval(cost, made, groups, None, "blended") == (None, None)


def test_resamples_with_nothing_accepted_leave_the_top_open(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    g0, _, g2 = groups.rows
    rare = replace(groups, rows=[g0, *[g2] * 39])
    interval, _ = cost_per_correct.measured_interval(cost, made, rare, cost_per_correct.resample(rare), "dedicated")
    assert interval is not None
    assert interval.high is None
    assert bootstrap.interval(np.full(10, np.nan), 100) is None
    few = cost_per_correct.measured_interval(cost, made, groups, cost_per_correct.resample(groups), "dedicated")
    assert few == (None, None)  # three groups


def test_the_bootstrap_agrees_with_theory(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    accepted = np.random.default_rng(1).binomial(8, 0.5, size=400)
    plain = dict(groups.rows[0]) | {"borrowed_tokens": 0, "dedicated_tokens": 1}
    many = replace(groups, rows=[plain | {"accepted": int(n)} for n in accepted])
    interval, _ = cost_per_correct.measured_interval(cost, made, many, cost_per_correct.resample(many), "dedicated")
    # Every group costs the same, so the ratio spreads as one over the mean of the accepted does, in ten blocks.
    dollars = float((cost.by_line["dedicated"] or 0) * made["dedicated"].useful)
    mean, error = accepted.mean(), accepted.reshape(10, 40).mean(axis=1).std(ddof=1) / np.sqrt(10)
    expected = [dollars / 400 / (mean + side * bootstrap.student(9) * error) for side in (1, -1)]
    assert ends(interval) == pytest.approx(expected, rel=0.02)


def test_each_group_has_its_tokens_and_they_are_those_of_the_run(sample_costs: SampleCosts) -> None:
    groups, _, made = sample_costs
    g0, g1, g2 = groups.rows
    # g0: t0 and the 400 of t1 on the borrowed device, 600 of t1 after its move; t2 was stale and t3 lost.
    assert (g0["borrowed_tokens"], g0["borrowed_useful"]) == (3400, 1400)
    assert (g0["dedicated_tokens"], g0["dedicated_useful"]) == (600, 600)
    assert (g1["dedicated_useful"], g2["dedicated_useful"]) == (4000, 1000)
    assert (g0["output_tokens"], g0["answer_tokens"]) == (3000, 750)
    assert [row["step"] for row in groups.rows] == [1, 2, 1]
    for place in ("borrowed", "dedicated"):
        assert sum(row[f"{place}_useful"] for row in groups.rows) == made[place].useful


def one_draw(**sums: float) -> Resamples:
    names = [name for name in Resamples.__slots__ if name != "units"]
    return Resamples(**{name: np.array([float(sums.get(name, 0))]) for name in names}, units=100)


@pytest.mark.parametrize(("phi", "cost"), [(0, 640), (0.5, 370), (1, 100)])
def test_a_draw_of_c3_is_the_golden_figure_of_the_third_price_line(phi: float, cost: float) -> None:
    judged = {"judged_groups": 4, "judged_groups_trajectories": 64, "alpha": 0.5, "ppv": 0.25}
    useful = {"borrowed_useful": 100 * phi, "dedicated_useful": 100 - 100 * phi}
    drawn = one_draw(output_tokens=10, answer_tokens=1, **judged, **useful)
    golden = token_cost((2, 2, "1/5", 1), 0.5, 100)
    interval, over_ppv = cost_per_correct.formula_interval(2.0, golden, drawn, "blended")
    assert ends(interval) == pytest.approx((cost, cost))
    assert ends(over_ppv) == pytest.approx((4 * cost, 4 * cost))
    # On a line of one price, pi is that price over serving's, whatever was borrowed.
    fixed, _ = cost_per_correct.formula_interval(2.0, golden, drawn, "opportunistic")
    assert ends(fixed) == pytest.approx((100, 100))


def test_time_that_runs_backwards_moves_no_interval(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    group_rows = ([*groups.rows] * 14)[:40]
    for line in cost_per_correct.LINES:
        intervals = []
        for order in (replace(groups, rows=group_rows), replace(groups, rows=group_rows[::-1])):
            drawn = cost_per_correct.resample(order)
            intervals.append(cost_per_correct.measured_interval(cost, made, order, drawn, line))
            intervals.append(cost_per_correct.formula_interval(2.0, cost, drawn, line))
        assert intervals[:2] == intervals[2:]


def test_a_borrow_that_lowered_the_bill_has_no_formula(sample_costs: SampleCosts) -> None:
    groups, cost, _ = sample_costs
    cheap = replace(cost, by_line={**cost.by_line, "blended": Fraction(-1)})
    assert cost_per_correct.formula(2.0, groups.r, groups, cheap.pi("blended")) is None
    many = replace(groups, rows=[*groups.rows] * 3)
    assert cost_per_correct.formula_interval(2.0, cheap, cost_per_correct.resample(many), "blended") == (None, None)


def test_token_prices_are_those_in_force_when_the_run_began() -> None:
    tokens_entry = BOOK.text[BOOK.text.index("[tokens]") :].partition("\n\n")[0]
    # The same prices until June 2026, twice as much from then on.
    dated = [
        tokens_entry.replace("[tokens]", "[[tokens]]\nvalid_to = 2026-06-01"),
        tokens_entry.replace("[tokens]", "[[tokens]]\nvalid_from = 2026-06-01").replace("= 3.00", "= 7.00"),
    ]
    book = pricebook.parse(BOOK.text.replace(tokens_entry, "\n\n".join(dated)), "dated.toml")
    assert cost_per_correct.cpm(book, RUN_NS - 1) == 2
    assert cost_per_correct.cpm(book, RUN_NS) == 4
    assert cost_per_correct.cpm(BOOK, RUN_NS) == 2


def test_a_token_s_price_moves_the_cost_and_one_that_is_not_known_leaves_no_interval(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    many = replace(groups, rows=[*groups.rows] * 30)
    drawn = cost_per_correct.resample(many)

    def spread(price: TokenCost) -> float:
        return width(cost_per_correct.measured_interval(price, made, many, drawn, "dedicated")[0])

    assert spread(replace(cost, spreads={"borrowed": Spread(0, 1), "dedicated": Spread(0.5, 9)})) > 1.5 * spread(cost)
    unknown = replace(cost, spreads={"borrowed": Spread(0, 1)})
    assert cost_per_correct.measured_interval(unknown, made, many, drawn, "dedicated") == (None, None)
    assert unknown.no_interval("dedicated") == unknown.no_interval("blended") == UNKNOWN
    assert unknown.no_interval("opportunistic") is None


def test_a_borrow_without_an_interval_leaves_none_to_what_rests_on_it(sample_costs: SampleCosts) -> None:
    groups, cost, made = sample_costs
    many = replace(groups, rows=[*groups.rows] * 30)
    vague = replace(cost, borrow=None, no_borrow_interval="energy: a guess")
    for line, why in (("opportunistic", "energy: a guess"), ("blended", "energy: a guess"), ("dedicated", None)):
        assert vague.no_interval(line) == why
        drawn = cost_per_correct.resample(many)
        interval, _ = cost_per_correct.measured_interval(vague, made, many, drawn, line)
        formula_interval, _ = cost_per_correct.formula_interval(2.0, vague, drawn, line)
        assert (interval is None) == (formula_interval is None) == (why is not None)


def test_a_share_of_everything_is_not_certain() -> None:
    groups = [{"judged": 8, "accepted": 8, "audited": 4, "audited_correct": 4}] * 12
    counts = {"judged": 96, "accepted": 96, "audited": 48, "audited_correct": 48}
    even = Groups(rows=groups, judged_groups=12, solved_groups=12, **counts)
    for columns in (("solved", "judged_groups"), ("accepted", "judged"), ("audited_correct", "audited")):
        assert ends(cost_per_correct.share_interval(even, *columns)) == (pytest.approx(0.7575, abs=1e-4), 1.0)
    nothing = replace(even, rows=[{**groups[0], "audited": 0, "audited_correct": 0}])
    assert cost_per_correct.share_interval(nothing, "audited_correct", "audited") is None


def test_the_borrow_s_own_interval_moves_the_price_of_its_tokens() -> None:
    drawn = token_cost((2, 3, 1, 2), 0.5, 20, borrow=Estimate(10.0, 5.0, 20.0)).price_draws("blended")
    # Half of the 20 useful tokens are borrowed.
    assert ends(bootstrap.interval(drawn["borrowed"], bootstrap.BLOCKS)) == pytest.approx([0.5, 2], abs=0.1)
    assert (drawn["dedicated"] == 3).all()
