"""The devices as their agents report them, the demand for them, and the clock offsets of their hosts."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rose.clock import utc_us
from rose.event_fields import INSTANT_NS_MAX
from rose.events import Clock
from rose.runtime.policy.lending import Reason
from rose.runtime.scheduling.messages import ClockReading, Heartbeat, HeartbeatReply, HostFacts
from rose.runtime.scheduling.refusals import RefusedError

#: An offset comes from the least delayed reading. Each reading is the quickest message of one second.
_READINGS = 16
_READING_NS = 1_000_000_000
_STEP_NS = 5_000_000  # Larger jumps of a wall clock are recorded.
_MOVED_NS = 60_000_000_000  # Minimum time between two events of drift.
FORGET_NS = 3600 * 1_000_000_000
HOLD_NS = 1_000_000_000  # The next turn of a trajectory comes soon.


def differs(reply: HeartbeatReply, previous: HeartbeatReply) -> bool:
    """Return whether the agent that has `previous` needs `reply`. The fields `seq` and `renew` do not count. A new time
    in `wanted_ns` counts only if it is at least twice the old time."""
    skipped: dict[str, object] = {"seq": 0, "renew": [], "wanted_ns": {}}
    return (
        reply.model_copy(update=skipped) != previous.model_copy(update=skipped)
        or reply.wanted_ns.keys() != previous.wanted_ns.keys()
        or any(value >= 2 * previous.wanted_ns[engine] for engine, value in reply.wanted_ns.items())
    )


class Demand:
    def __init__(self) -> None:
        self._recent: dict[str, tuple[int, int]] = {}  # By engine: the last wanted time, and its expiry.

    def assess(self, engines_ns: Mapping[str, int], now_ns: int) -> dict[str, int]:
        for engine_id, value in engines_ns.items():
            self._recent[engine_id] = (value, now_ns + HOLD_NS)
        self._recent = {engine_id: recent for engine_id, recent in self._recent.items() if recent[1] > now_ns}
        return {engine_id: value for engine_id, (value, _) in self._recent.items()}


@dataclass(slots=True)
class Device:
    """A device as its agent last reported it. Times are monotonic ns of the controller's host."""

    device_id: str
    heard_ns: int
    due_ns: int
    host: str | None = None
    host_facts: HostFacts | None = None
    fault: Reason | None = None
    serving_ns: int = 0
    observed_ns: int = 0
    engine_ids: tuple[str, ...] = ()
    clock_steps: int = 0
    _anchors_ns: tuple[int, int] | None = None
    _offsets_ns: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=_READINGS))
    _device_time_ahead_ns: int | None = None
    _recorded: Clock | None = None  # The last recorded event.
    _was_set: bool = False  # Whether either clock was set since.
    _moved_ns: int | None = None  # The time of the last recorded drift.
    _answer: HeartbeatReply | None = None  # The last answer.

    def lacks(self, reply: HeartbeatReply, seen: int) -> bool:
        return self._answer is None or self._answer.seq != seen or differs(reply, self._answer)

    def answer(self, reply: HeartbeatReply, seen: int) -> HeartbeatReply:
        """Return the reply with its number. The first number is the UTC in us, so numbers also rise after a restart."""
        if self._answer is None or self.lacks(reply, seen):
            number = utc_us() if self._answer is None else self._answer.seq + 1
            self._answer = reply.model_copy(update={"seq": number})
        return reply.model_copy(update={"seq": self._answer.seq})

    @property
    def clock_offset_ns(self) -> int | None:
        """Return the device's UTC minus the controller's UTC in ns, too low by the shortest delay of a message."""
        return max((offset_ns for _, offset_ns in self._offsets_ns), default=None)

    def read_clock(self, reading: ClockReading, now_ns: int, utc_ns: int) -> None:
        anchors_ns = (reading.utc_ns - reading.monotonic_ns, utc_ns - now_ns)
        if self._anchors_ns is not None:
            anchors = zip(anchors_ns, self._anchors_ns, strict=True)
            theirs_set, ours_set = (abs(now - last) > _STEP_NS for now, last in anchors)
            self.clock_steps += theirs_set
            if theirs_set or ours_set:
                self._offsets_ns.clear()
                self._was_set = True
        self._anchors_ns = anchors_ns
        began_ns, offset_ns = now_ns, reading.utc_ns - utc_ns
        if self._offsets_ns and now_ns - self._offsets_ns[-1][0] < _READING_NS:
            began_ns, before_ns = self._offsets_ns.pop()
            offset_ns = max(offset_ns, before_ns)
        self._offsets_ns.append((began_ns, offset_ns))
        if reading.device_time_ns is not None:
            self._device_time_ahead_ns = reading.device_time_ns - reading.utc_ns

    def clock_news(self) -> Clock | None:
        """Return an event if the clock offset is new or changed by over 5 ms. Drift is recorded at most every 60 s."""
        offset_ns, recorded = self.clock_offset_ns, self._recorded
        if offset_ns is None:
            return None
        if recorded is not None:
            if abs(offset_ns - recorded.offset_ns) <= _STEP_NS:
                # All readings are later than the jump, and show no change.
                self._was_set = self._was_set and len(self._offsets_ns) < _READINGS
                return None
            if not self._was_set:
                if self._moved_ns is not None and self.heard_ns - self._moved_ns < _MOVED_NS:
                    return None
                self._moved_ns = self.heard_ns
        device_time_offset_ns = None
        if self._device_time_ahead_ns is not None:
            # The readings may be from different moments.
            device_time_offset_ns = max(-INSTANT_NS_MAX, min(INSTANT_NS_MAX, offset_ns + self._device_time_ahead_ns))
        self._recorded = Clock(
            device_id=self.device_id,
            host=self.host,
            action="heard" if recorded is None else "set" if self._was_set else "moved",
            offset_ns=offset_ns,
            device_time_offset_ns=device_time_offset_ns,
        )
        self._was_set = False
        return self._recorded


class Devices(dict[str, Device]):
    """All devices by id. `expected` maps the fleet file's devices to hosts. If it is empty, any device may report."""

    def __init__(self, expected: Mapping[str, str] | None = None) -> None:
        super().__init__()
        self.expected = dict(expected or {})
        self._owners: dict[str, str] = {}

    @property
    def hosts(self) -> list[str]:
        return sorted({device.host for device in self.values() if device.host is not None})

    def hear(self, heartbeat: Heartbeat, now_ns: int, utc_ns: int) -> Device:
        if self.expected:
            self._check(heartbeat)
        due_ns = now_ns + int(heartbeat.hold_s * 1e9)
        if (device := self.get(heartbeat.device_id)) is None:
            device = self[heartbeat.device_id] = Device(heartbeat.device_id, now_ns, due_ns)
        device.heard_ns, device.due_ns = now_ns, due_ns
        device.host, device.host_facts, device.fault = heartbeat.host, heartbeat.host_facts, None
        if heartbeat.fault is not None:
            device.fault = Reason(heartbeat.fault_name or "engine_away", heartbeat.fault)
        device.serving_ns, device.observed_ns = heartbeat.serving_ns, heartbeat.observed_ns
        self._claim(device, tuple(report.engine_id for report in heartbeat.engines))
        if heartbeat.clock is not None:
            device.read_clock(heartbeat.clock, now_ns, utc_ns)
        return device

    def _check(self, heartbeat: Heartbeat) -> None:
        device_id = heartbeat.device_id
        if device_id not in self.expected:
            raise RefusedError(403, f"device_id {device_id!r} is not in the fleet file")
        if heartbeat.host != (host := self.expected[device_id]):
            raise RefusedError(403, f"host {heartbeat.host!r} reports device {device_id!r}, which is on host {host!r}")
        for report in heartbeat.engines:
            owner = report.device_id
            if owner == device_id:
                owner = self._owners.get(report.engine_id, device_id)
            if owner != device_id:
                raise RefusedError(403, f"device {device_id!r} reports engine {report.engine_id!r} of device {owner!r}")

    def _claim(self, device: Device, engine_ids: tuple[str, ...]) -> None:
        for name in device.engine_ids:
            self._owners.pop(name, None)
        device.engine_ids = engine_ids
        self._owners.update(dict.fromkeys(engine_ids, device.device_id))

    def forget(self, now_ns: int) -> None:
        for device_id, device in list(self.items()):
            if now_ns - device.due_ns > FORGET_NS:
                self._claim(device, ())
                del self[device_id]
