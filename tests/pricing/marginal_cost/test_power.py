import math
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from fractions import Fraction
from importlib import resources
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.marginal_cost.power import Metered, energy, extra_joules, load_points, metered
from rose.pricing.marginal_cost.terms import Stretches
from rose.pricing.money import MW_NS_PER_KWH
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import PowerFigure
from rose.pricing.price_books.pricebook import PriceBookError
from rose.pricing.stats.holdout import WINDOWS_MIN
from rose.pricing.stats.uncertainty import Clusters
from tests.pricing import reference
from tests.pricing.answers.conftest import ends

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
T0_NS = 1_780_272_000 * 10**9
S = 10**9
BOOK = pricebook.parse(EXAMPLE, "book")
STRETCHES = Stretches(BOOK, ((T0_NS, T0_NS + 3600 * S),))


def side(withheld: bool | None, watts: Sequence[float], leased_share: float = 0.0) -> dict[str, Any]:
    """A row of `power_by_window`: windows of 100 s of one device, with the mean power of each."""
    pairs = [(1e5 * one, 100.0) for one in watts]
    energy_mw_ns, duration_ns = round(sum(y for y, _ in pairs)) * S, 100 * len(watts) * S
    leased = {"leased_ns": round(duration_ns * leased_share), "leased_mw_ns": round(energy_mw_ns * leased_share)}
    sums = Clusters.of(pairs)
    windows = {"clusters": len(pairs), "x": duration_ns / S, "y": energy_mw_ns / S, "squares": None}
    windows |= {"yy": sums.yy, "yx": sums.yx, "xx": sums.xx}
    ids = {"device_class": "h100-sxm", "device_id": "s0", "withheld": withheld}
    return ids | {"energy_mw_ns": energy_mw_ns, "duration_ns": duration_ns} | leased | windows


def meters(lent: Sequence[float], withheld: Sequence[float], leased_share: float = 1.0) -> dict[str, Metered]:
    every = side(None, [*lent, *withheld])
    drawn = [side(False, lent, leased_share), side(True, withheld)]
    every |= {name: drawn[0][name] for name in ("leased_ns", "leased_mw_ns")}
    return metered([every, *drawn], None)


def test_extra_energy_is_that_of_all_time_not_withheld_over_its_leased_time() -> None:
    # A lease ends when its device gets busy: lent time has 500 W under a lease and 700 W without one, and the same
    # device draws 500 W on average when it is not lent. Leased time against the rest would say -200 W.
    (meter,) = meters([500, 700] * 10, [400, 600] * 4, leased_share=0.5).values()
    assert meter.delta_mw is not None
    assert meter.delta_mw.value == pytest.approx(200_000)
    assert meter.delta_mw.low < 200_000 < meter.delta_mw.high
    # Of 2000 s that were lent, 1000 s were leased.
    assert (meter.extra_mw_ns, meter.energy_mw_ns) == (pytest.approx(200_000 * 1000 * S), 16_000 * 10**5 * S)


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), st.lists(st.integers(0, 10**6), max_size=12))
def test_baseline_and_extra_are_all_that_was_metered(lent: list[int], withheld: list[int]) -> None:
    (meter,) = meters(lent, withheld).values()
    if meter.extra_mw_ns is None or meter.baseline_mw_ns is None:
        assert len(withheld) < WINDOWS_MIN
        assert f": {WINDOWS_MIN - len(withheld)} more would tell" in str(meter.why)
        return
    assert meter.baseline_mw_ns + meter.extra_mw_ns == meter.energy_mw_ns == sum(lent + withheld) * 10**5 * S


def leased(seconds: int, device_class: str = "h100-sxm") -> dict[str, Any]:
    return {"device_class": device_class, "segment": 0, "leased_ns": seconds * S}


def lent(ns: int, base_ns: int, busy_ns: int, **pieces: int) -> dict[str, Any]:
    zero = dict.fromkeys(("segment", "base_piece", "busy_piece", "unexplained_ns"), 0)
    times = {"t0_ns": None, "t1_ns": None, "ns": ns, "base_ns": base_ns, "busy_ns": busy_ns}
    return {"device_class": "h100-sxm", **zero, **times, **pieces}


@pytest.mark.parametrize(("watts", "usd"), [(450, 0.0563), (512.5, 0.0641)])
def test_an_hour_of_extra_power(watts: float, usd: float) -> None:
    term = energy([], [leased(3600)], meters([200 + watts] * 9, [200] * 9), STRETCHES)
    assert float(term.usd) == pytest.approx(usd, abs=5.1e-5)
    assert float(term.usd) == pytest.approx(3600 * reference.energy_usd_per_device_s(watts, 1.25, 0.10))
    assert term.basis == "measured"


def test_the_interval_is_in_dollars_and_widened_by_the_tariff() -> None:
    by_class = meters([500, 520] * 10, [300, 320] * 5)
    term = energy([], [leased(3600)], by_class, STRETCHES)
    low, high = ends(term.interval)
    assert float(term.usd) == pytest.approx(0.025)
    assert low < 0.025 < high
    delta = by_class["h100-sxm"].delta_mw
    assert delta is not None
    # The book takes its tariff for a guess: 60% to 160%.
    assert low / float(term.usd) == pytest.approx(1 - math.hypot(1 - delta.low / 200_000, 0.4))


@pytest.mark.parametrize("windows", [0, WINDOWS_MIN - 1])
def test_a_meter_without_enough_withheld_windows_does_not_tell(windows: int) -> None:
    by_class = meters([500] * 9, [300] * windows)
    assert by_class["h100-sxm"].delta_mw is None
    term = energy([lent(10 * S, 2 * S, 7 * S)], [leased(10)], by_class, STRETCHES)
    assert term.basis == "assumed"
    assert term.usd == energy([lent(10 * S, 2 * S, 7 * S)], [leased(10)], {}, STRETCHES).usd
    assert f"{WINDOWS_MIN - windows} more would tell" in term.explained
    bare = Stretches(BOOK.model_copy(update={"power": []}), STRETCHES.spans)
    unknown = energy([lent(10 * S, 2 * S, 7 * S)], [leased(10)], by_class, bare)
    assert (unknown.usd, unknown.basis) == (0, "absent")
    assert f"{WINDOWS_MIN - windows} more would tell" in str(unknown.unknown)
    # All that was read: 900 s of 500 W, at PUE 1.25 and $0.10 per kWh.
    assert "$0.015625" in str(unknown.unknown)


def test_a_price_that_covers_the_energy_charges_none() -> None:
    text = EXAMPLE.replace('class = "h100-sxm"\n', 'class = "h100-sxm"\nenergy_included = true\n', 2)
    book = pricebook.parse(text, "book")
    at = Stretches(book, ((T0_NS, T0_NS + 1),))
    assert book.device_at("h100-sxm", "serving", T0_NS).energy_included
    term = energy([lent(S, 0, S)], [leased(3600)], meters([500] * 9, [300] * 9), at)
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
