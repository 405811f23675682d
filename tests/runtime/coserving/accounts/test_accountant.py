from __future__ import annotations

from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.clock import Anchor
from rose.events import BUCKETS, DeviceSlice, Preemption
from rose.runtime.coserving.accounts.accountant import LAG_NS, Accountant
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.coserving.page import ArbiterPage, Party, Span
from tests.runtime.coserving.parties import OtherParty

ANCHOR = Anchor(1_000_000_000_000)
NUMBERS = count()


class Recorder(list):
    def __call__(self, event, *, durable=None):
        self.append(event)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pages")


def make(folder, leases=None):
    page = ArbiterPage.create(folder / f"page-{next(NUMBERS)}")
    for party in (Party.SERVING, Party.ROLLOUT, Party.TRAINER):
        page.take(party)
    recorder = Recorder()
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
    page = ArbiterPage.create(folder / f"page-{next(NUMBERS)}")
    recorder = Recorder()
    accountant = Accountant("d0", page, ANCHOR, 0, recorder, engine_id="e0", leases=[])
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
