from hypothesis import given
from hypothesis import strategies as st

from rose.clock import monotonic_ns
from rose.runtime.scheduling import devices
from rose.runtime.scheduling.controller import Controller, excused_ns
from rose.runtime.scheduling.messages import Heartbeat, OpenRun
from rose.runtime.scheduling.workers import FORGET_NS, InFlight
from tests.runtime.scheduling.stand_ins import report

S = 1_000_000_000


class Waiting:
    def cancel(self):
        pass


def test_a_controller_that_did_not_run_takes_nobody_for_silent_and_notices_who_is_from_then_on(monkeypatch):
    monkeypatch.setattr(devices, "FORGET_NS", FORGET_NS)
    controller, now_ns = Controller(), monotonic_ns()
    heartbeat = Heartbeat(device_id="d", engines=[report("http://x", "making"), report("http://x", "idle")])
    controller.devices.hear(heartbeat, now_ns, 0)
    controller.workers.hear(heartbeat, now_ns)
    run, turn = controller.open_run(OpenRun(name="n", model="m")), InFlight("r", 1, now_ns, "a")
    turn.waiting = Waiting()
    controller.workers["making"].take(turn)
    now_ns += 3600 * S
    for seconds, heard in ((8, True), (62, False)):
        for _ in range(seconds):
            controller.pass_time(now_ns)
            now_ns += S
        assert [not turn.cut, "idle" in controller.workers, "d" in controller.devices, run.is_open] == [heard] * 4


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_nobody_is_silent_for_longer_than_while_it_was_heard_and_nobody_is_excused_beyond_now(at_ns, late_ns, now_ns):
    excused = excused_ns(at_ns, late_ns, now_ns)
    assert excused >= at_ns
    assert max(0, now_ns - excused) == max(0, now_ns - at_ns - late_ns)
    assert excused <= max(at_ns, now_ns)
