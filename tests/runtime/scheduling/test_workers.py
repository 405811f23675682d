from hypothesis import given
from hypothesis import strategies as st

from rose.runtime.scheduling.messages import Heartbeat
from rose.runtime.scheduling.workers import InFlight, WorkerTable
from tests.runtime.scheduling.stand_ins import report

REPORT = report("", "e")


def heard_worker():
    table = WorkerTable()
    table.hear(Heartbeat(device_id="d", engines=[REPORT]), 0)
    return table["e"]


def put(worker, *placed_ns):
    for at_ns in placed_ns:
        worker.take(InFlight(f"r{at_ns}", 1, at_ns, "a"))


def test_the_pace_is_that_of_the_turns_that_were_completed():
    worker = heard_worker()
    assert worker.facts.turn_ns(50) == 0, "unknown until one was completed"
    put(worker, 20, 30)
    worker.record_pace(100, 100, 40)
    assert (worker.facts.turn_ns(100), worker.facts.pace_turns, worker.facts.pace_tokens) == (100, 3, 40)
    for item in list(worker.in_flight.values()):
        worker.release(item)
    worker.record_pace(200, 120, 140)
    assert (worker.facts.turn_ns(120), worker.facts.pace_turns, worker.facts.pace_tokens) == (110, 2.8, 50)


def test_an_engine_that_completes_nothing_for_longer_is_slower_now():
    worker = heard_worker()
    worker.record_pace(100, 100, 1)
    assert worker.facts.turn_ns(10_000) == 100, "nothing is there to be completed"
    put(worker, 10_000)
    assert worker.facts.turn_ns(10_100) == 100
    assert worker.facts.turn_ns(10_500) == 500
    put(worker, 10_500)
    worker.release(worker.in_flight["r10000"])
    worker.record_pace(600, 10_600, 1)
    assert worker.facts.turn_ns(10_600) == 150


_CHANGES = {
    "hear": lambda worker, n: worker.hear(REPORT.model_copy(update=_reported(n)), n * 100, n * 100 + 50),
    "expect": lambda worker, n: worker.expect(n * 10),
    "suspect": lambda worker, n: worker.suspect(),
    "withdraw": lambda worker, n: worker.withdraw(),
    "take": lambda worker, n: put(worker, n * 100),
    "release": lambda worker, n: worker.release(next(iter(worker.in_flight.values()), InFlight("none", 1, 0, "a"))),
    "took": lambda worker, n: worker.record_pace(n + 1, n * 100, n),
}


def _reported(n):
    changes = {"borrowed": n % 3 > 0, "alive": n % 4 > 0, "slack_ok": n % 2 > 0, "capacity": n, "policy_version": n}
    return changes | ({"lease_id": f"l{n // 5}", "lease_left_ns": n * 7} if n % 3 > 1 else {})


@given(st.lists(st.tuples(st.sampled_from(sorted(_CHANGES)), st.integers(0, 20)), max_size=30))
def test_what_routing_knows_of_an_engine_is_never_of_before(changes):
    worker = heard_worker()
    for name, number in changes:
        _CHANGES[name](worker, number)
        assert worker.facts == worker._look()
        assert worker.facts is worker.facts, "and looked at once"
