import json
from dataclasses import replace
from fractions import Fraction
from math import inf, log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.ledger.ledger import Ledger
from rose.pricing.answers import correct_answer, verifiers
from rose.pricing.answers.probes import Probe
from rose.pricing.answers.verifiers import JUDGED, procurement
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.run.tokens import UNKNOWN
from rose.pricing.stats import bootstrap
from tests.pricing.answers.conftest import width


def reports(
    pairs: list[tuple[float, bool]], name: str = "v", start: int = 0, threshold: float = 0.5, group: str | None = None
) -> list[Probe]:
    return [
        Probe(f"p{n}", name, probability, correct, probability >= threshold, group or f"p{n}")
        for n, (probability, correct) in enumerate(pairs, start)
    ]


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), st.floats(0.001, 0.999))
def test_scores_are_best_where_the_true_chance_is_reported(drawn: tuple[int, int], other: float) -> None:
    size, correct = drawn
    truths = [True] * correct + [False] * (size - correct)

    def scored(probability: float) -> verifiers.Scores:
        return verifiers.score(reports([(probability, truth) for truth in truths]))

    honest, dishonest = scored(correct / size), scored(other)
    off = abs(other - correct / size)
    assert dishonest.brier == pytest.approx(honest.brier + off**2)
    assert honest.logarithmic is not None
    assert dishonest.logarithmic is not None
    # Strictly: worse by at least twice the square of how far off it is (Pinsker).
    assert dishonest.logarithmic >= honest.logarithmic + 2 * off**2 - 1e-9


def test_scores_by_hand() -> None:
    scores = verifiers.score(reports([(0.9, True), (0.9, False), (0.2, False), (0.2, True), (0.6, True)]))
    assert scores.brier == pytest.approx((0.01 + 0.81 + 0.04 + 0.64 + 0.16) / 5)
    assert scores.logarithmic == pytest.approx(-(2 * log(0.9 * 0.1) / 2 + log(0.8) + log(0.2) + log(0.6)) / 5)
    assert scores.rates == (3 / 5, 2 / 3, 1 / 2, 2 / 3)
    # Certainty that turns out wrong is infinite, and not cut off.
    scores = verifiers.score(reports([(1.0, False), (0.0, True), (1.0, True), (0.0, False)]))
    assert (scores.logarithmic, scores.certain_and_wrong) == (None, 2)
    assert scores.brier == 0.5
    sure = verifiers.score(reports([(1.0, True), (0.0, False)]))
    assert (sure.logarithmic, sure.certain_and_wrong, sure.brier) == (0, 0, 0)
    # Rates that have nothing to divide by are none.
    assert verifiers.score(reports([(0.1, False)])).rates == (0, None, 0, None)
    assert verifiers.score(reports([(0.1, True)])).rates == (0, 0, None, None)


def noisy(name: str, right: float, count: int = 300) -> list[Probe]:
    """A verifier that reports 0.9 or 0.1, and is right in so many of the cases; every other answer is correct."""
    pairs = [(0.9 if (n % 2 == 0) == ((n // 2) % 100 < 100 * right) else 0.1, n % 2 == 0) for n in range(count)]
    return reports(pairs, name)


PRICE = Fraction(1, 100)


def cheapest(compared: verifiers.VerifierComparison) -> str | None:
    surely = [v.name for v in compared.verifiers if (v.chance_cheapest or 0) >= bootstrap.CONFIDENCE]
    return surely[0] if surely else None


def test_the_cost_of_a_correct_answer_has_the_verdict_s_price_in_it() -> None:
    comparison = verifiers.compare(noisy("v", 0.9, 200), Fraction(4, 100), {"v": PRICE})
    (v,) = comparison.verifiers
    # 0.05 a judged trajectory; alpha 0.5 and PPV 0.9.
    assert v.usd_per_correct == Fraction(5, 100) / Fraction(1, 2) / Fraction(9, 10)
    assert v.interval is not None
    assert v.interval.low <= float(v.usd_per_correct) <= (v.interval.high or inf)
    assert v.chance_cheapest is None
    assert "Only v judged the probes" in comparison.says


def test_a_better_verifier_is_the_cheapest_until_its_price_outweighs_it() -> None:
    both = noisy("good", 0.9) + noisy("poor", 0.6)
    comparison = verifiers.compare(both, Fraction(4, 100), {"good": PRICE, "poor": PRICE})
    assert [v.name for v in comparison.verifiers] == ["good", "poor"]
    assert cheapest(comparison) == "good"
    assert comparison.shared == 300
    dear = verifiers.compare(both, Fraction(4, 100), {"good": 10 * PRICE, "poor": PRICE})
    assert [v.name for v in dear.verifiers] == ["good", "poor"]  # by Brier, whatever it costs
    assert cheapest(dear) == "poor"
    assert sum([v.chance_cheapest or 0 for v in dear.verifiers]) == pytest.approx(1)


def test_what_cannot_be_told_yet_is_not_told() -> None:
    alike = verifiers.compare(noisy("a", 0.9) + noisy("b", 0.88), PRICE, {"a": PRICE, "b": PRICE})
    assert cheapest(alike) is None
    assert "is not yet clear: a is the cheapest in" in alike.says
    twins = verifiers.compare(noisy("a", 0.9) + noisy("b", 0.9), PRICE, {"a": PRICE, "b": PRICE})
    assert [v.chance_cheapest for v in twins.verifiers] == [0.5, 0.5]
    few = verifiers.compare(noisy("a", 0.9, 20) + noisy("b", 0.1, 20), PRICE, {"a": PRICE, "b": PRICE})
    assert "20 probes were judged by all of them; need 30" in few.says
    unpriced = verifiers.compare(noisy("a", 0.9) + noisy("b", 0.6), PRICE, {"a": PRICE, "b": None})
    assert "what an answer costs with b is not known" in unpriced.says
    assert [v.chance_cheapest for v in unpriced.verifiers] == [None, None]
    no_run = verifiers.compare(noisy("a", 0.9) + noisy("b", 0.6), None, {"a": PRICE, "b": PRICE})
    assert "with a, b is not known" in no_run.says


def test_verifiers_are_compared_on_the_probes_that_all_of_them_saw() -> None:
    good, poor = noisy("good", 0.9), noisy("poor", 0.6)
    comparison = verifiers.compare(good + poor[:100], PRICE, {"good": PRICE, "poor": PRICE})
    assert comparison.shared == 100
    assert {v.name: (v.saw, v.scores.probes) for v in comparison.verifiers} == {"good": (300, 100), "poor": (100, 100)}
    apart = verifiers.compare(good[:100] + poor[100:], PRICE, {"good": PRICE, "poor": PRICE})
    assert (apart.shared, cheapest(apart)) == (0, None)
    assert "no probe was judged by all of them" in apart.says
    assert {v.name: v.scores.probes for v in apart.verifiers} == {"good": 100, "poor": 200}


def test_one_that_accepts_nothing_correct_is_never_the_cheapest() -> None:
    blind = reports([(0.1, n % 2 == 0) for n in range(300)], "blind")
    comparison = verifiers.compare(noisy("good", 0.9) + blind, PRICE, {"good": PRICE, "blind": Fraction(0)})
    assert cheapest(comparison) == "good"
    cost = {v.name: (v.usd_per_correct, v.interval, v.chance_cheapest) for v in comparison.verifiers}
    assert cost["blind"] == (None, None, 0)
    free = verifiers.compare(noisy("good", 0.9) + blind, Fraction(0), {"good": PRICE, "blind": Fraction(0)})
    assert cheapest(free) == "good"


@settings(max_examples=15)
@given(st.randoms())
def test_the_order_of_the_probes_makes_no_difference(random: Any) -> None:
    both = noisy("a", 0.9, 60) + noisy("b", 0.7, 60)
    shuffled = list(both)
    random.shuffle(shuffled)
    prices: dict[str, Fraction | None] = {"a": PRICE, "b": PRICE}
    assert verifiers.compare(shuffled, PRICE, prices) == verifiers.compare(both, PRICE, prices)


def test_probes_of_one_group_are_drawn_together() -> None:
    random = np.random.default_rng(2)
    easy = [bool(group) for group in random.integers(0, 2, size=40)]
    apart = reports([(0.9 if report else 0.1, report) for report in easy for _ in range(8)])
    together = [replace(probe, group=f"g{n // 8}") for n, probe in enumerate(apart)]
    widths = [
        width(verifiers.compare(probes, PRICE, {"v": PRICE}).verifiers[0].interval) for probes in (apart, together)
    ]
    assert widths[1] > 2 * widths[0]


COSTS = ("careful", "hasty")
TWO_VERIFIERS = """
[[verifier]]
name = "careful"
usd_per_verdict = 0.01
source = "offer 3"
source_date = 2026-05-01

[[verifier]]
name = "hasty"
usd_per_verdict = 0
source = "our own"
source_date = 2026-05-01
"""


def test_verifiers_on_probes_of_a_file(sample_kept: Path, tmp_path: Path) -> None:
    book = tmp_path / "book.toml"
    book.write_text(pricebook.load("example").text + TWO_VERIFIERS)
    lines = ["probe,verifier,probability,correct,accepted"]
    for n in range(60):
        lines += [f"p{n},careful,{0.9 if n % 2 else 0.1},{n % 2},{n % 2}", f"p{n},hasty,1,{n % 2},1"]
    probes = tmp_path / "probes.csv"
    probes.write_text("\n".join(lines))
    with priced(Ledger(sample_kept), price_book=book) as run:
        answer = procurement(run, probes)
        per_trajectory = sum(run.cost.paid.values(), Fraction(0)) / 6
        judged = answer.figure("cost", JUDGED, "1,000 correct")
        assert judged == run.make.money(1000 * per_trajectory, judged.view, per="1,000 judged trajectories")
        # Half of the probes are correct: each costs two trajectories and two verdicts.
        for name, verdict in (("careful", Fraction(1, 100)), ("hasty", Fraction(0))):
            expected = run.make.money(2000 * (per_trajectory + verdict), "").value
            assert answer.figure("cost", name, "1,000 correct").value == expected
    assert [row[0] for row in answer.table("scores").rows] == ["careful", "hasty"]
    careful, hasty = ({**answer.table("scores").row(name), **answer.table("cost").row(name)} for name in COSTS)
    assert (careful["Brier"].value, careful["PPV"].text) == (pytest.approx(0.01), "100.0%")
    assert hasty["logarithmic"].text == "infinite: 30 reported as certain turned out otherwise"
    assert (hasty["Brier"].value, hasty["PPV"].value, hasty["FPR"].value) == (0.5, 0.5, 1)
    # Wrongly accepted answers cost nothing here, so the free one is cheaper for each correct one, in every draw.
    assert answer.paragraph("says").text.startswith("hasty makes a correct answer cheapest")
    assert answer.table("scores").view == hasty["Brier"].basis == "file probes.csv"
    # What a trajectory cost has no interval, so a correct answer's cost has none either.
    assert (careful["1,000 correct"].short_interval, careful["1,000 correct"].no_interval) == ("-", UNKNOWN)
    assert [answer.figure("cost", name, "accepts").value for name in COSTS] == [0.5, 1]
    json.dumps(answer.to_json(), allow_nan=False)


def test_the_run_s_own_verdicts_are_probes_where_their_truth_is_known(priced_sample: PricedRun) -> None:
    run = priced_sample
    answer = procurement(run)
    # t0 and t2 accepted and correct, t4 accepted and wrong; stale or not.
    assert answer.figure("scores", "v", "saw").value == 3
    row = answer.table("cost").row("v")
    assert row["PPV"].value == pytest.approx(2 / 3)
    assert "no [[verifier]] for verifier 'v'" in row["a verdict"].text
    assert row["1,000 correct"].text == row["a verdict"].text


def test_without_a_probe_there_is_nothing_to_score(sample_kept: Path, tmp_path: Path) -> None:
    empty = tmp_path / "probes.csv"
    empty.write_text("probe,verifier,probability,correct,accepted\n")
    with priced(Ledger(sample_kept)) as run:
        run.connection.execute("UPDATE verdict SET correct = NULL")
        with pytest.raises(PricingError, match="no verdict of run 'run' has its truth recorded"):
            procurement(run)
        with pytest.raises(PricingError, match="has no rows"):
            procurement(run, empty)
        assert "no verdict of run" in correct_answer.sections(run)["verifiers"].paragraph("missing").text
