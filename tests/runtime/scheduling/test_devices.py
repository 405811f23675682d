"""Devices as their agents report them: which engines, and how far their hosts' clocks are off."""

from __future__ import annotations

from rose.runtime.scheduling.devices import FORGET_NS, Devices
from rose.runtime.scheduling.messages import ClockReading, Heartbeat

MS = 1_000_000


def hear(devices, sent_ns, *, delay_ns, offset_ns, host="node-3"):
    """A heartbeat of a host whose clock is `offset_ns` ahead, received after `delay_ns`. UTC here is `sent_ns`."""
    clock = ClockReading(monotonic_ns=sent_ns + 77, utc_ns=sent_ns + offset_ns)
    heartbeat = Heartbeat(device_id="d", engines=[], host=host, clock=clock)
    return devices.hear(heartbeat, sent_ns, sent_ns + delay_ns)


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


def test_an_agent_that_says_nothing_of_its_clock_has_no_offset():
    devices = Devices()
    device = devices.hear(Heartbeat(device_id="d", engines=[], fault="no page"), 0, 0)
    assert (device.clock_offset_ns, device.fault) == (None, "no page")


def test_a_device_that_nobody_speaks_for_is_forgotten():
    devices = Devices()
    devices.hear(Heartbeat(device_id="d", engines=[], hold_s=1.0), 0, 0)
    devices.forget(FORGET_NS)
    assert "d" in devices
    devices.forget(FORGET_NS + 1_000_000_001)
    assert "d" not in devices
