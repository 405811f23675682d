from dataclasses import replace
from datetime import datetime
from fractions import Fraction
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.pricing.answers import changes
from rose.pricing.answers.changes import BY, EFFECTS, Changes, effects, side
from rose.pricing.figures import BookFacts, Stamp
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import BOOK, DAY_NS, T0_NS, charges_of, frames_of_charges

THEN = Stamp(from_ns=T0_NS, to_ns=T0_NS + DAY_NS, provenance="live", book=BookFacts.from_book(BOOK), verified=True)
NOW = replace(THEN, from_ns=THEN.to_ns, to_ns=THEN.to_ns + DAY_NS)
HOUR = 3_600_000_000_000
FRAMES = frames_of_charges()


def compared(before: pl.DataFrame, now: pl.DataFrame, by: str = "team") -> Changes:
    return changes.changes(side(before, by), side(now, by), by=by, before_stamp=THEN, stamp=NOW)


def rollout(hours: int, rate: int = 100, *, tokens: int = 1000, accepted: int = 500, **more: Any) -> pl.DataFrame:
    row = {"bucket": "rollout", "team": "research", "pool": "rollout", "hour": datetime(2026, 6, 1)} | more
    kept = {"fate": "accepted", "ns": hours * HOUR, "tokens": accepted, "cost_nano": hours * rate}
    return charges_of([row | kept, row | {"fate": "rejected", "tokens": tokens - accepted}])


def driven(made: Changes) -> dict[str, int]:
    return {effect: nano for effect, nano in made.total.effects.items() if nano}


def test_more_accepted_output_at_the_same_rates_is_output() -> None:
    made = compared(rollout(10), rollout(20, tokens=2000, accepted=1000))
    assert (made.total.before_nano, made.total.cost_nano) == (1000, 2000)
    assert driven(made) == {"accepted output": 1000}


def test_a_lower_accept_rate_is_told_from_slower_devices() -> None:
    fewer_accepted = compared(rollout(10), rollout(20, tokens=2000, accepted=500))
    assert driven(fewer_accepted) == {"tokens per accepted token": 1000}
    assert driven(compared(rollout(10), rollout(20))) == {"device time per token": 1000}
    # Without accepted tokens the volume is not taken apart.
    assert driven(compared(rollout(10, accepted=0), rollout(20, accepted=0))) == {"volume": 1000}
    assert driven(compared(rollout(10), rollout(10, rate=130))) == {"price": 300}
    nothing = compared(rollout(10), rollout(10))
    assert (driven(nothing), nothing.groups[0].change_nano) == ({}, 0)


def test_work_that_moves_to_borrowed_devices_is_share_borrowed() -> None:
    def split(dedicated: int, borrowed: int) -> pl.DataFrame:
        return pl.concat([rollout(dedicated, 100), rollout(borrowed, 40, pool="serving")])

    assert driven(compared(split(5, 5), split(2, 8))) == {"share borrowed": -180}
    # A pool that comes anew, where there were dedicated devices only.
    new = compared(rollout(10, tokens=2000, accepted=1000), split(5, 5))
    assert driven(new) == {"share borrowed": 5 * 40 - 5 * 100}
    # What moves between device classes is mix.
    even, dearer = (pl.concat([rollout(n, 100), rollout(10 - n, 300, device_class="h200")]) for n in (5, 4))
    assert driven(compared(even, dearer)) == {"mix": 200}


def test_a_run_that_is_new_has_the_rate_of_its_devices() -> None:
    made = compared(rollout(10, run_id="a"), rollout(10, rate=150, run_id="b"), by="run")
    assert driven(made) == {"price": 500}
    assert {group.name: group.change_nano for group in made.groups} == {"a": -1000, "b": 1500}
    # What has no device time is volume.
    energy = charges_of([{"bucket": "energy", "kind": "energy", "cost_nano": 70}])
    made = compared(rollout(10), pl.concat([rollout(10), energy]), by="bucket")
    assert driven(made) == {"volume": 70}
    assert made.groups[0].name == "energy"


@settings(deadline=None, max_examples=15)
@given(FRAMES, FRAMES, st.sampled_from(list(BY)))
def test_the_effects_sum_to_the_change_to_the_nano_dollar(before: pl.DataFrame, now: pl.DataFrame, by: str) -> None:
    made = compared(before, now, by)
    change = int(now["cost_nano"].sum()) - int(before["cost_nano"].sum())
    assert made.total.change_nano == sum(made.total.effects.values()) == change
    assert sum(group.change_nano for group in made.groups) == change
    for group in made.groups:
        assert sum(group.effects.values()) == group.change_nano
    assert set(made.total.effects) == set(EFFECTS)


@settings(deadline=None, max_examples=10)
@given(FRAMES, FRAMES)
def test_an_effect_is_the_same_by_every_dimension(before: pl.DataFrame, now: pl.DataFrame) -> None:
    def total(by: str) -> dict[str, Fraction]:
        sums = dict.fromkeys(EFFECTS, Fraction(0))
        for (_, effect), part in effects(side(before, by), side(now, by)).items():
            sums[effect] += part
        return sums

    assert len({tuple(total(by).items()) for by in BY}) == 1


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(PricingError, match="cannot be shown by 'colour'; give one of team, run"):
        side(rollout(1), "colour")
    one = side(rollout(1), "team")
    with pytest.raises(PricingError, match="differ in provenance"):
        changes.changes(one, one, by="team", before_stamp=replace(THEN, provenance="simulated"), stamp=NOW)
