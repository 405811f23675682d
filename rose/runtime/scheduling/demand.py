"""The demand for devices, and the numbers of the answers to agents."""

from collections import OrderedDict
from collections.abc import Mapping

from rose.clock import utc_us
from rose.runtime.scheduling.messages import HeartbeatReply

HOLD_NS = 1_000_000_000  # The next turn of a trajectory comes soon.
DEVICES_MAX = 10_000  # Devices with a stored answer; the oldest is forgotten first.


def differs(reply: HeartbeatReply, previous: HeartbeatReply) -> bool:
    """Return whether the agent needs a new answer. A longer wanted time alone must have doubled."""
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


class Answers:
    """The last answer to each device. Numbers start at the time of day, so they rise across restarts."""

    def __init__(self, first: int | None = None) -> None:
        self._number = utc_us() if first is None else first
        self._last: OrderedDict[str, HeartbeatReply] = OrderedDict()

    def due(self, device_id: str, seen: int, reply: HeartbeatReply) -> bool:
        last = self._last.get(device_id)
        return last is None or last.seq != seen or differs(reply, last)

    def give(self, device_id: str, seen: int, reply: HeartbeatReply) -> HeartbeatReply:
        if self.due(device_id, seen, reply):
            self._number += 1
            self._last[device_id] = reply.model_copy(update={"seq": self._number})
        self._last.move_to_end(device_id)
        while len(self._last) > DEVICES_MAX:
            self._last.popitem(last=False)
        return reply.model_copy(update={"seq": self._last[device_id].seq})
