from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.borrowing.report import alternatives, waterfall
from rose.pricing.borrowing.report.waterfall import (
    ADDED,
    BORROWED,
    DEDICATED,
    PAID_ANYWAY,
    PRICE,
    SPEED,
    WASTE,
    Part,
    Waterfall,
)


@pytest.fixture(scope="module")
def made(sample_kept: Path) -> Waterfall:
    return waterfall.build(sample_kept)


def running(parts: tuple[Part, ...]) -> dict[str, int]:
    """What the steps before each whole come to, by the whole's name."""
    sums, so_far = {}, parts[0].nano or 0
    for part in parts[1:]:
        if part.whole:
            sums[part.name] = so_far
        else:
            so_far += part.nano or 0
    return sums


def test_steps_add_up_to_every_whole_to_the_nano_dollar(made: Waterfall, sample_kept: Path) -> None:
    wholes = {part.name: part.nano for part in made.parts if part.whole}
    assert running(made.parts) == {name: wholes[name] for name in (BORROWED, ADDED)}
    compared = alternatives.build(sample_kept)
    assert wholes == {
        DEDICATED: compared.savings.capacity_avoided.value,
        BORROWED: compared.borrowed_cost.value,
        ADDED: compared.charged.value,
    }


def test_each_factor_is_changed_after_the_other(made: Waterfall) -> None:
    """Both devices have one price, and only the borrowed one made stale and lost tokens."""
    by_name = {part.name: part for part in made.parts}
    assert by_name[PRICE].nano == 0
    assert by_name[SPEED].nano is not None
    assert by_name[WASTE].nano is not None
    assert by_name[WASTE].nano > 0
    assert by_name[PAID_ANYWAY].nano == -(by_name[BORROWED].nano or 0)
    for part in made.parts:
        assert part.why
        assert (part.nano is None) == (part.basis == "absent" or part.why.startswith("not enough data"))


def test_what_is_not_known_is_said_and_not_nothing(made: Waterfall) -> None:
    missing = [part.name for part in made.parts if part.nano is None]
    assert missing
    said = " ".join(made.unknown)
    assert all(name.replace("_", " ") in said for name in missing)


def test_why_fully_loaded_differs_multiplies_to_the_ratio(made: Waterfall) -> None:
    loaded = made.loaded_says
    assert f"{float(made.loaded_times):,.3g} times" in loaded
    assert "idle time" in loaded
    assert all(one.name != other.name for one, other in pairwise(made.loaded))


def test_without_dedicated_devices_speed_and_waste_are_assumed(write_ledger: Any, sample_made: Any) -> None:
    own = [event for event in sample_made if getattr(event, "device_id", None) != "r0"]
    made = waterfall.build(write_ledger(own))
    by_name = {part.name: part for part in made.parts}
    assert (by_name[SPEED].nano, by_name[WASTE].nano) == (None, None)
    assert by_name[DEDICATED].basis == "assumed"
    assert running(made.parts)[ADDED] == by_name[ADDED].nano
    assert made.loaded == ()
