"""Sums of charges beyond 64 bits."""

from __future__ import annotations

import polars as pl
import pytest

from rose.pricing.charges import sums
from rose.pricing.closing.close import totals
from rose.pricing.money import PricingError

#: 500 W for an hour, in milliwatt-nanoseconds.
HOUR = 500_000 * 3600 * 10**9


def rows(count: int) -> pl.DataFrame:
    amounts = {"ns": 3600 * 10**9, "tokens": 0, "bytes": 0, "energy_mw_ns": HOUR, "cost_nano": 10}
    return pl.DataFrame([{"kind": "energy", "bucket": "energy", **amounts}] * count)


@pytest.mark.parametrize("hours", [5, 6, 720])
def test_metered_energy_of_many_hours_is_its_sum(hours):
    assert totals(rows(hours))[0]["energy_mw_ns"] == hours * HOUR
    assert sums.total(rows(hours), "energy_mw_ns") == hours * HOUR


def test_an_amount_beyond_64_bits_is_refused_and_names_the_amount():
    dear = rows(2).with_columns(cost_nano=pl.lit(2**62))
    with pytest.raises(PricingError, match="cost_nano"):
        sums.refuse_too_large(dear)
    sums.refuse_too_large(rows(720))
