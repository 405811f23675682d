from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.stats.uncertainty import wilson
from rose.pricing.stats.verdict import Promise, exceeds

ENDS = st.floats(-1e6, 1e6)
TARGETS = st.fractions(0, 1, max_denominator=1000)
COUNTS = st.integers(1, 5000).flatmap(lambda requests: st.tuples(st.integers(0, requests), st.just(requests)))
RANK = {True: 2, None: 1, False: 0}


def promise(late: int, requests: int, target: Fraction) -> Promise:
    return Promise(late=late, requests=requests, target=target)


@given(st.tuples(ENDS, ENDS, ENDS, ENDS).map(sorted), ENDS)
def test_a_narrower_interval_never_takes_a_verdict_back(ends: list[float], other: float) -> None:
    widest, low, high, highest = ends
    assert exceeds(widest, highest, other) in (None, exceeds(low, high, other))
    assert exceeds(widest, None, other) in (None, exceeds(low, high, other))


@given(st.tuples(ENDS, ENDS).map(sorted), ENDS, st.floats(0, 1e6))
def test_a_higher_interval_never_speaks_more_for_less(ends: list[float], other: float, by: float) -> None:
    low, high = ends
    assert RANK[exceeds(low + by, high + by, other)] >= RANK[exceeds(low, high, other)]


def test_an_interval_with_the_other_in_it_tells_nothing() -> None:
    assert exceeds(-1, 1) is None
    assert exceeds(0.1, None) is True
    assert exceeds(-1, None) is None
    assert exceeds(-1, 0) is False  # Not above 0.


@given(COUNTS, TARGETS)
def test_a_promise_is_monotone_in_its_evidence(counts: tuple[int, int], target: Fraction) -> None:
    late, requests = counts
    kept = promise(late, requests, target).kept
    assert RANK[promise(late + 1, requests + 1, target).kept] <= RANK[kept]
    assert RANK[promise(late, requests + 1, target).kept] >= RANK[kept]
    if late:
        assert RANK[promise(late - 1, requests, target).kept] >= RANK[kept]
    # The same share of more requests never takes a verdict back.
    assert kept in (None, promise(3 * late, 3 * requests, target).kept)


@given(COUNTS, TARGETS)
def test_the_requests_that_are_missing_would_tell(counts: tuple[int, int], target: Fraction) -> None:
    late, requests = counts
    more = promise(late, requests, target).more
    if more is not None and more < 10**9:
        told = exceeds(*wilson(late / requests, requests + more + 1), float(1 - target))
        assert told is (Fraction(late, requests) > 1 - target)


def test_one_late_request_of_83_is_too_few() -> None:
    seen = promise(1, 83, Fraction(99, 100))
    assert seen.kept is None
    assert "1 of 83 late; 95% interval: 93.5 to 99.8%" in seen.text
    assert seen.more is not None
    assert f"{seen.more:,} more" in seen.text
    assert promise(0, 0, Fraction(99, 100)).kept is None
    assert promise(5, 5, Fraction(99, 100)).text.startswith("5 of 5 late; 95% interval: 0.0 to")
    assert promise(8, 240, Fraction(99, 100)).kept is False
    assert promise(0, 1000, Fraction(99, 100)).kept is True
    assert "95% interval: 99.6 to 100.0% within" in promise(0, 1000, Fraction(99, 100)).text
    assert "95% interval: 99.9943 to 99.9998% within" in promise(1, 10**5, Fraction(99, 100)).text
    assert promise(1, 3000, Fraction(1)).kept is False
