"""What an agent leaves to the one after it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rose.clock import Anchor
from rose.events import Lease
from rose.runtime.coserving.leases.lease_file import LeaseFile, Remembered

GRANTED = Lease(
    engine_id="e",
    lease_id="run-d0-3",
    event_id="run-d0-3/granted",
    action="granted",
    kv_budget_bytes=1,
    compute_share=0.5,
    expires_at_us=7,
    at_us=1,
)


@pytest.fixture
def page(tmp_path):
    return tmp_path / "page"


def test_what_one_agent_remembers_the_next_one_reads(page):
    assert LeaseFile(page, "run").read() == Remembered()
    LeaseFile(page, "run").write(Remembered(3, GRANTED))
    assert LeaseFile(page, "run").read() == Remembered(3, GRANTED)
    LeaseFile(page, "run").write(Remembered(3))
    assert LeaseFile(page, "run").read() == Remembered(3)


def test_what_is_of_another_run_or_not_whole_is_forgotten(page):
    LeaseFile(page, "run").write(Remembered(3, GRANTED))
    assert LeaseFile(page, "other").read() == Remembered()
    page.with_name("page.lease.json").write_text('{"run_id": "run", "num')
    assert LeaseFile(page, "run").read() == Remembered()


def test_a_lease_left_open_is_completed_under_the_ids_that_its_own_agent_would_use():
    assert Remembered(3).completed() == []
    granted, end = Remembered(3, GRANTED).completed()
    assert granted == GRANTED
    assert (end.event_id, end.action, end.lease_id) == ("run-d0-3/end", "expired", "run-d0-3")
    assert end.at_us > GRANTED.at_us


def test_it_ends_by_the_clock_of_its_device_and_never_before_it_was_granted():
    anchor = Anchor(10**18)
    before_us = anchor.now_us()
    _, end = Remembered(3, GRANTED).completed(anchor)
    assert before_us <= end.at_us <= anchor.now_us()
    late = replace(GRANTED, at_us=2 * 10**15)
    assert Remembered(3, late).completed(anchor)[1].at_us == late.at_us
    assert Remembered(3, GRANTED, expires_at_us=7).completed(anchor)[0].at_us == 7
