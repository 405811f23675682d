from __future__ import annotations

import math

import pytest

from rose.pricing.run.token_spread import Spread, spreads


def block(
    number: int, rollout_ns: int, tokens: int, placement: str = "dedicated", name: str = "a"
) -> dict[str, object]:
    return {
        "placement": placement,
        "device_class": name,
        "block": number,
        "rollout_ns": rollout_ns,
        "ns": 2 * rollout_ns,
        "tokens": tokens,
    }


def test_a_steady_price_is_known_and_one_that_wanders_is_not() -> None:
    prices = {("dedicated", "a"): 1.0}
    steady = spreads([block(n, 100 * (n + 1), 10 * (n + 1)) for n in range(6)], prices)
    assert steady["dedicated"] == Spread(pytest.approx(0, abs=1e-9), 5)
    # Half of the blocks take 80 ns for a token, half 120: the mean of six values that are 0.2 off has an error of
    # 0.2 / sqrt(6), times sqrt(6 / 5).
    uneven = spreads([block(n, 800 if n % 2 else 1200, 10) for n in range(6)], prices)
    assert uneven["dedicated"].relative == pytest.approx(0.2 / math.sqrt(5))
    assert uneven["loaded"].relative == pytest.approx(uneven["dedicated"].relative)


def test_a_block_has_the_dollars_of_its_classes() -> None:
    rows = [row for n in range(5) for row in (block(n, 100, 10), block(n, 100 * (n % 2), 10 * (n % 2), name="dear"))]
    alike = spreads(rows, {("dedicated", "a"): 1.0, ("dedicated", "dear"): 1.0})
    dearer = spreads(rows, {("dedicated", "a"): 1.0, ("dedicated", "dear"): 3.0})
    assert alike["dedicated"].relative == pytest.approx(0, abs=1e-9)
    assert dearer["dedicated"].relative > 0.1


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [block(n, 100, 10) for n in range(4)],
        [block(n, 100, 0) for n in range(9)],
        [block(n, 0 if n else 9, 0 if n else 1) for n in range(9)],
    ],
)
def test_too_few_blocks_with_work_say_nothing(rows: list[dict[str, object]]) -> None:
    assert "dedicated" not in spreads(rows, {("dedicated", "a"): 1.0})


def test_draws_spread_as_student_s_t_does() -> None:
    drawn = Spread(0.1, 9).draws(seed=1)
    assert drawn.mean() == pytest.approx(1, abs=0.01)
    assert drawn.std() == pytest.approx(0.1 * math.sqrt(9 / 7), rel=0.1)
