import math
from contextlib import closing
from fractions import Fraction
from pathlib import Path

import pytest

from rose.ledger.files import catalog
from rose.pricing.run.tokens import FATES, Spread, Tokens, count, spreads
from tests.pricing import any_event
from tests.pricing.conftest import WriteLedger


def counted(root: Path) -> dict[str, Tokens]:
    with closing(catalog.connect(root)) as connection:
        return count(connection, "run")


def test_tokens_of_the_sample_by_place_and_fate(sample_kept: Path) -> None:
    counts = counted(sample_kept)
    assert counts["borrowed"].by_fate == {"accepted": 1000, "rejected": 400, "stale": 1000, "lost": 1100, "open": 0}
    assert counts["dedicated"].by_fate == {"accepted": 2000, "rejected": 2600, "stale": 0, "lost": 0, "open": 1000}
    assert counts["unallocated"].generated == 0
    assert (counts["borrowed"].useful, counts["borrowed"].wasted_share) == (1400, Fraction(3, 5))
    assert Tokens(dict.fromkeys(FATES, 0)).wasted_share is None


def test_a_later_verdict_stands_and_a_retried_event_counts_once(sample: Path, write_ledger: WriteLedger) -> None:
    again = any_event.verdict(trajectory_id="t0", group_id="g0", reward=0.0, at_us=2_000_000_000_000_000)
    place = {"trajectory_id": "t0", "group_id": "g0", "step": 1, "turn": 1, "device_id": "s0"}
    turn = any_event.turn(**place, event_id="retried", cached_tokens=1, output_tokens=7, answer_tokens=1)
    place = {"trajectory_id": "t9", "group_id": "g3", "step": 1, "device_id": "elsewhere"}
    unknown = any_event.turn(**place, output_tokens=11, answer_tokens=1)
    write_ledger([again, turn, turn, unknown], root=sample, writer="second")
    counts = counted(sample)
    assert counts["borrowed"].by_fate["rejected"] == 1400 + 7
    # Tokens of an unknown device are kept apart.
    assert counts["unallocated"].by_fate["open"] == 11


def block(
    number: int, rollout_ns: int, tokens: int, placement: str = "dedicated", name: str = "a"
) -> dict[str, object]:
    where = {"placement": placement, "device_class": name, "block": number}
    return {**where, "rollout_ns": rollout_ns, "ns": 2 * rollout_ns, "tokens": tokens}


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
    assert drawn.std() == pytest.approx(0.1 * math.sqrt(9 / 10), rel=0.1)
