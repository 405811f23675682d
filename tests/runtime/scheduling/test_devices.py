"""Devices as their agents report them: which engines, and how far their hosts' clocks are off."""

from __future__ import annotations

from rose.runtime.scheduling.devices import FORGET_NS, Devices
from rose.runtime.scheduling.messages import ClockReading, Heartbeat

MS = 1_000_000


def hear(devices, sent_ns, *, delay_ns, offset_ns, ours_set_ns=0, **reading):
    """A heartbeat of a host whose clock is `offset_ns` ahead, received after `delay_ns`. UTC here is `sent_ns`, and
    `ours_set_ns` more since the clock here was set."""
    clock = ClockReading(monotonic_ns=sent_ns + 77, utc_ns=sent_ns + offset_ns, **reading)
    heartbeat = Heartbeat(device_id="d", engines=[], host="node-3", clock=clock)
    return devices.hear(heartbeat, sent_ns + delay_ns, sent_ns + delay_ns + ours_set_ns)


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
    # One that is only slewed is not.
    device = hear(devices, 2000 * MS, delay_ns=MS, offset_ns=-3600 * 1000 * MS + MS)
    assert device.clock_steps == 1


def test_that_our_own_clock_was_set_is_noticed_at_once_and_is_no_step_of_the_host_s():
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
    was_set = hear(devices, at_ns, delay_ns=0, offset_ns=-hour_ns, device_time_ns=at_ns + 50 * MS).clock_news()
    assert (was_set.action, was_set.offset_ns, was_set.device_time_offset_ns) == ("set", -hour_ns, 50 * MS)
    assert hear(devices, 30 * MS, delay_ns=0, offset_ns=-hour_ns).clock_news() is None
    # It is slewed, by less than a step each time.
    slewed = [
        hear(devices, (30 + 9 * at) * MS, delay_ns=0, offset_ns=2 * at * MS - hour_ns).clock_news()
        for at in range(1, 8)
    ]
    assert {news.action for news in slewed if news is not None} == {"moved"}
    ours = hear(devices, 200 * MS, delay_ns=0, offset_ns=14 * MS - hour_ns, ours_set_ns=-hour_ns).clock_news()
    assert (ours.action, ours.offset_ns) == ("set", 14 * MS)


def test_an_agent_that_says_nothing_of_its_clock_has_no_offset():
    devices = Devices()
    device = devices.hear(Heartbeat(device_id="d", engines=[], fault="no page"), 0, 0)
    assert (device.clock_offset_ns, device.fault) == (None, "no page")
    assert device.clock_news() is None


def test_a_device_that_nobody_speaks_for_is_forgotten():
    devices = Devices()
    devices.hear(Heartbeat(device_id="d", engines=[], hold_s=1.0), 0, 0)
    devices.forget(FORGET_NS)
    assert "d" in devices
    devices.forget(FORGET_NS + 1_000_000_001)
    assert "d" not in devices
