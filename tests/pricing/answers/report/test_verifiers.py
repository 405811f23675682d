from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from rose.pricing.answers import report
from rose.pricing.answers.report.verifiers import JUDGED, procurement
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import PricedRun, priced
from rose.pricing.run.token_spread import UNKNOWN

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
    lines = ["probe,verifier,probability,correct"]
    for n in range(60):
        lines += [f"p{n},careful,{0.9 if n % 2 else 0.1},{n % 2}", f"p{n},hasty,1,{n % 2}"]
    probes = tmp_path / "probes.csv"
    probes.write_text("\n".join(lines))
    with priced(sample_kept, price_book=book) as run:
        answer, strict = procurement(run, probes), procurement(run, probes, 0.95)
        per_trajectory = sum(run.cost.paid.values(), Fraction(0)) / 6
        judged = answer.figure("cost", JUDGED, "per correct")
        assert judged == run.make.money(per_trajectory, judged.view, per="judged trajectory")
        # Half of the probes are correct: each costs two trajectories and two verdicts.
        for name, verdict in (("careful", Fraction(1, 100)), ("hasty", Fraction(0))):
            expected = run.make.money(2 * (per_trajectory + verdict), "").value
            assert answer.figure("cost", name, "per correct").value == expected
    assert [row[0] for row in answer.table("scores").rows] == ["careful", "hasty"]
    careful, hasty = ({**answer.table("scores").row(name), **answer.table("cost").row(name)} for name in COSTS)
    assert (careful["Brier"].value, careful["PPV"].text) == (pytest.approx(0.01), "100.0%")
    assert hasty["logarithmic"].text == "infinite: 30 reported as certain turned out otherwise"
    assert (hasty["Brier"].value, hasty["PPV"].value, hasty["FPR"].value) == (0.5, 0.5, 1)
    # Wrongly accepted answers cost nothing here, so the free one is cheaper for each correct one, in every draw.
    assert answer.text("says").startswith("hasty makes a correct answer cheapest")
    assert answer.table("scores").view == hasty["Brier"].basis == "file probes.csv"
    # What a trajectory cost has no interval, so a correct answer's cost has none either.
    assert (careful["per correct"].interval_text, careful["per correct"].no_interval) == ("", UNKNOWN)
    assert [strict.figure("cost", name, "accepts").value for name in COSTS] == [0, 1]
    json.dumps(answer.to_json(), allow_nan=False)


def test_the_run_s_own_verdicts_are_probes_where_their_truth_is_known(priced_sample: PricedRun) -> None:
    run = priced_sample
    answer = procurement(run)
    # t0 and t2 accepted and correct, t4 accepted and wrong; stale or not.
    assert answer.figure("scores", "v", "saw").value == 3
    row = answer.table("cost").row("v")
    assert row["PPV"].value == pytest.approx(2 / 3)
    assert "no [[verifier]] for verifier 'v'" in row["a verdict"].text
    assert row["per correct"].text == row["a verdict"].text
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
        assert "no verdict of run" in report.sections(run)["verifiers"].text("missing")
