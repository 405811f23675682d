from typing import Any

import numpy as np
import pytest

from rose.pricing.stats.holdout import TOGETHER, WINDOWS_MIN, effect, key_of, strata
from rose.pricing.stats.uncertainty import mean
from tests.pricing.answers.conftest import ends


def rows(device_id: str, withheld: bool, windows: list[tuple[float, float]], yes_or_no: bool = True) -> dict[str, Any]:
    return {
        "device_id": device_id,
        "withheld": withheld,
        "clusters": len(windows),
        "x": sum(x for x, _ in windows),
        "y": sum(y for _, y in windows),
        "squares": sum(y for _, y in windows) if yes_or_no else None,
        "yy": sum(y * y for _, y in windows),
        "yx": sum(y * x for x, y in windows),
        "xx": sum(x * x for x, _ in windows),
    }


LENT = rows("d", False, [(20, 3), (10, 2), (30, 4), (20, 1)] * 10)
WITHHELD = rows("d", True, [(10, 0), (5, 1), (12, 0), (9, 1)] * 3)


def test_the_effect_is_what_lent_windows_have_beyond_the_rate_of_withheld_ones() -> None:
    compared = strata([LENT, WITHHELD])
    assert compared is not None
    estimate = effect(compared, 1.0)
    assert estimate.value == pytest.approx(100 - 800 * 6 / 108)
    assert estimate.low < estimate.value < estimate.high
    # In another unit it is the same.
    units = {"y": 7, "squares": 49, "yy": 49, "yx": 7}
    in_units = [{**row, **{name: row[name] * unit for name, unit in units.items()}} for row in (LENT, WITHHELD)]
    scaled, sevenfold = effect(strata(in_units) or {}, 7.0), estimate.times(7)
    assert (scaled.value, *ends(scaled.interval)) == pytest.approx((sevenfold.value, sevenfold.low, sevenfold.high))


def test_without_a_bound_it_is_students_interval_of_the_mean_of_so_many_more() -> None:
    """With windows of one size the ratio is a mean, and the textbook predicts that of the lent ones by it."""
    random = np.random.default_rng(0)
    sides = {False: random.normal(5, 2, 40), True: random.normal(4, 1, 9)}
    made = [rows("d", side, [(1.0, float(y)) for y in values], False) for side, values in sides.items()]
    estimate = effect(strata(made) or {}, None)
    textbook = mean(0.0, [(sides[True].var(ddof=1) * (1 / 9 + 1 / 40), 8)])
    assert estimate.value == pytest.approx(40 * (sides[False].mean() - sides[True].mean()))
    assert estimate.high - estimate.value == pytest.approx(40 * textbook.high)


def test_nothing_missed_in_withheld_windows_still_leaves_room_for_a_rate() -> None:
    none = rows("d", True, [(10, 0)] * 9)
    estimate = effect(strata([LENT, none]) or {}, 1.0)
    assert estimate.value == 100
    # Nine windows of which none had a miss: up to three in ten may have.
    assert estimate.low == pytest.approx(100 - 800 * 0.2991 * (1 + 90 / 800) ** 0.5, abs=1)
    assert estimate.high == 100


def test_lent_windows_may_widen_the_interval_but_never_narrow_it() -> None:
    uneven = [(20, 8), (20, 0)] * 6
    without = effect(strata([rows("d", False, [(20, 4)] * 40, False), rows("d", True, uneven, False)]) or {}, 1.0)
    even = effect(strata([rows("d", False, [(20, 4)] * 40), rows("d", True, uneven)]) or {}, 1.0)
    assert even == without, "even lent windows say nothing about the uneven ones"
    clumped = effect(strata([rows("d", False, [(20, 16), (20, 0)] * 20), rows("d", True, [(20, 4)] * 12)]) or {}, 1.0)
    alone = effect(strata([rows("d", False, [(20, 4)] * 40), rows("d", True, [(20, 4)] * 12)]) or {}, 1.0)
    assert clumped.high - clumped.low > alone.high - alone.low


def test_few_withheld_windows_say_nothing() -> None:
    assert strata([LENT, rows("d", True, [(10, 1)] * (WINDOWS_MIN - 1))]) is None
    assert strata([LENT, rows("d", True, [(10, 1)] * WINDOWS_MIN)]) is not None
    assert strata([]) is None
    assert strata([WITHHELD]) is None, "nothing was lent"


def test_a_device_with_windows_enough_is_compared_with_its_own() -> None:
    few = rows("e", True, [(1, 1)] * (WINDOWS_MIN - 1))
    other = rows("f", True, [(1, 0)] * 2)
    all_of_them = [LENT, WITHHELD, few, rows("e", False, [(10, 9)] * 5), other, rows("f", False, [(10, 5)] * 5)]
    assert key_of(all_of_them) == {"d": "d", "e": TOGETHER, "f": TOGETHER}
    compared = strata(all_of_them)
    assert compared is not None
    assert compared[TOGETHER].effect == pytest.approx(45 + 25 - 100 * 7 / 9)
    assert effect(compared, 1.0).value == pytest.approx(sum(device.effect for device in compared.values()))
    # The rest have too few between them: all devices are one.
    assert set(key_of([LENT, WITHHELD, other, rows("f", False, [(10, 5)])]).values()) == {TOGETHER}
