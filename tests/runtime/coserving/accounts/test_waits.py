from __future__ import annotations

from rose import events
from rose.clock import Anchor
from rose.runtime.coserving.accounts.waits import Waits
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.policy.slack import Hold

SECOND = 1_000_000_000


class Told(list):
    def __call__(self, event, *, durable=None):
        assert durable is False
        self.append(event)


def make():
    told = Told()
    # Lease L1 until the third second, then L2.
    lease_at = lambda at_ns: ("L1", 7) if at_ns < 3 * SECOND else ("L2", 8)  # noqa: E731
    return Waits("d0", "e0", Anchor(0), told, lease_at), told


def waited(kind, start_ns, length_ns, aux=0, latency_ns=0):
    return SpanRecord(kind, start_ns, start_ns + length_ns, aux, latency_ns)


def test_the_yields_of_a_second_are_one_event():
    waits, told = make()
    waits.add([waited(Span.YIELD, 100, 30, latency_ns=4), waited(Span.ROLLOUT, 130, 70)])
    waits.add([waited(Span.YIELD, 200, 50, latency_ns=8), waited(Span.YIELD, SECOND + 5, 10)])
    waits.tell(SECOND - 1)
    assert told == []
    waits.tell(SECOND)
    (event,) = told
    assert (event.action, event.lease_id, event.step, event.engine_id) == ("yield", "L1", 7, "e0")
    assert (event.count, event.duration_ns, event.longest_ns) == (2, 80, 50)
    assert (event.latency_ns, event.latency_mean_ns) == (8, 6)
    assert event.at_us == 0
    waits.tell()
    assert [event.count for event in told] == [2, 1]
    waits.tell()
    assert len(told) == 2


def test_holds_are_told_by_reason_and_lease():
    waits, told = make()
    waits.add(
        [
            waited(Span.HELD, 10, 5, aux=Hold.REGRET),
            waited(Span.HELD, 20, 6, aux=Hold.REGRET),
            waited(Span.HELD, 30, 7, aux=Hold.SERVING_STEP),
            waited(Span.HELD, 40, 8, aux=Hold.NO_LEASE),
            waited(Span.HELD, 3 * SECOND, 9, aux=Hold.REGRET),
            waited(Span.HELD, 3 * SECOND, 9, aux=99),
        ]
    )
    waits.tell()
    assert all(isinstance(event, events.Hold) for event in told)
    assert [(event.lease_id, event.reason, event.count, event.duration_ns) for event in told] == [
        (None, "no_lease", 1, 8),
        ("L1", "regret", 2, 11),
        ("L1", "serving_step", 1, 7),
        ("L2", "hold 99", 1, 9),
        ("L2", "regret", 1, 9),
    ]


def test_a_wait_belongs_to_the_lease_it_began_under_and_the_second_it_ended_in():
    waits, told = make()
    waits.add([waited(Span.YIELD, 3 * SECOND - 5, 10)])
    waits.tell(3 * SECOND)
    assert told == []
    waits.tell(4 * SECOND)
    assert [event.lease_id for event in told] == ["L1"]
