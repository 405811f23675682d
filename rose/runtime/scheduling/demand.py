"""The demand for devices, and the numbers of the answers to agents."""

from collections.abc import Mapping

from rose.clock import utc_us
from rose.runtime.scheduling.messages import HeartbeatReply

HOLD_NS = 1_000_000_000  # The next turn of a trajectory comes soon.


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
    """The last answer to a device. Numbers start at the time of day, so they rise across restarts."""

    def __init__(self) -> None:
        self._last: HeartbeatReply | None = None

    def due(self, seen: int, reply: HeartbeatReply) -> bool:
        return self._last is None or self._last.seq != seen or differs(reply, self._last)

    def give(self, seen: int, reply: HeartbeatReply) -> HeartbeatReply:
        if self._last is None or self.due(seen, reply):
            number = utc_us() if self._last is None else self._last.seq + 1
            self._last = reply.model_copy(update={"seq": number})
        return reply.model_copy(update={"seq": self._last.seq})
