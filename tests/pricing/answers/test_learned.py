from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.ledger.files import catalog
from rose.pricing.answers.learned import GROUPS_MIN, Stretch, learned, stretches, together
from rose.pricing.query import rows, set_variables
from rose.pricing.run import cost_per_correct
from tests.pricing.answers.conftest import ends


def single(place: int, accepted: int, judged: int) -> Stretch:
    return Stretch(
        first=place, last=place, judged=judged, accepted=accepted, groups=judged, yy=accepted, yx=accepted, xx=judged
    )


def course(*accepted: int, judged: int = 40) -> list[Stretch]:
    return [single(place, count, judged) for place, count in enumerate(accepted)]


def test_what_is_said_needs_intervals_that_do_not_overlap() -> None:
    for counts, verdict in (
        ((4, 10, 20, 30), "learned"),
        ((30, 20, 10, 4), "got worse"),
        ((10, 30, 1, 12), "cannot tell"),
    ):
        found = learned(course(*counts))
        assert found is not None
        assert found.verdict == verdict
        assert (found.begin.first, found.end.last) == (0, 3)
    # One step says nothing of change.
    assert learned(course(5)) is learned([]) is None


def test_an_end_is_as_short_as_it_may_be() -> None:
    short = learned(course(*range(40), judged=GROUPS_MIN + 10))
    assert short is not None
    assert (short.begin.first, short.begin.last, short.end.first, short.end.last) == (0, 0, 39, 39)
    few = learned(course(*([1] * 40), judged=2))
    assert few is not None
    assert (few.begin.last, few.end.first) == (9, 30)


def test_wilson_s_interval_of_single_trajectories() -> None:
    """Of 10 accepted of 40: the textbook's 0.1419 to 0.4019. Groups whose trajectories hang together widen it."""
    assert single(0, 10, 40).interval == pytest.approx((0.1419, 0.4019), abs=5e-5)
    low, high = Stretch(first=0, last=0, judged=40, accepted=20, groups=10, yy=5 * 16, yx=5 * 16, xx=10 * 16).interval
    alone = single(0, 20, 40).interval
    assert low < alone[0] < alone[1] < high


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(9, 20)), min_size=2, max_size=30))
def test_ends_never_overlap_and_intervals_hold_their_share(counts: list[tuple[int, int]]) -> None:
    found = learned([single(place, accepted, judged) for place, (accepted, judged) in enumerate(counts)])
    assert found is not None
    assert found.begin.last < found.end.first
    for end in (found.begin, found.end):
        low, high = end.interval
        assert 0 <= low < high <= 1
        assert low - 1e-9 <= end.share <= high + 1e-9


def test_the_ledger_s_counts_are_the_report_s_in_any_number_of_stretches(sample_kept: Path) -> None:
    with catalog.connect(sample_kept) as connection:
        set_variables(connection, run_id="run", period_end_ns=2**62)
        groups = cost_per_correct.groups(connection, "run")
        for blocks in (1, 200):
            set_variables(connection, run_id="run", part="step", blocks=blocks)
            found = stretches(rows(connection, "answers/accepted"))
            whole = together(found)
            assert (whole.judged, whole.accepted) == (groups.judged, groups.accepted)
            assert whole.share == groups.accept_rate
            if blocks == 1:
                assert len(found) == 1
                assert whole.interval == ends(cost_per_correct.share_interval(groups, "accepted", "judged"))
        set_variables(connection, part="version")
        assert stretches(rows(connection, "answers/accepted")) == []
