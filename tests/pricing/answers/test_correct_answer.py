import json
from typing import Any, get_args

import pytest

from rose.pricing.answers import breakdown, levers
from rose.pricing.answers.breakdown import UNALLOCATED
from rose.pricing.answers.correct_answer import C3, C3_PER_CORRECT, FACTORS, cost
from rose.pricing.figures import BLENDED
from rose.pricing.run.cost_per_correct import LINES
from rose.pricing.run.priced import PricedRun
from rose.pricing.run.tokens import UNKNOWN
from rose.pricing.table import Section
from tests.pricing.conftest import shown


@pytest.fixture(scope="module")
def answers(priced_sample: PricedRun) -> dict[str | None, Section]:
    return {way: cost(priced_sample, way) for way in (None, *get_args(breakdown.By))}


def test_the_cost_of_the_sample(answers: dict[str | None, Section]) -> None:
    answer = answers[None]
    json.dumps(answer.to_json(), allow_nan=False)
    blended = answer.table("lines").row("blended")
    # C3 = 2 * 4 * (1 + pi * 2) / (2 / 3), PPV 1 / 2.
    pi, c3 = blended["over serving's price"].value, answer.figure("c3", C3)
    assert c3.value == pytest.approx(12e9 * (1 + 2 * pi), abs=2)
    assert answer.figure("c3", C3_PER_CORRECT).value == pytest.approx(24e9 * (1 + 2 * pi), abs=4)
    assert (c3.unit, c3.view, c3.basis) == ("nano_usd/million answer tokens", BLENDED, "price book")
    # One hour of rollouts by hand says nothing of how steady a token's price was, and it says so.
    assert (c3.low, c3.high, c3.no_interval) == (None, None, UNKNOWN)
    lines = answer.table("lines").records()
    assert [row["rollout tokens priced at"] for row in lines] == list(LINES)
    for row in lines:
        assert row["list price"].no_interval is not None
        assert row["1,000 accepted"].no_interval is not None
    assert blended["list price"].value == c3.value
    factors = {name: answer.figure("c3", words) for name, words in FACTORS.items()}
    assert factors["cpm"].value == 2_000_000_000
    assert [factors[name].value for name in ("r", "rho", "ppv")] == [4, 2, 0.5]
    assert factors["alpha"].low is not None
    assert "parts" not in answer.parts


def test_the_levers_of_the_sample(answers: dict[str | None, Section]) -> None:
    table, c3 = answers[None].table("levers"), answers[None].figure("c3", C3).value or 0

    def row(name: str) -> dict[str, Any]:
        return table.row(levers.WORDS[name])

    names = {"alpha", "cpm", "r", "one_plus_rho", "phi", "waste"}
    assert {row["lever"] for row in table.records()} == {levers.WORDS[name] for name in names}
    saved = [row["saves"].value for row in table.records()]
    assert saved == sorted(saved, reverse=True)
    assert "saves $" in answers[None].paragraph("says").text
    cpm, alpha = row("cpm"), row("alpha")
    assert (cpm["value"].text, cpm["a tenth better"].text) == ("$2.00", "$1.80")
    assert alpha["elasticity"].value == -1
    assert alpha["derivative"].unit == "nano_usd/million answer tokens/alpha"
    assert alpha["derivative"].value == pytest.approx(-1.5 * c3, abs=2)
    # Amounts and words stay whole at the width of a terminal.
    text = shown([table])
    assert all(word in text for row in table.plain().texts() for cell in row for word in cell.split())
    assert max(map(len, text.splitlines())) <= 100


def test_the_rows_of_each_breakdown_sum_to_the_run(answers: dict[str | None, Section]) -> None:
    whole = answers[None].table("lines").row("blended")["1,000 accepted"].value
    for way in get_args(breakdown.By):
        parts = answers[way].table("parts")
        cost, accepted = (sum(row[column].value for row in parts.records()[:-1]) for column in ("cost", "accepted"))
        total = parts.row("run")
        assert (total["cost"].value, total["accepted"].value) == (cost, accepted)
        assert accepted == 3
        assert round(1000 * cost / accepted) == whole == total["1,000 accepted"].value
        assert parts.rows[-1][0] == UNALLOCATED
        assert "belongs to no row" in parts.row(UNALLOCATED)["1,000 accepted"].text
    by_step = answers["step"].table("parts")
    assert [row[0] for row in by_step.rows] == ["1", "2", UNALLOCATED]
    # Step 2: 4000 of the 5600 tokens that were made on the dedicated device for $1.41.
    assert by_step.row("2")["cost"].value == pytest.approx(1.41e9 * 4000 / 5600, abs=1)
    assert by_step.row("2")["accepted"].value == 2
