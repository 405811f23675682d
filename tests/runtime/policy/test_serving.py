from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.policy.serving import FORGET_NS, LAST_REQUESTS, ServingHistory
from tests.runtime.policy.test_lease import IDLE


def after(*looks):
    history = ServingHistory()
    for now, load in enumerate(looks):
        history = history.observe(load, now)
    return history


def count(finished, late_alone, **changes):
    return replace(IDLE, finished=finished, late_alone=late_alone, **changes)


def test_a_share_needs_enough_requests():
    assert after(count(0, 0), count(19, 19)).late_alone_share == 0
    assert after(count(0, 0), count(20, 5)).late_alone_share == 0.25
    assert ServingHistory().late_alone_share == 0


def test_only_the_last_requests_count():
    looks = [count(n, min(n, 50)) for n in range(0, 50 + LAST_REQUESTS + 1, 10)]
    assert after(*looks).late_alone_share == 0
    assert after(*looks[:6]).late_alone_share == 1


def test_slow_traffic_that_is_in_time_again_is_lent_beside_after_a_minute():
    history = after(count(0, 0), count(40, 40))
    for seconds in range(2, 60, 2):
        history = history.observe(count(40 + seconds // 2, 40, running=1), seconds * 1_000_000_000)
        assert history.late_alone_share > 0.5
    for seconds in range(60, 66, 2):
        history = history.observe(count(40 + seconds // 2, 40, running=1), seconds * 1_000_000_000)
    assert history.late_alone_share == 0


def test_fewer_requests_than_say_something_are_kept_however_old_they_are():
    history = after(count(0, 0), count(10, 10, running=1)).observe(count(20, 20, running=1), 10 * FORGET_NS)
    assert history.observe(count(25, 20, running=1), 20 * FORGET_NS).late_alone_share == 20 / 25


def test_serving_that_starts_anew_or_says_nothing_has_no_history():
    assert after(count(0, 0), count(50, 50), count(3, 0)).late_alone_share == 0
    assert after(count(0, 0), count(50, 50), None) == ServingHistory()


def test_a_minute_of_idleness_is_another_time():
    history = after(count(0, 0), count(50, 50))
    assert history.observe(count(50, 50), FORGET_NS - 1).late_alone_share == 1
    assert history.observe(count(50, 50), FORGET_NS).late_alone_share == 0
    stuck = history.observe(count(50, 50, waiting=1), 10).observe(count(50, 50, waiting=1), 2 * FORGET_NS)
    assert stuck.late_alone_share == 1, "requests wait: it is late, not idle"


def test_idleness_is_counted_from_when_the_last_work_ended():
    history = after(count(0, 0, running=1), count(1, 0), count(1, 0))
    assert history.idle_ns(11) == 10
    assert history.observe(count(1, 0, wanted=True), 12).idle_ns(20) == 0


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=50))
def test_the_share_is_one_and_the_history_is_short(increments):
    history, finished, late = ServingHistory(), 0, 0
    for now, (more, of_them) in enumerate(increments):
        finished, late = finished + more, late + min(more, of_them)
        history = history.observe(count(finished, late), now)
        assert 0 <= history.late_alone_share <= 1
        assert len(history.counts) <= LAST_REQUESTS + 1
