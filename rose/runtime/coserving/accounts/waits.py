"""What rollouts waited for, by the second: yields inside a step, and holds before one, each group one event."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rose import events
from rose.clock import Anchor
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.policy.slack import Hold

_SECOND_NS = 1_000_000_000


class _Group(NamedTuple):
    """Waits that ended in one second, for one reason (None: yields), under one lease and run."""

    second: int
    lease_id: str | None
    step: int | None
    reason: str | None
    run_id: str


class Waits:
    """Collects the waits of one rollout engine, and records those of a second once it is over.
    `lease_at` gives the (lease, step) of a moment, monotonic ns: the last one if none was in force then, since a step
    may still end what its lease began. `run_at` gives the RL run."""

    def __init__(
        self,
        device_id: str,
        engine_id: str | None,
        anchor: Anchor,
        record: events.Record,
        lease_at: Callable[[int], tuple[str | None, int | None]],
        run_at: Callable[[int], str] = lambda _at_ns: "",
    ) -> None:
        self._device_id, self._engine_id, self._anchor = device_id, engine_id, anchor
        self._record, self._lease_at, self._run_at = record, lease_at, run_at
        self._groups: dict[_Group, list[SpanRecord]] = {}

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Take up spans that have ended, of which only waits matter."""
        for span in spans:
            if span.kind not in (Span.YIELD, Span.HELD):
                continue
            lease_id, step = self._lease_at(span.start_ns)
            reason = None if span.kind is Span.YIELD else _hold_name(span.aux)
            if reason == "no_lease":
                lease_id, step = None, None
            group = _Group(span.end_ns // _SECOND_NS, lease_id, step, reason, self._run_at(span.start_ns))
            self._groups.setdefault(group, []).append(span)

    def tell(self, until_ns: int | None = None) -> None:
        """Record the groups of all seconds that ended by `until_ns`; None: all groups."""
        over = [group for group in self._groups if until_ns is None or (group.second + 1) * _SECOND_NS <= until_ns]
        for group in sorted(over, key=lambda one: (one.second, one.lease_id or "", one.reason or "", one.run_id)):
            # Not durable: slices hold this time too.
            self._record(self._event(group, self._groups.pop(group)), durable=False)

    def _event(self, group: _Group, spans: Sequence[SpanRecord]) -> events.Preemption | events.Hold:
        common: dict[str, Any] = {
            "at_us": self._anchor.utc_us(min(span.start_ns for span in spans)),
            "device_id": self._device_id,
            "engine_id": self._engine_id,
            "lease_id": group.lease_id,
            "step": group.step,
            "count": len(spans),
            "duration_ns": sum(span.end_ns - span.start_ns for span in spans),
            "rl_run_id": group.run_id or None,
        }
        if group.reason is not None:
            return events.Hold(**common, reason=group.reason)
        latencies = [span.latency_ns for span in spans]
        return events.Preemption(
            **common,
            action="yield",
            reason="serving_step",
            longest_ns=max(span.end_ns - span.start_ns for span in spans),
            latency_ns=max(latencies),
            latency_mean_ns=sum(latencies) // len(latencies),
        )


def _hold_name(number: int) -> str:
    try:
        return Hold(number).name.lower()
    except ValueError:
        return f"hold {number}"
