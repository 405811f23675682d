import shutil
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose.clock import Anchor, monotonic_ns
from rose.config import CoservingConfig
from rose.events import Lease, Preemption
from rose.ledger.files import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.agent.succession import last_lease
from rose.runtime.coserving.leases.leasing import LastLease, Leasing
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.lease import LeaseRules
from rose.runtime.policy.policies import POLICIES
from rose.runtime.policy.slack import LeaseTerms
from tests.runtime.coserving.lending import cut_record
from tests.runtime.policy.test_lease import IDLE, facts

TTL_NS = 60_000_000_000
BYTES = 4
RULES = LeaseRules(ttl_ns=TTL_NS, compute_share=0.5, regret_share=0.05, borrow=POLICIES["rose"].borrow, guards=True)


class Borrower:
    def __init__(self, folder, record=None, ledger_failure=lambda: None, last=LastLease()):  # noqa: B008
        self.page = ArbiterPage.create(folder / "page")
        self.told, self.answered_ns = [], 0
        self.leasing = Leasing(
            device_id="d0",
            engine_id="e0",
            page=self.page,
            anchor=Anchor(0),
            kv_bytes_per_token=lambda: BYTES,
            id_prefix="run",
            coserving=CoservingConfig(policy="static_split", stretch=1.0, slack_share=0.0),
            record=record or self.record,
            take_back=self.take_back,
            ledger_failure=ledger_failure,
            last=last,
        )

    def record(self, event, *, durable=None):
        self.told.append(event)

    def take_back(self, reason):
        self.told.append(f"taken back, page at {self.page.lease().expires_ns}")
        return 2

    def facts(self, **changes):
        usual = {"rules": RULES, "wanted_ns": 1000, "lease_named": True, **changes}
        return lambda state: facts(state, self.answered_ns, cut=self.leasing.engine_cut(), **usual)

    def act(self, **changes):
        self.answered_ns = monotonic_ns()
        self.leasing.act(self.facts(**changes))

    @property
    def actions(self):
        return [event.action for event in self.told if not isinstance(event, str)]


@pytest.fixture
def borrower(tmp_path):
    return Borrower(tmp_path)


def test_a_lease_from_grant_to_release(borrower):
    began_us = Anchor(0).now_us()
    borrower.act(step=2)
    assert borrower.leasing.lease_id == "run-d0-1"
    terms = borrower.page.lease()
    assert terms == LeaseTerms(
        number=1,
        expires_ns=borrower.answered_ns + TTL_NS,
        compute_share=0.5,
        kv_budget_tokens=800 // BYTES,
        regret_share=0.05,
        policy=3,
    )
    borrower.act(wanted_ns=0)
    assert borrower.page.lease() == LeaseTerms()
    assert borrower.leasing.lease_id is None
    assert borrower.actions == ["granted", "released"]
    assert {(event.lease_id, event.step) for event in borrower.told} == {("run-d0-1", 2)}
    assert all(began_us <= event.at_us <= Anchor(0).now_us() for event in borrower.told), "by the device's clock"
    assert [change.lease_id for change in borrower.leasing.history] == ["run-d0-1", None]


def test_a_revocation_clears_the_page_then_tells_the_gateway_then_the_ledger(borrower):
    borrower.act()
    for late in (1, 2, 3):
        borrower.act(load=replace(IDLE, finished=late, late_by_lending=late))
    _, throttled, shrunk, taken, revoke, preempted = borrower.told
    assert taken == "taken back, page at 0"
    assert (throttled.action, throttled.compute_share, throttled.regret_share) == ("throttled", 0.25, 0.025)
    assert (shrunk.action, shrunk.kv_budget_bytes) == ("resized", 400)
    assert (revoke.action, revoke.requests, revoke.kv_budget_bytes_after) == ("revoke", 2, 0)
    assert preempted.action == "preempted"
    assert preempted.reason == "1 request late by lending, although throttled and shrunk"
    assert borrower.page.lease() == LeaseTerms()


def test_a_cut_of_the_engine_is_on_the_page_and_in_the_ledger(borrower):
    borrower.act()
    borrower.page.set_cut(cut_record(tokens_before=200, tokens_after=100))
    borrower.act()
    terms = borrower.page.lease()
    assert (terms.kv_budget_tokens, terms.frozen) == (100, True)
    assert borrower.actions == ["granted", "resized", "frozen", "cut"]
    taken = borrower.told[-1]
    assert (taken.at_us, taken.lease_id, taken.requests, taken.tokens_kept) == (5, "run-d0-1", 3, 70)
    assert (taken.kv_budget_bytes_before, taken.kv_budget_bytes_after) == (800, 400)
    assert (taken.duration_ns, taken.returned_bytes, taken.tokens_lost) == (900, 4096, 0)
    borrower.act()
    assert borrower.actions.count("cut") == 1
    # Another engine counts from 1 again; its cut of a lease that is over is told all the same.
    borrower.act(wanted_ns=0)
    borrower.page.set_cut(cut_record(tokens_before=100, tokens_after=50, at_ns=7000))
    borrower.act(wanted_ns=0)
    assert borrower.actions[-1] == "cut"


def last_of(events):
    leases = [event for event in events if isinstance(event, Lease)]
    if not leases:
        return LastLease()
    lease_id = leases[-1].lease_id
    number, own = int(lease_id.rpartition("-")[2]), [event for event in leases if event.lease_id == lease_id]
    if own[-1].action in ("released", "preempted", "expired"):
        return LastLease(number)
    return LastLease(number, own[0], own[-1].expires_at_us)


def restarted(folder, before, record=None, last=None):
    before.page.close()
    return Borrower(folder, record, last=last or last_of(before.told))


def test_a_successor_ends_what_its_predecessor_left_open(tmp_path):
    before = Borrower(tmp_path)
    before.act(step=4)
    after = restarted(tmp_path, before)
    assert after.page.lease() == LeaseTerms()
    (ended,) = after.told
    assert (ended.event_id, ended.action, ended.lease_id, ended.step) == ("run-d0-1/end", "expired", "run-d0-1", 4)
    after.act()
    assert after.leasing.lease_id == "run-d0-2"
    third = restarted(tmp_path, after)
    third.act()
    assert [event.lease_id for event in third.told] == ["run-d0-2", "run-d0-3"]


def test_a_lease_that_was_left_open_ends_when_it_expired_and_never_before_it_was_granted():
    anchor, lease = Anchor(10**18), {"lease_id": "l", "action": "granted", "kv_budget_bytes": 1, "compute_share": 0.5}
    assert LastLease(3).end(anchor) is None
    before_us = anchor.now_us()
    granted = Lease(**lease, expires_at_us=7, at_us=1)
    assert before_us <= LastLease(3, granted, 1 << 60).end(anchor).at_us <= anchor.now_us()
    assert LastLease(3, granted, 7).end(anchor).at_us == 7
    late = replace(granted, at_us=2 * 10**15)
    assert LastLease(3, late, 1 << 60).end(anchor).at_us == late.at_us


def test_a_lease_that_an_agent_was_killed_in_has_one_grant_and_one_end_in_the_ledger(tmp_path):
    ledger = tmp_path / "ledger"
    with LedgerWriter.open(ledger, "agent", "run") as writer:
        before = Borrower(tmp_path, writer.record)
        before.act()
    last = last_lease(ledger, "run", "d0")
    assert (last.number, last.granted.lease_id) == (1, "run-d0-1")
    with LedgerWriter.open(ledger, "agent", "run") as writer:
        restarted(tmp_path, before, writer.record, last)
    with catalog.connect(ledger) as connection:
        changes = connection.execute("SELECT action FROM lease_event ORDER BY event_time, seq").fetchall()
        assert connection.execute("SELECT closed_by FROM lease").fetchall() == [("expired",)]
    assert changes == [("granted",), ("expired",)]
    assert last_lease(ledger, "run", "d0") == LastLease(1)


MOVES = st.lists(st.sampled_from(["wanted", "unwanted", "late", "cut", "end", "restart"]), max_size=25)


@settings(max_examples=40)
@given(MOVES)
def test_granted_is_released_preempted_expired_and_open(tmp_path_factory, moves):
    folder = tmp_path_factory.mktemp("moves")
    borrower = Borrower(folder)
    told, late, cuts = borrower.told, 0, 0
    for move in moves:
        if move == "restart":
            borrower = restarted(folder, borrower)
            told += borrower.told
            borrower.told = told
        elif move == "end":
            borrower.leasing.end("the agent stops")
        elif move == "cut" and borrower.leasing.state.in_force and not borrower.leasing.state.frozen:
            cuts += 1
            tokens = borrower.page.lease().kv_budget_tokens
            cut = cut_record(borrower.leasing.state.number, tokens_before=tokens, tokens_after=tokens // 2)
            borrower.page.set_cut(replace(cut, at_ns=cuts, count=cuts))
            borrower.act()
        else:
            late += move == "late"
            borrower.act(
                wanted_ns=0 if move == "unwanted" else 1000, load=replace(IDLE, finished=2 * late, late_by_lending=late)
            )
        assert (borrower.page.lease().expires_ns > 0) == borrower.leasing.state.in_force
    borrower.leasing.end("the agent stops")
    changes = [event for event in told if isinstance(event, Lease)]
    granted = [event.lease_id for event in changes if event.action == "granted"]
    ended = [event.lease_id for event in changes if event.action in ("released", "preempted", "expired")]
    assert granted == ended == list(dict.fromkeys(granted))
    assert Counter(isinstance(event, Preemption) and event.action == "cut" for event in told)[True] == cuts
    borrower.page.close()


def test_a_ledger_that_cannot_be_written_stops_lending_and_hears_of_it_later(tmp_path):
    ledger, away = tmp_path / "ledger", tmp_path / "away"
    with LedgerWriter.open(ledger, "w", "run", flush_interval_s=0.02) as writer:
        borrower = Borrower(tmp_path, writer.record)
        leasing = borrower.leasing
        borrower.act()
        shutil.move(ledger / "live" / "w", away)
        while leasing.state.in_force:  # A renewal need not wait for the disk, so a later one is told.
            leasing.state = replace(leasing.state, expires_ns=monotonic_ns() + TTL_NS // 2)
            borrower.act()
        assert "cannot write" in leasing.failure
        assert borrower.page.lease().expires_ns == 0, "given back, whatever the ledger says"
        borrower.act()
        assert not leasing.state.in_force
        assert borrower.page.lease().expires_ns == 0, "never lent"
        shutil.move(away, ledger / "live" / "w")
        while writer.failure is not None:
            pass
    with catalog.connect(ledger) as connection:
        leases = connection.execute("SELECT lease_id, closed_by, close_reason FROM lease ORDER BY 1").fetchall()
    assert leases[0] == ("run-d0-1", "released", "the ledger cannot be written")
    assert set(leases[1:]) <= {
        (f"run-d0-{number}", "released", "never in force: the ledger could not be written") for number in range(2, 5)
    }
