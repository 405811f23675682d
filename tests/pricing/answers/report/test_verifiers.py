from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from rose.pricing.answers.report.verifiers import procurement
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import priced
from rose.pricing.run.token_spread import UNKNOWN

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
    lines = ["probe,verifier,probability,correct"]
    for n in range(60):
        lines += [f"p{n},careful,{0.9 if n % 2 else 0.1},{n % 2}", f"p{n},hasty,1,{n % 2}"]
    probes = tmp_path / "probes.csv"
    probes.write_text("\n".join(lines))
    with priced(sample_kept, price_book=book) as run:
        document = procurement(run, probes)
        strict = procurement(run, probes, 0.95)
        per_trajectory = sum(run.cost.paid.values(), Fraction(0)) / 6
        assert document.per_trajectory == run.make.money(
            per_trajectory, document.per_trajectory.view, per="judged trajectory"
        )
        costs = {v.name: v.per_correct.value for v in document.verifiers}
        # Half of the probes are correct: each costs two trajectories and two verdicts.
        assert costs == {
            "careful": run.make.money(2 * (per_trajectory + Fraction(1, 100)), "").value,
            "hasty": run.make.money(2 * per_trajectory, "").value,
        }
    careful, hasty = document.verifiers
    assert (careful.name, careful.brier.value, careful.ppv.text) == ("careful", pytest.approx(0.01), "100.0%")
    assert hasty.logarithmic.text == "infinite: 30 reported as certain turned out otherwise"
    assert (hasty.brier.value, hasty.ppv.value, hasty.fpr.value) == (0.5, 0.5, 1)
    # Wrongly accepted answers cost nothing here, so the free one is cheaper for each correct one, in every draw.
    assert document.cheapest == "hasty"
    assert document.probes == "file probes.csv"
    assert hasty.brier.basis == "file probes.csv"
    # What a trajectory cost has no interval, so a correct answer's cost has none either.
    assert (careful.per_correct.interval_text, careful.per_correct.no_interval) == ("", UNKNOWN)
    assert {v.name: v.accept_rate.value for v in strict.verifiers} == {"careful": 0, "hasty": 1}
    json.dumps(document.to_json(), allow_nan=False)


def test_the_run_s_own_verdicts_are_probes_where_their_truth_is_known(sample_kept: Path) -> None:
    with priced(sample_kept) as run:
        document = procurement(run)
        (v,) = document.verifiers
        # t0 and t2 accepted and correct, t4 accepted and wrong; stale or not.
        assert (v.name, v.saw.value, v.ppv.value) == ("v", 3, pytest.approx(2 / 3))
        assert "no [[verifier]] for verifier 'v'" in v.price.text
        assert v.per_correct.text == v.price.text
        assert document.cheapest is None
        with pytest.raises(PricingError, match="--threshold is for --probes"):
            procurement(run, threshold=0.5)


def test_without_a_probe_there_is_nothing_to_score(sample_kept: Path, tmp_path: Path) -> None:
    empty = tmp_path / "probes.csv"
    empty.write_text("probe,verifier,probability,correct\n")
    with priced(sample_kept) as run:
        run.connection.execute("UPDATE verdict SET correct = NULL")
        with pytest.raises(PricingError, match="no verdict of run 'run' has its truth recorded"):
            procurement(run)
        with pytest.raises(PricingError, match="has no rows"):
            procurement(run, empty)
