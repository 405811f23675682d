from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from rose.pricing.borrowing.report import alternatives
from rose.pricing.borrowing.report.waterfall import (
    ADDED,
    BORROWED,
    DEDICATED,
    PAID_ANYWAY,
    PRICE,
    SPEED,
    WASTE,
    loaded_says,
    waterfall,
)
from rose.pricing.figures import Figure
from rose.pricing.run.priced import PricedRun
from rose.pricing.table import Section, Table
from tests.pricing.conftest import section


@pytest.fixture(scope="module")
def made(priced_sample: PricedRun) -> Section:
    return waterfall(priced_sample)


def costs(steps: Table) -> dict[str, Figure]:
    return {name: figure for name, figure, _ in steps.rows}


def running(steps: Table) -> dict[str, int]:
    """What the steps before each whole come to, by the whole's name."""
    sums, so_far = {}, 0
    for number, (name, figure, _) in enumerate(steps.rows):
        if number in steps.marks and number:
            sums[name] = so_far
        else:
            so_far += figure.value or 0
    return sums


def test_steps_add_up_to_every_whole_to_the_nano_dollar(made: Section, priced_sample: PricedRun) -> None:
    steps = made.table("steps")
    wholes = {steps.rows[number][0]: steps.rows[number][1].value for number in steps.marks}
    assert running(steps) == {name: wholes[name] for name in (BORROWED, ADDED)}
    compared = alternatives.comparison(priced_sample)
    assert wholes == {
        DEDICATED: compared.figure("savings", alternatives.CAPACITY).value,
        BORROWED: compared.figure("device_time", "borrowed", "cost").value,
        ADDED: compared.figure("bill", "borrowed", "added to the bill").value,
    }


def test_each_factor_is_changed_after_the_other(made: Section) -> None:
    """Both devices have one price, and only the borrowed one made stale and lost tokens."""
    steps = made.table("steps")
    by_name = costs(steps)
    assert by_name[PRICE].value == 0
    assert by_name[SPEED].value is not None
    assert (by_name[WASTE].value or 0) > 0
    assert by_name[PAID_ANYWAY].value == -(by_name[BORROWED].value or 0)
    for _, figure, why in steps.rows:
        assert why
        assert (figure.value is None) == (figure.basis == "absent" or why.startswith("not enough data"))


def test_what_is_not_known_is_said_and_not_nothing(made: Section) -> None:
    missing = [name for name, figure in costs(made.table("steps")).items() if figure.value is None]
    assert missing
    assert all(name.replace("_", " ") in made.text("unknown") for name in missing)


def test_why_fully_loaded_differs_multiplies_to_the_ratio(made: Section) -> None:
    assert "idle time" in made.text("loaded")
    assert "cost 3 times as much" in loaded_says({"price": Fraction(2), "speed": Fraction(3, 2)})


def test_without_dedicated_devices_speed_and_waste_are_assumed(write_ledger: Any, sample_made: Any) -> None:
    own = [event for event in sample_made if getattr(event, "device_id", None) != "r0"]
    answer = section(write_ledger(own), waterfall)
    by_name = costs(answer.table("steps"))
    assert (by_name[SPEED].value, by_name[WASTE].value) == (None, None)
    assert by_name[DEDICATED].basis == "assumed"
    assert running(answer.table("steps"))[ADDED] == by_name[ADDED].value
    assert "loaded" not in answer.parts
