import json
import random
from collections import Counter
from dataclasses import asdict, replace

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sql
from rose import events
from rose.clock import Anchor
from rose.event_columns import all_columns
from rose.runtime.coserving.accounts.requests import RequestRecorder, sampled
from rose.runtime.coserving.leases.leasing import lease_id_of
from rose.runtime.coserving.page import RING_REQUESTS, ArbiterPage, Field, Finish, Party, RequestRecord
from rose.runtime.policy.slack import Budgets
from tests.runtime.coserving.lending import Recorded
from tests.runtime.coserving.parties import OtherParty

ANCHOR = Anchor(1_000_000_000_000)
SECOND = 1_000_000_000
WINDOW_NS = 60 * SECOND
BUDGETS = Budgets(100, 10, classes={7: Budgets(1000, 100)})
ENDED = RequestRecord(
    arrived_ns=2 * SECOND - 140,
    ended_ns=2 * SECOND,
    queue_ns=30,
    ttft_ns=100,
    tpot_mean_ns=10,
    tpot_max_ns=20,
    prompt_tokens=10,
    cached_tokens=3,
    output_tokens=5,
    finish=Finish.LENGTH,
    status=None,
    priority=None,
    lease_number=0,
)


@pytest.fixture
def page(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    yield page
    page.close()


def recorder(page, *, began_ns=SECOND, takes_over=False, per_s_max=100.0):
    recorded = Recorded()
    made = RequestRecorder(
        "d0",
        "d0-serving",
        page,
        ANCHOR,
        recorded,
        lambda number: lease_id_of("run", "d0", number),
        BUDGETS,
        began_ns=began_ns,
        takes_over=takes_over,
        per_s_max=per_s_max,
        window_ns=WINDOW_NS,
    )
    return made, recorded


def ended(at_ns, **changes):
    return replace(ENDED, arrived_ns=at_ns - 140, ended_ns=at_ns, **changes)


def test_a_request_is_recorded_as_the_engine_saw_it(page):
    page.take(Party.SERVING)
    made, recorded = recorder(page)
    page.write_request(replace(ENDED, priority=7, lease_number=3))
    made.tell(2 * SECOND)
    (event,) = recorded
    assert event == events.Request(
        at_us=ANCHOR.utc_us(2 * SECOND),
        device_id="d0",
        engine_id="d0-serving",
        lease_id="run-d0-3",
        request_id=event.request_id,
        source="engine",
        outcome="completed",
        prompt_tokens=10,
        cached_tokens=3,
        output_tokens=5,
        queue_ns=30,
        ttft_ns=100,
        tpot_mean_ns=10,
        tpot_max_ns=20,
        e2e_ns=140,
        ttft_budget_ns=1000,
        tpot_budget_ns=100,
        send_delay_ns=0,
        finish_reason="length",
        priority=7,
    )


@pytest.mark.parametrize(
    ("status", "outcome", "reason"),
    [(None, "aborted", None), (400, "aborted", "HTTP status 400"), (503, "failed", "HTTP status 503")],
)
def test_who_ended_an_aborted_request_is_said(page, status, outcome, reason):
    page.take(Party.SERVING)
    made, recorded = recorder(page)
    page.write_request(replace(ENDED, finish=Finish.ABORT, status=status))
    made.tell(2 * SECOND)
    assert [(one.outcome, one.reason, one.finish_reason) for one in recorded] == [(outcome, reason, "abort")]


def test_each_request_is_recorded_once_whichever_agent_does_it(page):
    page.take(Party.SERVING)
    first, recorded = recorder(page)
    for second in (2, 3, 4):
        page.write_request(ended(second * SECOND))
    first.tell(3 * SECOND)
    assert [one.at_us for one in recorded] == [ANCHOR.utc_us(second * SECOND) for second in (2, 3)]
    second, recorded = recorder(page, began_ns=3 * SECOND, takes_over=True)
    page.write_request(ended(5 * SECOND))
    second.tell(9 * SECOND)
    assert [one.at_us for one in recorded] == [ANCHOR.utc_us(second * SECOND) for second in (4, 5)]
    newcomer, recorded = recorder(page, began_ns=0)
    newcomer.tell(9 * SECOND)
    assert recorded == []


def test_requests_that_a_full_ring_lost_are_counted(page):
    page.take(Party.SERVING)
    made, recorded = recorder(page, per_s_max=1e6)
    for number in range(RING_REQUESTS + 5):
        page.write_request(ended(2 * SECOND + number))
    made.tell(3 * SECOND)
    (lost,) = [one for one in recorded if isinstance(one, events.LedgerAction)]
    assert (lost.action, json.loads(lost.detail_json)) == ("requests_lost", {"requests": 5})
    assert len(recorded) == RING_REQUESTS + 1


def test_the_requests_of_an_engine_that_dies_have_failed_once(page):
    with OtherParty(page.path, Party.SERVING) as engine:
        made, recorded = recorder(page)
        engine.do("page.set(me, Field.IN_FLIGHT, 2_500)")
        made.tell(2 * SECOND)
        assert recorded == []
    for second in (3, 4):
        made.tell(second * SECOND)
    assert Counter((one.outcome, one.at_us) for one in recorded) == {("failed", ANCHOR.utc_us(3 * SECOND)): 3}
    assert sum(one.requests for one in recorded) == 2_500
    successor, recorded = recorder(page, takes_over=True)
    successor.tell(5 * SECOND)
    assert recorded == []


def test_an_engine_that_dies_at_rest_has_failed_nobody(page):
    with OtherParty(page.path, Party.SERVING):
        made, recorded = recorder(page)
    made.tell(2 * SECOND)
    assert recorded == []
    assert page.get(Party.SERVING, Field.IN_FLIGHT) == 0


maybe_ns = st.none() | st.integers(0, 200)
FAILED = events.Request(
    at_us=10**9,
    request_id="r",
    outcome="failed",
    prompt_tokens=1,
    output_tokens=0,
    ttft_ns=None,
    tpot_mean_ns=None,
    tpot_max_ns=None,
    e2e_ns=0,
    ttft_budget_ns=100,
    tpot_budget_ns=100,
    send_delay_ns=0,
)
requests = st.builds(
    replace,
    st.just(FAILED),
    at_us=st.integers(10**9, 10**9 + 10**6),
    lease_id=st.sampled_from([None, "a"]),
    outcome=st.sampled_from(["completed", "failed", "aborted"]),
    ttft_ns=maybe_ns,
    tpot_mean_ns=maybe_ns,
    e2e_ns=st.integers(0, 200) | st.just(3 * WINDOW_NS),
    priority=st.sampled_from([None, 1]),
)

#: All that a share of requests, or a comparison with withheld windows, is made of.
COUNTS = f"""
    SELECT lent, outcome, priority, (epoch_ns(event_time) - e2e_ns) // {WINDOW_NS} AS arrival,
        ttft_ns IS NOT NULL, tpot_mean_ns IS NOT NULL, ttft_ok, slo_ok, count(*)
    FROM request GROUP BY ALL ORDER BY ALL
"""


@pytest.fixture(scope="module")
def counts():
    """Return what the view `request` says of requests."""
    connection = duckdb.connect()
    columns = all_columns()
    listed = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
    connection.execute(f"CREATE TABLE event ({listed}, event_time TIMESTAMP)")
    traffic = ("trace", "trace_keep_share", "trace_length_scale", "trace_output_length_scale", "trace_time_scale")
    names = ", ".join(f"NULL::VARCHAR AS {name}" for name in ("run_id", "provenance", *traffic))
    connection.execute(f"CREATE TABLE run AS SELECT {names}")
    connection.execute(sql.view("request"))

    def count(listed):
        connection.execute("DELETE FROM event")
        rows = [{"kind": "request", **asdict(one)} for one in listed]
        if rows:
            names = ", ".join(rows[0])
            text = (
                f"INSERT INTO event ({names}, event_time) VALUES ({', '.join('?' for _ in rows[0])}, make_timestamp(?))"
            )
            connection.executemany(text, [[*row.values(), row["at_us"]] for row in rows])
        return connection.execute(COUNTS).fetchall()

    yield count
    connection.close()


@settings(max_examples=10, deadline=None)
@given(st.lists(requests, max_size=25), st.integers(1, 12), st.integers(0, 9))
def test_a_sample_counts_as_all_requests_do(counts, listed, rows, seed):
    sample = list(sampled(listed, rows, WINDOW_NS, random.Random(seed)))
    exact = counts(listed)
    assert counts(sample) == exact
    assert len(sample) <= min(rows + len(exact), len(listed))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 50), min_size=1, max_size=3), st.integers(1, 20), st.integers(0, 9))
def test_a_sample_is_drawn_with_equal_chance_of_requests_that_are_alike(sizes, rows, seed):
    listed = [
        replace(FAILED, request_id=f"{priority}-{number}", priority=priority)
        for priority, size in enumerate(sizes)
        for number in range(size)
    ]
    sample = list(sampled(listed, rows, WINDOW_NS, random.Random(seed)))
    weights = [one.requests or 1 for one in sample]
    assert sum(weights) == len(listed)
    for priority in range(len(sizes)):
        stand_for = [one.requests or 1 for one in sample if one.priority == priority]
        assert sum(stand_for) == sizes[priority]
        assert max(stand_for, default=0) - min(stand_for, default=0) <= 1


def test_a_device_with_many_requests_gets_the_rows_that_were_allowed(page):
    page.take(Party.SERVING)
    made, recorded = recorder(page, began_ns=2 * SECOND, per_s_max=20.0)
    for number in range(1, 501):
        page.write_request(ended(2 * SECOND + number))
    made.tell(3 * SECOND)
    assert len(recorded) == 20
    assert sum(one.requests for one in recorded) == 500
