from __future__ import annotations

import json
from typing import Any

import pytest

from rose.pricing.answers import levers
from rose.pricing.answers.cost import C3, C3_PER_CORRECT, FACTORS, cost
from rose.pricing.answers.cost_per_correct import LINES
from rose.pricing.figures import BLENDED
from rose.pricing.run.priced import PricedRun
from rose.pricing.run.token_spread import UNKNOWN
from rose.pricing.table import Section
from tests.pricing.conftest import shown


@pytest.fixture(scope="module")
def answer(priced_sample: PricedRun) -> Section:
    return cost(priced_sample)


def test_the_cost_of_the_sample(answer: Section) -> None:
    json.dumps(answer.to_json(), allow_nan=False)
    blended = answer.table("lines").row("blended")
    # C3 = 2 * 4 * (1 + pi * 2) / (2 / 3), PPV 1 / 2.
    pi, c3 = blended["pi"].value, answer.figure("c3", C3)
    assert c3.value == pytest.approx(12e9 * (1 + 2 * pi), abs=2)
    assert answer.figure("c3", C3_PER_CORRECT).value == pytest.approx(24e9 * (1 + 2 * pi), abs=4)
    assert (c3.unit, c3.view, c3.basis) == ("nano_usd/million answer tokens", BLENDED, "price book")
    # One hour of rollouts by hand says nothing of how steady a token's price was, and it says so.
    assert (c3.low, c3.high, c3.no_interval) == (None, None, UNKNOWN)
    lines = answer.table("lines").records()
    assert [row["rollout tokens priced at"] for row in lines] == list(LINES)
    for row in lines:
        assert row["formula"].no_interval is not None
        assert row["per accepted"].no_interval is not None
    assert blended["formula"].value == c3.value
    factors = {name: answer.figure("c3", words) for name, words in FACTORS.items()}
    assert factors["cpm"].value == 2_000_000_000
    assert [factors[name].value for name in ("r", "rho", "ppv")] == [4, 2, 0.5]
    assert factors["alpha"].low is not None


def test_the_levers_of_the_sample(answer: Section) -> None:
    table, c3 = answer.table("levers"), answer.figure("c3", C3).value or 0

    def row(name: str) -> dict[str, Any]:
        return table.row(levers.WORDS[name])

    names = {"alpha", "cpm", "r", "one_plus_rho", "phi", "waste"}
    assert {row["lever"] for row in table.records()} == {levers.WORDS[name] for name in names}
    saved = [row["saves"].value for row in table.records()]
    assert saved == sorted(saved, reverse=True)
    assert "saves $" in answer.text("says")
    cpm, alpha = row("cpm"), row("alpha")
    assert (cpm["value"].text, cpm["a tenth better"].text) == ("$2.00", "$1.82")
    assert alpha["elasticity"].value == -1
    assert (alpha["derivative"].unit, alpha["derivative"].value) == (
        "nano_usd/million answer tokens/alpha",
        pytest.approx(-1.5 * c3, abs=2),
    )
    # Amounts and words stay whole at the width of a terminal.
    text = shown([table])
    assert all(word in text for row in table.plain().texts() for cell in row for word in cell.split())
    assert max(map(len, text.splitlines())) <= 100
