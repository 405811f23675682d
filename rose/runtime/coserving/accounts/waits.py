"""What rollouts waited for, by the second: yields inside a step, and holds before one, each group one event."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rose import events
from rose.clock import Anchor
from rose.runtime.coserving.page import Span, SpanRecord
from rose.runtime.policy.slack import Hold

_SECOND_NS = 1_000_000_000


@dataclass(slots=True)
class _Group:
    """Waits of one lease and run that ended in one second, for one reason."""

    lease_id: str | None
    step: int | None
    run_id: str
    first_ns: int
    spans: list[SpanRecord] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        return sum(span.end_ns - span.start_ns for span in self.spans)


class Waits:
    """Collects the waits of one rollout engine, and records those of a second once it is over.

    `lease_at` gives the (lease, step) that a moment belongs to, monotonic nanoseconds: the last one, if none was then
    in force, since a step may still end what its lease began. `run_at` gives the RL run.
    """

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
        #: By second, lease, reason and run; a yield has no reason.
        self._groups: dict[tuple[int, str | None, str | None, str], _Group] = {}

    def add(self, spans: Iterable[SpanRecord]) -> None:
        """Take up spans that have ended; those that are no waits are passed over."""
        for span in spans:
            if span.kind not in (Span.YIELD, Span.HELD):
                continue
            lease_id, step = self._lease_at(span.start_ns)
            reason = None if span.kind is Span.YIELD else _hold_name(span.aux)
            if reason == "no_lease":
                lease_id, step = None, None
            run_id = self._run_at(span.start_ns)
            key = (span.end_ns // _SECOND_NS, lease_id, reason, run_id)
            group = self._groups.setdefault(key, _Group(lease_id, step, run_id, span.start_ns))
            group.first_ns = min(group.first_ns, span.start_ns)
            group.spans.append(span)

    def tell(self, until_ns: int | None = None) -> None:
        """Record the groups of all seconds that ended by `until_ns`; None: all there are."""
        for key in sorted(self._groups, key=lambda key: (key[0], key[1] or "", key[2] or "", key[3])):
            second, _, reason, _ = key
            if until_ns is not None and (second + 1) * _SECOND_NS > until_ns:
                continue
            group = self._groups.pop(key)
            # What they say is in the slices too: they need not wait for the disk.
            self._record(self._yields(group) if reason is None else self._holds(group, reason), durable=False)

    def _yields(self, group: _Group) -> events.Preemption:
        latencies = [span.latency_ns for span in group.spans]
        return events.Preemption(
            at_us=self._anchor.utc_us(group.first_ns),
            device_id=self._device_id,
            engine_id=self._engine_id,
            lease_id=group.lease_id,
            action="yield",
            reason="serving_step",
            step=group.step,
            count=len(group.spans),
            duration_ns=group.duration_ns,
            longest_ns=max(span.end_ns - span.start_ns for span in group.spans),
            latency_ns=max(latencies),
            latency_mean_ns=sum(latencies) // len(latencies),
            rl_run_id=group.run_id or None,
        )

    def _holds(self, group: _Group, reason: str) -> events.Hold:
        return events.Hold(
            at_us=self._anchor.utc_us(group.first_ns),
            device_id=self._device_id,
            engine_id=self._engine_id,
            lease_id=group.lease_id,
            reason=reason,
            step=group.step,
            count=len(group.spans),
            duration_ns=group.duration_ns,
            rl_run_id=group.run_id or None,
        )


def _hold_name(number: int) -> str:
    try:
        return Hold(number).name.lower()
    except ValueError:
        return f"hold {number}"
