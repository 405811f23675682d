from __future__ import annotations

import shutil
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.clock import Anchor, monotonic_ns
from rose.events import Lease, Preemption
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.leasing import Leasing
from rose.runtime.coserving.page import ArbiterPage
from rose.runtime.policy.slack import LeaseTerms

TTL_NS = 3_000


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return ArbiterPage.create(tmp_path_factory.mktemp("page") / "page")


def make(page, record=None, ledger_failure=lambda: None):
    events = []
    page.set_lease(0, LeaseTerms(0, 0.0, 0))
    leasing = Leasing(
        device_id="d0",
        engine_id="e0",
        page=page,
        anchor=Anchor(0),
        ttl_ns=TTL_NS,
        kv_bytes_per_token=4,
        id_prefix="run",
        ledger_failure=ledger_failure,
        record=record or (lambda event, *, durable=None: events.append(event)),
    )
    return leasing, events


def test_a_lease_from_grant_to_release(page):
    leasing, events = make(page)
    state = leasing.grant(step=2, kv_budget_bytes=4000, compute_share=0.5, now_ns=100)
    assert state.lease_id == "run-d0-1"
    assert page.lease() == LeaseTerms(100 + TTL_NS, 0.5, 1000)
    leasing.renew(500)
    assert page.lease().expires_ns == 500 + TTL_NS
    leasing.end("released", None)
    assert page.lease().expires_ns == 0
    assert leasing.state is None
    assert [event.action for event in events] == ["granted", "renewed", "released"]
    assert {event.lease_id for event in events} == {"run-d0-1"}
    assert {event.step for event in events} == {2}


def test_the_budget_is_cut_once_and_then_frozen(page):
    leasing, events = make(page)
    leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=0)
    assert leasing.cut("pressure") == 2000
    assert leasing.cut("pressure") is None
    assert page.lease().kv_budget_tokens == 500
    leasing.record_preemption("cut", "pressure", before=4000, after=2000, requests=3)
    leasing.end("preempted", "pressure")
    assert [event.action for event in events] == ["granted", "resized", "frozen", "cut", "preempted"]
    (cut,) = [event for event in events if isinstance(event, Preemption)]
    assert (cut.kv_budget_bytes_before, cut.kv_budget_bytes_after, cut.requests) == (4000, 2000, 3)
    # The next lease starts with a budget of its own, not frozen.
    leasing.grant(step=1, kv_budget_bytes=8000, compute_share=1.0, now_ns=10)
    assert leasing.cut("pressure") == 4000
    leasing.end("released", None)


def test_two_leases_at_once_are_a_mistake(page):
    leasing, _ = make(page)
    leasing.grant(step=0, kv_budget_bytes=1, compute_share=1.0, now_ns=0)
    with pytest.raises(AssertionError, match="still in force"):
        leasing.grant(step=0, kv_budget_bytes=1, compute_share=1.0, now_ns=0)


@given(st.lists(st.sampled_from(["grant", "renew", "cut", "released", "preempted", "expired"]), max_size=40))
def test_granted_is_released_preempted_expired_and_open(page, moves):
    leasing, events = make(page)
    for now, move in enumerate(moves, start=1):
        if move == "grant":
            if leasing.state is None:
                leasing.grant(step=0, kv_budget_bytes=1024, compute_share=1.0, now_ns=now)
        elif leasing.state is not None:
            if move == "renew":
                leasing.renew(now)
            elif move == "cut":
                leasing.cut("pressure")
            else:
                leasing.end(move, None)
    actions = Counter(event.action for event in events if isinstance(event, Lease))
    ended = sum(actions[how] for how in ("released", "preempted", "expired"))
    assert actions["granted"] == ended + (leasing.state is not None)
    assert (page.lease().expires_ns > 0) == (leasing.state is not None)
    assert [change.lease_id is not None for change in leasing.history] == [
        event.action == "granted" for event in events if event.action in ("granted", "released", "preempted", "expired")
    ]
    if leasing.state is not None:
        leasing.end("released", None)


def test_a_ledger_that_cannot_be_written_stops_lending_and_hears_of_it_later(page, tmp_path):
    """A real writer whose folder is gone for a while."""
    ledger, away = tmp_path / "ledger", tmp_path / "away"
    with LedgerWriter.open(ledger, "w", "run", flush_interval_s=0.02) as writer:
        leasing, _ = make(page, writer.record)
        leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=0)
        shutil.move(ledger / "live" / "w", away)
        leasing.renew(100)
        while leasing.state is not None:  # A renewal need not wait for the disk, so a later one is told.
            leasing.renew(200)
        assert "cannot write" in leasing.failure
        assert page.lease().expires_ns == 0, "given back, whatever the ledger says"
        assert leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=0) is None
        assert leasing.state is None
        assert page.lease().expires_ns == 0, "never lent"
        shutil.move(away, ledger / "live" / "w")
        while writer.failure is not None:
            pass
    with catalog.connect(ledger) as connection:
        leases = connection.execute("SELECT lease_id, closed_by, close_reason FROM lease ORDER BY 1").fetchall()
    assert leases == [
        ("run-d0-1", "released", "the ledger cannot be written"),
        ("run-d0-2", "released", "never in force: the ledger could not be written"),
    ]


def test_while_the_ledger_is_known_to_fail_no_lease_is_tried(page):
    failures = ["no space left"]
    leasing, events = make(page, ledger_failure=lambda: failures[-1])
    assert leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=0) is None
    assert leasing.failure == "no space left"
    assert events == []
    failures.append(None)
    assert leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=0) is not None
    assert leasing.failure is None


def test_a_lease_granted_at_the_heartbeat_that_ended_another_begins_after_it(page):
    leasing, _ = make(page)
    heartbeat = monotonic_ns()
    leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=heartbeat)
    leasing.end("expired", "not renewed")
    leasing.grant(step=0, kv_budget_bytes=4000, compute_share=1.0, now_ns=heartbeat)
    times = [change.at_ns for change in leasing.history]
    assert times == sorted(times)
