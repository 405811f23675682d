from __future__ import annotations

from rose.runtime.scheduling.engines.workers import InFlight, WorkerTable
from rose.runtime.scheduling.messages import EngineReport, Heartbeat

REPORT = EngineReport(
    engine_id="e",
    device_id="d",
    url="",
    borrowed=False,
    alive=True,
    capacity=8,
    policy_version=0,
    lease_id=None,
    lease_left_ns=None,
    slack_ok=True,
)


def heard_worker():
    table = WorkerTable()
    table.hear(Heartbeat(device_id="d", engines=[REPORT]), 0)
    return table["e"]


def put(worker, *placed_ns):
    for at_ns in placed_ns:
        worker.in_flight[f"r{at_ns}"] = InFlight(f"r{at_ns}", 1, at_ns, "a")


def test_the_pace_is_that_of_the_turns_that_were_completed():
    worker = heard_worker()
    assert worker.facts(50).pace_ns == 0, "unknown until one was completed"
    put(worker, 20, 30)
    worker.took(100, 100)
    assert (worker.facts(100).pace_ns, worker.facts(100).pace_turns) == (100, 3)
    worker.in_flight.clear()
    worker.took(200, 120)
    assert (worker.facts(120).pace_ns, worker.facts(120).pace_turns) == (110, 2.8)


def test_an_engine_that_completes_nothing_for_longer_is_slower_now():
    worker = heard_worker()
    worker.took(100, 100)
    assert worker.facts(10_000).pace_ns == 100, "nothing is there to be completed"
    put(worker, 10_000)
    assert worker.facts(10_100).pace_ns == 100
    assert worker.facts(10_500).pace_ns == 500
    put(worker, 10_500)
    worker.in_flight.pop("r10000")
    worker.took(600, 10_600)
    assert worker.facts(10_600).pace_ns == 150
