from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.coserving.accounts.slices import Assignments, slice_time
from rose.runtime.coserving.page import Span, SpanRecord

spans = st.lists(
    st.builds(
        lambda kind, start, length, aux: SpanRecord(kind, start, start + length, aux),
        st.sampled_from(Span),
        st.integers(0, 1000),
        st.integers(0, 300),
        st.integers(0, 400),
    ),
    max_size=30,
)


@pytest.mark.parametrize(
    ("stretches", "expected", "overlap_ns"),
    [
        ([(Span.SERVING, 0, 60), (Span.ROLLOUT, 40, 100)], {"serving": 50, "rollout": 50}, 20),
        # An odd nanosecond goes to the first bucket.
        ([(Span.ROLLOUT, 0, 3), (Span.SERVING, 0, 3)], {"serving": 2, "rollout": 1, "idle": 97}, 3),
        # Held time is headroom only while nothing works.
        ([(Span.HELD, 0, 50), (Span.SERVING, 20, 60)], {"serving": 40, "headroom": 20, "idle": 40}, 0),
        ([(Span.YIELD, 10, 30), (Span.SERVING, 10, 30)], {"serving": 20, "idle": 80}, 0),
    ],
)
def test_time_is_split_between_those_who_work(stretches, expected, overlap_ns):
    part = slice_time([SpanRecord(*stretch) for stretch in stretches], 0, 100)
    assert {name: length for name, length in part.by_bucket.items() if length} == expected
    assert part.overlap_ns == overlap_ns


@given(spans, st.integers(0, 1000), st.integers(0, 500))
def test_buckets_sum_to_the_interval_exactly(records, t0, length):
    part = slice_time(records, t0, t0 + length)
    assert sum(part.by_bucket.values()) == length
    assert all(value >= 0 for value in part.by_bucket.values())
    assert 0 <= part.overlap_ns + part.beside_ns <= length
    assert 0 <= part.beside_work_ns <= min(part.beside_ns, part.by_bucket["rollout"])


def test_rollouts_beside_serving_have_their_work_and_serving_the_rest():
    beside = SpanRecord(Span.BESIDE, 20, 60, 10)
    part = slice_time([SpanRecord(Span.SERVING, 0, 80), beside, SpanRecord(Span.ROLLOUT, 90, 100)], 0, 100)
    assert {name: length for name, length in part.by_bucket.items() if length} == {
        "serving": 70,
        "rollout": 20,
        "idle": 10,
    }
    assert (part.overlap_ns, part.beside_ns, part.beside_work_ns) == (0, 40, 10)
    # Serving alone would have taken 65, was delayed by 15 and is charged 10 less: pricing reckons back with this.
    alone_ns, delayed_ns = 65, 15
    assert part.by_bucket["serving"] - (delayed_ns - part.beside_work_ns) == alone_ns
    half = slice_time([SpanRecord(Span.SERVING, 0, 80), beside], 0, 40)
    assert (half.by_bucket["rollout"], half.beside_ns) == (5, 20)
    # More work than time is a layer that was counted before it ended.
    full = slice_time([SpanRecord(Span.SERVING, 0, 80), SpanRecord(Span.BESIDE, 20, 60, 50)], 0, 80)
    assert (full.by_bucket["rollout"], full.by_bucket["serving"]) == (40, 40)


@given(spans, st.lists(st.integers(0, 1300), min_size=1, max_size=5))
def test_cutting_an_interval_changes_a_total_by_less_than_a_nanosecond_a_cut_and_party(records, cuts):
    edges = sorted({0, 1300, *cuts})
    whole = slice_time(records, 0, 1300).by_bucket
    parts = [slice_time(records, a, b).by_bucket for a, b in pairwise(edges)]
    for bucket, total in whole.items():
        assert abs(total - sum(part[bucket] for part in parts)) <= len(edges) * (len(records) + 1)


def test_time_belongs_to_the_run_that_was_assigned_then():
    runs = Assignments("a")
    runs.change(10, "b")
    runs.change(20, "b")
    runs.change(30, "")
    assert [runs.at(time_ns) for time_ns in (-5, 9, 10, 29, 30)] == ["a", "a", "b", "b", ""]
    assert runs.now == ""
    assert runs.between(0, 100) == [10, 30]
    assert runs.between(10, 30) == []
    runs.forget(10)
    assert runs.at(15) == "b"
    assert runs.between(0, 100) == [10, 30], "of what is kept nothing changes"
    runs.forget(1_000)
    assert runs.between(0, 100) == [30]
    assert runs.at(50) == ""
