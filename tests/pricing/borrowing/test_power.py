import math
from datetime import date
from decimal import Decimal
from fractions import Fraction
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.borrowing.power import energy, extra_joules, load_points, measure, metered
from rose.pricing.borrowing.terms import Stretches
from rose.pricing.money import MW_NS_PER_KWH
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import PowerFigure
from rose.pricing.price_books.pricebook import PriceBookError
from tests.pricing import reference
from tests.pricing.answers.conftest import ends

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9
BOOK = pricebook.parse(EXAMPLE, "book")
STRETCHES = Stretches(BOOK, ((T0_NS, T0_NS + 3600 * S),))


def reading(load_bin: int, lent: bool, watts: int, seconds: int, minutes: int = 1) -> dict[str, Any]:
    """Readings of one bin and side; each minute's mean power is the same."""
    y, x = watts * 1000 * seconds / minutes, seconds / minutes
    ids = {"device_class": "h100-sxm", "load_bin": load_bin, "lent": lent}
    amounts = {"energy_mw_ns": watts * 1000 * seconds * S, "duration_ns": seconds * S, "clusters": minutes}
    return ids | amounts | {"yy": minutes * y * y, "yx": minutes * y * x, "xx": minutes * x * x}


def test_a_mean_over_all_loads_would_mislead() -> None:
    # Lent when serving is idle, not lent when it is busy: the plain means differ by -300 W, the bins by +100 W.
    by_load = [reading(0, True, 200, 90), reading(0, False, 100, 10)]
    by_load += [reading(4, False, 600, 90), reading(4, True, 700, 10)]
    meter = measure("h100-sxm", by_load)
    assert meter is not None
    assert meter.delta_mw == 100_000
    assert measure("h100-sxm", by_load[:1] + by_load[2:3]) is None
    assert measure("h100-sxm", []) is None
    # Only lent readings of a known load move the mean.
    meter = measure("x", [reading(0, True, 300, 60), reading(0, False, 200, 60), reading(3, True, 900, 30)])
    assert meter is not None
    assert meter.delta_mw == 100_000
    # The 30 s with nothing to compare draw 100 W extra too, so 800 W of their 900 W would have been drawn anyway.
    assert meter.extra_mw_ns == 100_000 * 90 * S
    assert meter.baseline_mw_ns == (200_000 * 120 + 800_000 * 30) * S


_reading = st.tuples(st.integers(0, 4), st.booleans(), st.integers(0, 10**24), st.integers(1, 10**18))
readings = st.lists(_reading, max_size=10, unique_by=lambda row: row[:2])


@given(readings)
def test_baseline_and_extra_are_all_that_was_metered(rows: list[tuple[int, bool, int, int]]) -> None:
    made = [
        {"load_bin": b, "lent": lent, "energy_mw_ns": energy_mw_ns, "duration_ns": duration_ns}
        for b, lent, energy_mw_ns, duration_ns in rows
    ]
    meter = measure("any", made)
    both = {b for b, lent, _, _ in rows if lent} & {b for b, lent, _, _ in rows if not lent}
    assert (meter is None) == (not both)
    if meter is None:
        return
    assert meter.baseline_mw_ns + meter.extra_mw_ns == meter.energy_mw_ns == sum(row[2] for row in rows)
    # What is extra is dP over the time that was read while lent, but for one rounding in each bin.
    assert abs(meter.extra_mw_ns - meter.delta_mw * sum(ns for _, lent, _, ns in rows if lent)) <= 5


def leased(seconds: int, device_class: str = "h100-sxm") -> dict[str, Any]:
    return {"device_class": device_class, "segment": 0, "leased_ns": seconds * S}


def lent(ns: int, base_ns: int, busy_ns: int, **pieces: int) -> dict[str, Any]:
    zero = dict.fromkeys(("segment", "base_piece", "busy_piece", "unexplained_ns"), 0)
    times = {"t0_ns": None, "t1_ns": None, "ns": ns, "base_ns": base_ns, "busy_ns": busy_ns}
    return {"device_class": "h100-sxm", **zero, **times, **pieces}


@pytest.mark.parametrize(("watts", "usd"), [(450, 0.0563), (512.5, 0.0641)])
def test_an_hour_of_extra_power(watts: float, usd: float) -> None:
    sides = [reading(0, True, int(2 * watts) + 200, 60), reading(0, False, 200 + int(watts), 60)]
    sides[0]["energy_mw_ns"] = sides[1]["energy_mw_ns"] + round(watts * 1000 * 60 * S)
    term = energy([], [leased(3600)], metered(sides), STRETCHES)
    assert float(term.usd) == pytest.approx(usd, abs=5.1e-5)
    assert float(term.usd) == pytest.approx(3600 * reference.energy_usd_per_device_s(watts, 1.25, 0.10))
    assert term.basis == "measured"


def test_the_interval_is_in_dollars_and_needs_fifteen_minutes_of_each_side() -> None:
    sides = [reading(0, True, 500, 120, 3), reading(0, False, 300, 120, 3)]
    sides[0]["yy"] *= 1.01
    term = energy([], [leased(3600)], metered(sides), STRETCHES)
    low, high = ends(term.interval)
    assert float(term.usd) == pytest.approx(0.025)
    assert low < 0.025 < high
    # dP and its ends are charged alike, and widened by the tariff, which the book takes for a guess: 60% to 160%.
    delta = measure("x", sides)
    assert delta is not None
    off = math.hypot(1 - ends(delta.interval)[0] / 200_000, 0.4)
    assert low / float(term.usd) == pytest.approx(1 - off)
    short = [reading(0, True, 500, 60, 2), reading(0, False, 300, 120, 3)]
    bare = energy([], [leased(3600)], metered(short), STRETCHES)
    assert bare.interval is None
    assert "read for too short a time" in str(bare.no_interval)


def test_a_price_that_covers_the_energy_charges_none() -> None:
    text = EXAMPLE.replace('class = "h100-sxm"\n', 'class = "h100-sxm"\nenergy_included = true\n', 2)
    book = pricebook.parse(text, "book")
    sides = [reading(0, True, 500, 60), reading(0, False, 300, 60)]
    at = Stretches(book, ((T0_NS, T0_NS + 1),))
    assert book.device_at("h100-sxm", "serving", T0_NS).energy_included
    term = energy([lent(S, 0, S)], [leased(3600)], metered(sides), at)
    assert (term.usd, term.basis, term.missing) == (0, "price book", None)
    assert "the price of the device covers its energy" in term.explained


def test_without_a_meter_the_book_s_curve_is_read_at_both_loads() -> None:
    # 20% serving, 50% rollouts: 50% more of the way from 267 W to 680 W, for 10 s.
    term = energy([lent(10 * S, 2 * S, 7 * S)], [leased(10)], {}, STRETCHES)
    assert term.usd == Fraction(413, 2) * 10 * Fraction(5, 4) / 3_600_000 / 10
    assert (term.basis, term.no_interval) == ("assumed", None)
    low, high = ends(term.interval)
    assert low < float(term.usd) < high
    with pytest.raises(PriceBookError, match="power"):
        energy([lent(S, 0, S) | {"device_class": "b200"}], [], {}, Stretches(with_class(BOOK, "b200"), STRETCHES.spans))


def with_class(book: Any, name: str) -> Any:
    return book.model_copy(
        update={"device": [*book.device, book.device[0].model_copy(update={"device_class": name, "valid_to": None})]}
    )


POINTS = ((Decimal(0), Decimal(100)), (Decimal("0.3"), Decimal(400)), (Decimal(1), Decimal(500)))
CURVE = PowerFigure(**{"class": "h100-sxm"}, points=POINTS, source="test", source_date=date(2026, 1, 1))


@given(st.lists(st.tuples(st.integers(1, 10**12), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6))
def test_slices_summed_by_piece_draw_what_each_draws(slices: list[tuple[int, float, float]]) -> None:
    """Only where a curve bends must slices be told apart: within a piece their sum is enough, exactly."""
    expected = Fraction(0)
    cells: dict[tuple[int, int], list[int]] = {}
    for ns, one, other in slices:
        base_ns, busy_ns = sorted((int(one * ns), int(other * ns)))
        base, busy = Fraction(base_ns, ns), Fraction(busy_ns, ns)
        expected += (CURVE.watts(busy) - CURVE.watts(base)) * ns / S
        pieces = (int(base >= Fraction(3, 10)), int(busy >= Fraction(3, 10)))
        cell = cells.get(pieces, [0, 0, 0])
        cells[pieces] = [a + b for a, b in zip(cell, (ns, base_ns, busy_ns), strict=True)]
    term = Fraction(0)
    for (base_piece, busy_piece), sums in cells.items():
        amounts = dict(zip(("ns", "base_ns", "busy_ns"), map(Fraction, sums), strict=True))
        term += extra_joules(CURVE, [0.3], {"base_piece": base_piece, "busy_piece": busy_piece}, amounts)
    assert term == expected


def test_a_curve_s_bends_are_known_and_a_kilowatt_hour_is() -> None:
    assert load_points(BOOK.model_copy(update={"power": [CURVE]})) == [0.3]
    assert MW_NS_PER_KWH == 1_000_000 * 3600 * S
