from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from rose.pricing.answers import breakdown
from rose.pricing.answers.breakdown import UNALLOCATED
from rose.pricing.answers.cost_per_correct import LINES
from rose.pricing.answers.report.cost_per_correct import Answers, answers
from rose.pricing.figures import BLENDED
from rose.pricing.run.priced import priced
from rose.pricing.run.token_spread import UNKNOWN


@pytest.fixture(scope="module")
def documents(sample_kept: Path) -> list[Answers]:
    """Without a breakdown, then with each."""
    with priced(sample_kept) as priced_run:
        return [answers(priced_run, way) for way in (None, *get_args(breakdown.By))]


def test_the_document_of_the_sample(documents: list[Answers]) -> None:
    document = documents[0]
    out: dict[str, Any] = json.loads(json.dumps(document.to_json(), allow_nan=False))
    # C3 = 2 * 4 * (1 + pi * 2) / (2 / 3), PPV 1 / 2.
    pi = document.lines["blended"].pi.value
    assert pi is not None
    assert out["c3"]["value"] == pytest.approx(12e9 * (1 + 2 * pi), abs=2)
    assert out["c3_per_correct"]["value"] == pytest.approx(24e9 * (1 + 2 * pi), abs=4)
    assert (document.c3.unit, document.c3.view, document.c3.basis) == (
        "nano_usd/million answer tokens",
        BLENDED,
        "price book",
    )
    # One hour of rollouts by hand says nothing of how steady a token's price was, and it says so.
    assert (document.c3.low, document.c3.high) == (None, None)
    assert document.c3.no_interval == out["c3"]["no_interval"] == UNKNOWN
    assert list(document.lines) == list(LINES)
    for line in document.lines.values():
        assert line.formula.no_interval is not None
        assert line.measured.no_interval is not None
    assert document.lines["blended"].formula.value == document.c3.value
    factors = {name: figure.value for name, figure in document.factors.items()}
    assert factors["cpm"] == 2_000_000_000
    assert (factors["r"], factors["rho"], factors["ppv"]) == (4, 2, 0.5)
    assert document.factors["alpha"].low is not None
    assert (document.by, document.parts) == (None, ())


def test_the_levers_of_the_sample(documents: list[Answers]) -> None:
    document = documents[0]
    assert {lever.name for lever in document.levers} == {"alpha", "cpm", "r", "one_plus_rho", "phi", "waste"}
    saved = [lever.tenth_saves.value or 0 for lever in document.levers]
    assert saved == sorted(saved, reverse=True)
    assert "saves $" in document.in_words
    cpm = next(lever for lever in document.levers if lever.name == "cpm")
    assert (cpm.value.text, cpm.tenth_to.text) == ("$2.00", "$1.82")
    assert cpm.standard_error.text == "does not apply: a price"
    alpha = next(lever for lever in document.levers if lever.name == "alpha")
    assert alpha.elasticity.value == -1
    assert alpha.derivative.unit == "nano_usd/million answer tokens/alpha"
    assert alpha.derivative.value == pytest.approx(-1.5 * (document.c3.value or 0), abs=2)


def test_the_rows_of_each_breakdown_sum_to_the_run(documents: list[Answers]) -> None:
    whole = documents[0].lines["blended"].measured.value
    for document in documents[1:]:
        cost, accepted = (sum(int(getattr(p, name).value) for p in document.parts) for name in ("cost", "accepted"))
        assert accepted == 3
        assert round(cost / accepted) == whole
        assert document.parts[-1].key == UNALLOCATED
        assert "belongs to no row" in document.parts[-1].per_accepted.text
    by_step = {part.key: part for part in documents[3].parts}
    assert list(by_step) == ["1", "2", UNALLOCATED]
    # Step 2: 4000 of the 5600 tokens that were made on the dedicated device for $1.41.
    assert by_step["2"].cost.value == pytest.approx(1.41e9 * 4000 / 5600, abs=1)
    assert by_step["2"].accepted.value == 2
