from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose import events
from rose.clock import Anchor
from rose.events import BUCKETS, DeviceSlice, Preemption
from rose.runtime.coserving.accounts.accountant import LAG_NS, Accountant, Waits
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.coserving.page import ArbiterPage, Party, Span, SpanRecord
from rose.runtime.policy.slack import Hold
from tests.runtime.coserving.lending import Recorded
from tests.runtime.coserving.parties import OtherParty

ANCHOR = Anchor(1_000_000_000_000)
NUMBERS = count()
SECOND = 1_000_000_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def make(folder, leases=None, parties=(Party.SERVING, Party.ROLLOUT, Party.TRAINER)):
    page = ArbiterPage.create(folder / f"page-{next(NUMBERS)}")
    for party in parties:
        page.take(party)
    recorder = Recorded()
    accountant = Accountant("d0", page, ANCHOR, 0, recorder, engine_id="e0", leases=[] if leases is None else leases)
    return page, recorder, accountant


def write(page, party, kind, start, end):
    page.open_span(party, kind, start)
    page.close_span(party, end)


def test_slices_are_consecutive_and_the_last_ends_exactly(folder):
    page, recorder, accountant = make(folder)
    write(page, Party.SERVING, Span.SERVING, 10, 60)
    accountant.close(LAG_NS + 100)
    accountant.close(LAG_NS + 250)
    accountant.close(260, final=True)
    assert [(event.t0_ns, event.t1_ns) for event in recorder] == [
        (ANCHOR.utc_ns(0), ANCHOR.utc_ns(100)),
        (ANCHOR.utc_ns(100), ANCHOR.utc_ns(250)),
        (ANCHOR.utc_ns(250), ANCHOR.utc_ns(260)),
    ]
    assert [event.serving_ns for event in recorder] == [50, 0, 0]


def test_a_slice_ends_where_a_lease_begins_and_ends(folder):
    leases = [LeaseChange(30, "L1", 4), LeaseChange(70, None, None)]
    page, recorder, accountant = make(folder, leases)
    write(page, Party.ROLLOUT, Span.YIELD, 40, 55)
    accountant.close(100, final=True)
    slices = [event for event in recorder if isinstance(event, DeviceSlice)]
    assert [(event.lease_id, event.t1_ns - event.t0_ns) for event in slices] == [(None, 30), ("L1", 40), (None, 30)]
    (preemption,) = [event for event in recorder if isinstance(event, Preemption)]
    assert (preemption.action, preemption.lease_id, preemption.step, preemption.duration_ns) == ("yield", "L1", 4, 15)
    assert len(leases) == 2  # a yield that ends much later still finds the lease it began under


def test_a_span_that_comes_too_late_is_measured(folder):
    page, recorder, accountant = make(folder)
    accountant.close(LAG_NS + 100)
    write(page, Party.SERVING, Span.SERVING, 80, 150)
    accountant.close(LAG_NS + 200)
    assert accountant.late_ns == 20
    assert [event.serving_ns for event in recorder] == [0, 50]


def test_what_a_dead_party_had_begun_is_not_its_work_any_more(folder):
    page, recorder, accountant = make(folder, parties=())
    with OtherParty(page.path, Party.ROLLOUT) as engine:
        engine.do("page.open_span(me, Span.ROLLOUT, 40)")
        accountant.close(LAG_NS + 100)
    accountant.close(LAG_NS + 200)
    assert [event.rollout_ns for event in recorder] == [60, 0]


def test_the_start_of_an_engine_is_counted_while_it_goes_on(folder):
    page, recorder, accountant = make(folder)
    accountant.starts(30)
    accountant.close(LAG_NS + 100)
    accountant.started(150)
    write(page, Party.SERVING, Span.SERVING, 180, 190)
    accountant.close(LAG_NS + 200)
    accountant.started(220)
    accountant.close(300, final=True)
    assert [event.activation_ns for event in recorder] == [70, 50, 0]
    assert [event.serving_ns for event in recorder] == [0, 10, 0]
    assert accountant.late_ns == 0


def test_an_agent_that_takes_up_a_page_accounts_for_nothing_twice(folder):
    page, recorder, _ = make(folder)
    write(page, Party.ROLLOUT, Span.YIELD, 10, 20)
    after = Accountant("d0", page, ANCHOR, 30, recorder, engine_id="e0", leases=[])
    after.close(60, final=True)
    assert [type(event) for event in recorder] == [DeviceSlice]
    assert after.late_ns == 0


@settings(max_examples=60, deadline=None)
@given(
    work=st.lists(
        st.tuples(
            st.sampled_from([Party.SERVING, Party.ROLLOUT, Party.TRAINER]), st.integers(1, 50), st.integers(1, 50)
        ),
        max_size=20,
    ),
    closes=st.lists(st.integers(1, 3000), max_size=6),
    changes=st.lists(st.integers(1, 3000), max_size=4, unique=True),
)
def test_every_nanosecond_is_in_exactly_one_slice_and_bucket(folder, work, closes, changes):
    leases = [LeaseChange(at, f"L{at}", 0) for at in sorted(changes)]
    page, recorder, accountant = make(folder, leases)
    ends = dict.fromkeys(Party, 0)
    kinds = {Party.SERVING: Span.SERVING, Party.ROLLOUT: Span.ROLLOUT, Party.TRAINER: Span.TRAIN}
    for party, gap, length in work:
        start = ends[party] + gap
        ends[party] = start + length
        write(page, party, kinds[party], start, ends[party])
    accountant.starts(1)
    accountant.started(5)
    for at in sorted(closes):
        accountant.close(LAG_NS + at)
    accountant.close(3001, final=True)
    covered = sum(event.t1_ns - event.t0_ns for event in recorder)
    counted = sum(getattr(event, f"{bucket}_ns") for event in recorder for bucket in BUCKETS)
    assert covered == counted == 3001
    for before, after in pairwise(recorder):
        assert before.t1_ns == after.t0_ns


def make_waits():
    told = Recorded()
    # Lease L1 until the third second, then L2.
    lease_at = lambda at_ns: ("L1", 7) if at_ns < 3 * SECOND else ("L2", 8)  # noqa: E731
    return Waits("d0", "e0", Anchor(0), told, lease_at), told


def waited(kind, start_ns, length_ns, aux=0, latency_ns=0):
    return SpanRecord(kind, start_ns, start_ns + length_ns, aux, latency_ns)


def test_the_yields_of_a_second_are_one_event():
    waits, told = make_waits()
    waits.add([waited(Span.YIELD, 100, 30, latency_ns=4), waited(Span.ROLLOUT, 130, 70)])
    waits.add([waited(Span.YIELD, 200, 50, latency_ns=8), waited(Span.YIELD, SECOND + 5, 10)])
    waits.tell(SECOND - 1)
    assert told == []
    waits.tell(SECOND)
    (event,) = told
    assert told.durable is False
    assert (event.action, event.lease_id, event.step, event.engine_id) == ("yield", "L1", 7, "e0")
    assert (event.count, event.duration_ns, event.longest_ns) == (2, 80, 50)
    assert (event.latency_ns, event.latency_mean_ns) == (8, 6)
    assert event.at_us == 0
    waits.tell()
    assert [event.count for event in told] == [2, 1]
    waits.tell()
    assert len(told) == 2


def test_holds_are_told_by_reason_and_lease():
    waits, told = make_waits()
    waits.add(
        [
            waited(Span.HELD, 10, 5, aux=Hold.REGRET),
            waited(Span.HELD, 20, 6, aux=Hold.REGRET),
            waited(Span.HELD, 30, 7, aux=Hold.SERVING_STEP),
            waited(Span.HELD, 40, 8, aux=Hold.NO_LEASE),
            waited(Span.HELD, 3 * SECOND, 9, aux=Hold.REGRET),
        ]
    )
    waits.tell()
    assert all(isinstance(event, events.Hold) for event in told)
    assert told.durable is False
    assert [(event.lease_id, event.reason, event.count, event.duration_ns) for event in told] == [
        (None, "no_lease", 1, 8),
        ("L1", "regret", 2, 11),
        ("L1", "serving_step", 1, 7),
        ("L2", "regret", 1, 9),
    ]


def test_a_wait_belongs_to_the_lease_it_began_under_and_the_second_it_ended_in():
    waits, told = make_waits()
    waits.add([waited(Span.YIELD, 3 * SECOND - 5, 10)])
    waits.tell(3 * SECOND)
    assert told == []
    waits.tell(4 * SECOND)
    assert [event.lease_id for event in told] == ["L1"]
