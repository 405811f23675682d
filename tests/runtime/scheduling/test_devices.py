import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.clock import both_ns
from rose.event_fields import INSTANT_NS_MAX
from rose.ledger.writer import LedgerWriter
from rose.runtime.scheduling.controller import Controller
from rose.runtime.scheduling.devices import FORGET_NS, Devices
from rose.runtime.scheduling.messages import ClockReading, Heartbeat
from rose.runtime.scheduling.refusals import RefusedError
from tests.ledger.conftest import ask
from tests.runtime.scheduling.stand_ins import report

MS = 1_000_000
UTC_NS = 2**61
_GAPS_NS = st.integers(10, 20_000).map(lambda ms: ms * MS)


def hear(devices, sent_ns, *, delay_ns, offset_ns, ours_set_ns=0, **reading):
    """Hear a host whose clock is `offset_ns` ahead, after `delay_ns`."""
    clock = ClockReading(monotonic_ns=sent_ns + 77, utc_ns=UTC_NS + sent_ns + offset_ns, **reading)
    heartbeat = Heartbeat(device_id="d", engines=[], host="node-3", clock=clock)
    return devices.hear(heartbeat, sent_ns + delay_ns, UTC_NS + sent_ns + delay_ns + ours_set_ns)


def test_the_clock_s_offset_is_that_of_the_quickest_message():
    devices = Devices()
    for number, delay_ms in enumerate((30, 2, 90, 11)):
        device = hear(devices, number * 1000 * MS, delay_ns=delay_ms * MS, offset_ns=500 * MS)
    assert device.clock_offset_ns == 498 * MS
    assert (device.host, device.clock_steps) == ("node-3", 0)


def test_a_clock_that_was_set_is_noticed_and_measured_anew():
    devices = Devices()
    hear(devices, 0, delay_ns=MS, offset_ns=500 * MS)
    device = hear(devices, 1000 * MS, delay_ns=MS, offset_ns=-3600 * 1000 * MS)
    assert (device.clock_steps, device.clock_offset_ns) == (1, -3600 * 1000 * MS - MS)
    device = hear(devices, 2000 * MS, delay_ns=MS, offset_ns=-3600 * 1000 * MS + MS)
    assert device.clock_steps == 1
    # Nor is a jump of the controller's own clock, which is noticed at once.
    devices = Devices()
    for number in range(4):
        hear(devices, number * 1000 * MS, delay_ns=MS, offset_ns=0)
    device = hear(devices, 4000 * MS, delay_ns=MS, offset_ns=0, ours_set_ns=3600 * 1000 * MS)
    assert (device.clock_steps, device.clock_offset_ns) == (0, -3600 * 1000 * MS - MS)


def test_a_clock_is_told_of_once_and_again_when_it_was_set_or_has_moved():
    devices, hour_ns = Devices(), 3600 * 1000 * MS
    (heard,) = [
        news
        for number in range(4)
        if (news := hear(devices, number * MS, delay_ns=2 * MS - number, offset_ns=50 * MS).clock_news()) is not None
    ]
    assert (heard.action, heard.device_id, heard.host) == ("heard", "d", "node-3")
    assert (heard.offset_ns, heard.device_time_offset_ns) == (48 * MS, None)
    # The host's wall clock is set back by an hour: its device's time goes on as before.
    at_ns = 20 * MS
    was_set = hear(devices, at_ns, delay_ns=0, offset_ns=-hour_ns, device_time_ns=UTC_NS + at_ns + 50 * MS).clock_news()
    assert (was_set.action, was_set.offset_ns, was_set.device_time_offset_ns) == ("set", -hour_ns, 50 * MS)
    assert hear(devices, 30 * MS, delay_ns=0, offset_ns=-hour_ns).clock_news() is None
    slewed = [
        hear(devices, (30 + 9 * at) * MS, delay_ns=0, offset_ns=2 * at * MS - hour_ns).clock_news()
        for at in range(1, 8)
    ]
    assert {news.action for news in slewed if news is not None} == {"moved"}
    ours = hear(devices, 200 * MS, delay_ns=0, offset_ns=14 * MS - hour_ns, ours_set_ns=-hour_ns).clock_news()
    assert (ours.action, ours.offset_ns) == ("set", 14 * MS)


def test_a_device_without_a_clock_reading_has_no_offset_and_a_silent_one_is_forgotten():
    devices = Devices()
    device = devices.hear(Heartbeat(device_id="d", engines=[], fault="no page", hold_s=1.0), 0, 0)
    assert (device.clock_offset_ns, device.fault.text, device.clock_news()) == (None, "no page", None)
    devices.forget(FORGET_NS)
    assert "d" in devices
    devices.forget(FORGET_NS + 1_000_000_001)
    assert "d" not in devices


def test_a_step_that_nothing_came_of_is_not_told_of_what_comes_later():
    devices = Devices()
    hear(devices, 0, delay_ns=0, offset_ns=0).clock_news()
    # Set by 6 ms, of which late messages show 3.
    for at in range(1, 40):
        assert hear(devices, at * 1000 * MS, delay_ns=3 * MS, offset_ns=6 * MS).clock_news() is None
    drifting = (
        hear(devices, at * 1000 * MS, delay_ns=3 * MS, offset_ns=(at - 34) * MS).clock_news() for at in range(40, 46)
    )
    (news,) = [news for news in drifting if news is not None]
    assert news.action == "moved"


async def test_our_clocks_are_read_at_one_moment(monkeypatch):
    """Otherwise all hosts' offsets are forgotten whenever another thread runs in between."""
    read = time.time_ns

    def late():
        time.sleep(0.05)
        monkeypatch.setattr(time, "time_ns", read)
        return read()

    controller = Controller()
    await controller.start()
    try:
        for age_ns in (0, 0, 300 * MS):
            monotonic_ns, utc_ns = both_ns()
            clock = ClockReading(monotonic_ns=monotonic_ns - age_ns, utc_ns=utc_ns - age_ns)
            if age_ns:
                monkeypatch.setattr(time, "time_ns", late)
            await controller.heartbeat(Heartbeat(device_id="d", engines=[], clock=clock))
        assert time.time_ns is read
        assert controller.devices["d"].clock_offset_ns > -150 * MS
    finally:
        await controller.stop()


@given(st.lists(st.tuples(_GAPS_NS, st.integers(0, 3000 * MS)), min_size=1), st.integers(-(2**60), 2**60))
def test_a_clock_that_stands_still_is_told_of_once_a_minute_at_most_however_late_messages_are(messages, offset_ns):
    devices, sent_ns, heard, events = Devices(), 0, 0, []
    for gap_ns, delay_ns in messages:
        sent_ns += gap_ns
        heard = max(heard, sent_ns + delay_ns)
        device = hear(devices, sent_ns, delay_ns=heard - sent_ns, offset_ns=offset_ns)
        if (news := device.clock_news()) is not None:
            events.append((heard, news))
    assert [news.action for _, news in events] == ["heard", *["moved"] * (len(events) - 1)]
    assert all(later - earlier >= 60_000 * MS for (earlier, _), (later, _) in pairwise(events[1:]))
    assert all(news.offset_ns <= offset_ns for _, news in events)
    assert device.clock_steps == 0


@given(
    st.lists(st.integers(0, 3000).map(lambda ms: (50 + ms) * MS), min_size=100, max_size=400),
    st.integers(-(2**60), 2**60),
)
def test_late_messages_are_not_told_of_as_long_as_some_are_quick(delays_ns, offset_ns):
    devices, events = Devices(), []
    for number, delay_ns in enumerate(delays_ns):
        device = hear(devices, 10 * number * MS, delay_ns=delay_ns if number % 50 else MS, offset_ns=offset_ns)
        events.append(device.clock_news())
    assert [(news.action, news.offset_ns) for news in events if news is not None] == [("heard", offset_ns - MS)]


@pytest.mark.parametrize("utc_ns", [0, INSTANT_NS_MAX])
def test_a_clock_at_either_end_of_time_is_an_event(utc_ns, tmp_path):
    now_ns = 1_800_000_000 * 1000 * MS
    devices = Devices()
    clock = ClockReading(monotonic_ns=5, utc_ns=utc_ns, device_time_ns=utc_ns)
    device = devices.hear(Heartbeat(device_id="d", engines=[], clock=clock), 7, now_ns)
    with LedgerWriter.open(tmp_path / "ledger", "w", "r") as writer:
        writer.record(device.clock_news())
    offsets = ask(tmp_path / "ledger", "SELECT offset_ns, device_time_offset_ns FROM clock")
    assert offsets == [(utc_ns - now_ns, utc_ns - now_ns)]
    assert ask(tmp_path / "ledger", "SELECT * FROM faulty_event") == []


def test_an_engine_is_of_the_device_that_reported_it_until_that_is_forgotten():
    def named(device_id, *engine_ids):
        engines = [report("http://127.0.0.1:1", name, device_id=device_id) for name in engine_ids]
        return Heartbeat(device_id=device_id, engines=engines, host="node-3")

    devices = Devices({"a": "node-3", "b": "node-3"})
    devices.hear(named("a", "e0", "e1", "e1"), 0, UTC_NS)
    with pytest.raises(RefusedError, match=r"device 'b' .* engine 'e1' of device 'a'"):
        devices.hear(named("b", "e2", "e1"), MS, UTC_NS)
    assert list(devices) == ["a"]
    devices.hear(named("a", "e0"), 2 * MS, UTC_NS)
    devices.hear(named("b", "e1"), 3 * MS, UTC_NS)
    devices.hear(named("b", "e1"), 4 * MS + FORGET_NS, UTC_NS)
    devices.forget(4 * MS + FORGET_NS)
    assert devices.hear(named("b", "e0", "e1"), 5 * MS + FORGET_NS, UTC_NS).engine_ids == ("e0", "e1")
