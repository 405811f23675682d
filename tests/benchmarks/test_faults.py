"""The parts of the fault trials that need no deployment."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter

import pytest

from benchmarks.faults import books, claims
from benchmarks.faults.books import Books, EngineChanged, LeaseChanged
from benchmarks.faults.clients import Served
from benchmarks.faults.fleet import Fleet, FleetError
from benchmarks.faults.plan import Fault, Victim, faults
from benchmarks.faults.trial import Trial
from benchmarks.faults.watch import LeaseSeen, PageWatch, back_ns, lease_end_ns, overrun_ns
from benchmarks.report import ROOT, Report
from rose.clock import monotonic_ns, utc_us
from rose.events import Engine, Lease
from rose.ledger.writer import LedgerWriter
from rose.runtime.coserving.page import ArbiterPage, Party, Span, SpanRecord
from rose.runtime.policy.slack import LeaseTerms

S = 1_000_000_000
KILLED = Fault(Victim.AGENT, "idle", 0.0)


def trial(number=1, *, at_s=10, until_s=20, lease=4, lending_s=15, fault=KILLED, at_us=0, engine_pid=None):
    return Trial(
        number=number, fault=fault, pid=1, engine_pid=engine_pid, wanted=False, at_ns=at_s * S,
        at_us=at_us or at_s * 1_000_000, lease=lease, replaced_ns=at_s * S,
        lending_ns=None if lending_s is None else lending_s * S, until_ns=until_s * S, until_us=until_s * 1_000_000,
    )  # fmt: skip


def request(sent_s, ended_s, *, failed=False, late=False):
    return Served(sent_s * S, ended_s * S, failed, late or failed, None, "it broke" if failed else None)


def work(start_s, end_s):
    return SpanRecord(Span.ROLLOUT, round(start_s * S), round(end_s * S))


def seen(**changed):
    facts = {
        "trials": [trial()],
        "leases": [LeaseSeen(0, 0, 0), LeaseSeen(1 * S, 4, 12 * S), LeaseSeen(14 * S, 5, 17 * S)],
        "work": [work(9, 11), work(15, 16)],
        "served": [request(1, 2), request(9, 11), request(12, 13)],
        "health": [(11 * S, True)],
        "serving_pids": [7],
        "ttl_s": 3.0,
        "planned": 1,
    }
    return claims.Seen(**{**facts, **changed})


def claimed(facts, ledger=None):
    report = Report("faults", quick=True)
    claims.claim(report, facts, ledger)
    return {claim.name.strip(): claim for claim in report.claims}, report.detail


# ------------------------------------------------------------------ what is planned


def test_a_seed_plans_the_same_faults_again():
    assert faults(30, 5) == faults(30, 5)
    assert faults(30, 5) != faults(30, 6)


def test_every_part_is_struck_at_every_moment_before_one_is_again():
    planned = faults(100, 1)
    counts = Counter((fault.victim, fault.moment) for fault in planned)
    assert set(counts.values()) == {10}
    stopped = [fault.stop_s for fault in planned if fault.stop_s is not None]
    assert 5 <= len(stopped) <= 30
    assert all(1 <= stop_s <= 6 for stop_s in stopped)


# ------------------------------------------------------------------ what is seen of the device


def test_a_lease_ends_when_it_is_withdrawn_or_expires():
    leases = [LeaseSeen(1, 1, 100), LeaseSeen(2, 1, 200), LeaseSeen(150, 0, 0), LeaseSeen(160, 2, 300)]
    assert lease_end_ns(leases, 1) == 150
    assert lease_end_ns([*leases[:2], LeaseSeen(250, 2, 400)], 1) == 200
    assert lease_end_ns([LeaseSeen(1, 1, 100)], 1) == 100, "nobody withdrew it"
    assert lease_end_ns([LeaseSeen(1, 1, monotonic_ns() + S)], 1) is None, "in force"
    assert lease_end_ns(leases, 9) is None


def test_a_step_that_outlasts_its_lease_keeps_the_device_until_it_ends():
    steps = [work(1, 2), work(4, 6), work(9, 10)]
    assert back_ns(steps, 0, 5 * S, 8 * S) == 6 * S
    assert back_ns(steps, 0, 7 * S, 8 * S) == 7 * S
    assert overrun_ns(steps, 0, 3 * S, 8 * S) == 1 * S
    assert overrun_ns(steps, 0, 5 * S, 8 * S) == 0


def test_the_watch_sees_leases_change_and_work_be_done(tmp_path):
    page = ArbiterPage.create(tmp_path / "page")
    page.take(Party.ROLLOUT)
    watch = PageWatch(ArbiterPage(tmp_path / "page"))
    watch.start()
    expires_ns = monotonic_ns() + 60 * S
    page.set_lease(LeaseTerms(number=3, expires_ns=expires_ns, kv_budget_tokens=1, compute_share=1.0))
    began = monotonic_ns()
    page.write_span(Party.ROLLOUT, SpanRecord(Span.ROLLOUT, began, began + 10))
    page.write_span(Party.ROLLOUT, SpanRecord(Span.HELD, began, began + 10))
    deadline = time.monotonic() + 20
    while not (watch.work and watch.lease(monotonic_ns())) and time.monotonic() < deadline:
        time.sleep(0.01)
    watch.stop()
    assert [span.kind for span in watch.work] == [Span.ROLLOUT]
    assert watch.leases[-1].number == 3
    assert watch.works_since(began) == began
    assert watch.works_since(began + 1) is None


# ------------------------------------------------------------------ what is claimed


def test_requests_in_flight_at_a_fault_or_sent_shortly_after_are_touched_by_it():
    served = [request(1, 9), request(9, 11), request(17, 18), request(19, 20)]
    assert claims.touched(served, trial()) == served[1:3]
    assert claims.before(served, [trial()]) == [served[0], served[3]]


def test_the_device_is_back_when_the_lease_is_over_and_its_last_step():
    assert claims.device_back_s(seen(), trial()) == 2.0
    assert claims.device_back_s(seen(work=[work(11, 13)]), trial()) == 3.0
    lived_on = [LeaseSeen(1 * S, 4, 12 * S), LeaseSeen(2 * S, 4, 90 * S)]
    assert claims.device_back_s(seen(leases=lived_on), trial()) is None
    worker = trial(fault=Fault(Victim.WORKER, "idle", 0.0))
    assert claims.device_back_s(seen(), worker) is None, "its lease is not the fault's to end"


def test_all_is_well_where_nothing_was_noticed():
    figures, detail = claimed(seen())
    assert all(claim.holds for claim in figures.values()), figures
    assert detail["trials"][0]["lending_again_s"] == 5.0
    assert detail["by_victim"]["agent killed"]["device_back_s"] == {"median": 2.0, "worst": 2.0}


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"served": [request(9, 11, failed=True)]}, "serving requests failed because of a fault"),
        ({"served": [request(1, 2), request(9, 11, late=True)]}, "over budget after a fault, more than without"),
        ({"health": [(11 * S, False)]}, "/health of serving not answered"),
        ({"serving_pids": [7, 8]}, "serving started anew"),
        ({"work": [work(9, 13.5)]}, "device back with serving, worst trial"),
        ({"trials": [trial(lending_s=None)]}, "trials after which lending came back"),
        ({"planned": 2}, "trials carried out"),
        ({"ended": True}, "faults that ended the deployment"),
    ],
)
def test_what_goes_wrong_is_a_claim_that_does_not_hold(changed, name):
    figures, _ = claimed(seen(**changed))
    assert [claim.name.strip() for claim in figures.values() if not claim.holds] == [name]


# ------------------------------------------------------------------ what the ledger says


def changes(*actions, number=4, at_s=11):
    return [LeaseChanged(number, action, None, at_s * 1_000_000) for action in actions]


def test_a_lease_that_ended_twice_or_never_is_not_closed_once():
    ledger = Books(leases=[*changes("granted", "renewed", "expired"), *changes("granted", number=5)])
    assert ledger.not_closed_once() == {5: 0}
    ledger.leases += changes("released")
    assert ledger.not_closed_once() == {4: 2, 5: 0}
    figures, _ = claimed(seen(), ledger)
    assert figures["leases met by a fault that did not end exactly once"].value == 1


def test_a_fault_leaves_its_trace_in_the_ledger():
    killed = trial(fault=Fault(Victim.SERVER, "idle", 0.0), engine_pid=77)
    assert Books().trace(killed) is None
    assert Books(leases=changes("released", at_s=30)).trace(killed) is None, "long after"
    assert "lease released" in str(Books(leases=changes("released")).trace(killed))
    died = EngineChanged("died", 77, "the process ended", 11 * 1_000_000)
    assert Books(engines=[died]).trace(killed) == "engine died (the process ended)"
    assert Books(engines=[died]).trace(trial(engine_pid=78)) is None, "another engine"


def test_the_books_are_read_from_a_ledger(tmp_path):
    with LedgerWriter.open(tmp_path / "ledger", "agent", "demo-1") as writer:
        for action in ("granted", "expired"):
            writer.record(
                Lease(
                    engine_id="serving-0-rollout", lease_id="demo-1-serving-0-4", action=action, kv_budget_bytes=1,
                    compute_share=1.0, expires_at_us=utc_us(),
                )
            )  # fmt: skip
        writer.record(Engine(engine_id="serving-0-rollout", action="died", role="rollout", model="m", pid=77))
    ledger = books.read(tmp_path / "ledger", "demo")
    assert ledger.not_closed_once() == {}
    assert [change.number for change in ledger.leases] == [4, 4]
    assert [(engine.action, engine.pid) for engine in ledger.engines] == [("died", 77)]
    assert ledger.problems == []


# ------------------------------------------------------------------ what cannot be started


def test_a_deployment_that_cannot_start_says_why_and_leaves_nothing(tmp_path):
    blocker = tmp_path / "file"
    blocker.write_text("not a folder")
    with pytest.raises(FleetError, match="the deployment ended"), Fleet(blocker / "ledger"):
        pass


def test_a_host_with_one_core_is_refused_in_a_sentence(tmp_path):
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{core}}}); from benchmarks.faults.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "needs two CPU cores" in done.stderr
    assert "Traceback" not in done.stderr
