"""Turns the spans on a device's page into ledger events: device slices and waits."""

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from rose import events
from rose.clock import Anchor
from rose.events import DeviceSlice, Record
from rose.runtime.coserving.accounts.slices import Assignments, slice_time
from rose.runtime.coserving.leases.leasing import LeaseChange
from rose.runtime.coserving.page import RING_SPANS, ArbiterPage, Field, Party, Span, SpanRecord
from rose.runtime.policy.slack import Hold

LAG_NS = 50_000_000  # slices are closed this much later, so that spans that began before their end are on the page
_HISTORY_NS = 60_000_000_000  #: No span is longer than this: rollout engines look at the page every second.
_WORKERS = (Party.SERVING, Party.ROLLOUT, Party.TRAINER)
_SECOND_NS = 1_000_000_000


class _Group(NamedTuple):
    second: int
    lease_id: str | None
    step: int | None
    reason: str | None  # None: a yield.
    run_id: str


class Waits:
    """Records an engine's waits: one event per second, lease and reason. `lease_at(ns)` returns (lease id, RL step)."""

    def __init__(
        self,
        device_id: str,
        engine_id: str | None,
        anchor: Anchor,
        record: Record,
        lease_at: Callable[[int], tuple[str | None, int | None]],
        run_at: Callable[[int], str] = lambda _at_ns: "",
    ) -> None:
        self._device_id, self._engine_id, self._anchor = device_id, engine_id, anchor
        self._record, self._lease_at, self._run_at = record, lease_at, run_at
        self._groups: dict[_Group, list[SpanRecord]] = {}

    def add(self, spans: Iterable[SpanRecord]) -> None:
        for span in spans:
            if span.kind not in (Span.YIELD, Span.HELD):
                continue
            lease_id, step = self._lease_at(span.start_ns)
            reason = None if span.kind is Span.YIELD else Hold(span.aux).name.lower()
            if reason == "no_lease":
                lease_id, step = None, None
            group = _Group(span.end_ns // _SECOND_NS, lease_id, step, reason, self._run_at(span.start_ns))
            self._groups.setdefault(group, []).append(span)

    def tell(self, until_ns: int | None = None) -> None:
        """Record the waits of each second that ended by `until_ns`. If `until_ns` is None, record all waits."""
        over = [group for group in self._groups if until_ns is None or (group.second + 1) * _SECOND_NS <= until_ns]
        for group in sorted(over, key=lambda one: (one.second, one.lease_id or "", one.reason or "", one.run_id)):
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


class Accountant:
    """Records a device's time as slices without gaps or overlaps. A slice ends when a lease or a run begins or ends.
    If `takes_over`, a former agent has already recorded the time until `began_ns`."""

    def __init__(
        self,
        device_id: str,
        page: ArbiterPage,
        anchor: Anchor,
        began_ns: int,
        record: Record,
        *,
        engine_id: str | None,
        leases: list[LeaseChange],
        rollout_runs: Assignments | None = None,
        train_runs: Assignments | None = None,
        takes_over: bool = False,
        moved: Callable[[SpanRecord, str | None], None] = lambda _span, _lease_id: None,
    ) -> None:
        self._moved = moved
        self._device_id = device_id
        self._page = page
        self._anchor = anchor
        self._until_ns = began_ns
        self._record = record
        self._leases = leases
        self._rollout_runs, self._train_runs = rollout_runs or Assignments(), train_runs or Assignments()
        lease_at = partial(self._lease_at, last=True)
        self._waits = Waits(device_id, engine_id, anchor, record, lease_at, self._rollout_runs.at)
        # The rings still hold spans from before and after the former agent's end.
        back = RING_SPANS if takes_over else 0
        self._tails = {party: max(0, page.get(party, Field.HEAD) - back) for party in _WORKERS}
        self._began_ns = began_ns
        self._starting_since_ns = 0  #: When the start of an engine began; 0: no start. It cannot write to the page yet.
        self._delayed_seen = page.get(Party.SERVING, Field.PID), page.get(Party.SERVING, Field.DELAYED_NS)
        self._delayed_untold_ns = 0
        self._lock = threading.Lock()
        self._pending: list[SpanRecord] = []
        self._seen_open: set[tuple[Span, int]] = set()  # spans counted up to the last slice's end while in progress
        #: The number of spans lost because the ring was full, and the nanoseconds of spans that came after their slice.
        self.lost_spans = 0
        self.late_ns = 0

    def starts(self, at_ns: int) -> None:
        self._starting_since_ns = at_ns

    def started(self, at_ns: int) -> None:
        """Count the time from the last call of `starts` until `at_ns` as activation (an engine was starting)."""
        with self._lock:
            if self._starting_since_ns:
                self._pending.append(SpanRecord(Span.ACTIVATION, self._starting_since_ns, at_ns))
                self._starting_since_ns = 0

    def close(self, now_ns: int, *, final: bool = False) -> list[DeviceSlice]:
        """Record and return the slices up to `now_ns - LAG_NS`, or up to `now_ns` if `final`."""
        until_ns = now_ns if final else now_ns - LAG_NS
        if until_ns <= self._until_ns:
            return []
        with self._lock:
            return self._close(until_ns, final=final)

    def _close(self, until_ns: int, *, final: bool) -> list[DeviceSlice]:
        open_spans = self._open_spans(until_ns)
        for party in _WORKERS:
            spans, self._tails[party], lost = self._page.drain(party, self._tails[party])
            self.lost_spans += lost
            spans = [span for span in spans if span.end_ns > self._began_ns]
            self.late_ns += sum(
                max(0, min(span.end_ns, self._until_ns) - max(span.start_ns, self._began_ns))
                for span in spans
                if (span.kind, span.start_ns) not in self._seen_open
            )
            self._pending += spans
            self._waits.add(spans)
            for span in spans:
                if span.kind is Span.ACTIVATION:
                    self._moved(span, self._lease_at(span.start_ns)[0])
        # A span that was open and has closed since is also in the ring: count it once.
        closed = {(span.kind, span.start_ns) for span in self._pending}
        counted = self._pending + [span for span in open_spans if (span.kind, span.start_ns) not in closed]
        self._seen_open = {(span.kind, span.start_ns) for span in open_spans}
        edges = {change.at_ns for change in self._leases if self._until_ns < change.at_ns < until_ns}
        for runs in (self._rollout_runs, self._train_runs):
            edges.update(runs.between(self._until_ns, until_ns))
        events = [self._slice(counted, edge) for edge in (*sorted(edges), until_ns)]
        self._pending = [span for span in self._pending if span.end_ns > until_ns]
        self._waits.tell(None if final else until_ns)
        # A yield is read when it has ended, and belongs to the lease it began under: keep some history.
        while len(self._leases) > 1 and self._leases[1].at_ns <= until_ns - _HISTORY_NS:
            del self._leases[0]
        for runs in (self._rollout_runs, self._train_runs):
            runs.forget(until_ns - _HISTORY_NS)
        return events

    def _open_spans(self, until_ns: int) -> list[SpanRecord]:
        living = [party for party in _WORKERS if self._page.alive(party)]
        spans = [span for party in living if (span := self._page.open(party, until_ns)) is not None]
        if 0 < self._starting_since_ns < until_ns:
            spans.append(SpanRecord(Span.ACTIVATION, self._starting_since_ns, until_ns))
        return spans

    def _slice(self, spans: list[SpanRecord], until_ns: int) -> DeviceSlice:
        part = slice_time(spans, self._until_ns, until_ns)
        by_bucket: dict[str, Any] = {f"{bucket}_ns": length_ns for bucket, length_ns in part.by_bucket.items()}
        lease_id, _ = self._lease_at(self._until_ns)
        rollout_run_id = self._rollout_runs.at(self._until_ns) or None
        train_run_id = self._train_runs.at(self._until_ns) or None
        event = DeviceSlice(
            at_us=self._anchor.utc_us(until_ns),
            device_id=self._device_id,
            lease_id=lease_id,
            t0_ns=self._anchor.utc_ns(self._until_ns),
            t1_ns=self._anchor.utc_ns(until_ns),
            overlap_ns=part.overlap_ns,
            beside_ns=part.beside_ns,
            beside_work_ns=part.beside_work_ns,
            delayed_ns=self._delayed_ns(),
            rollout_run_id=rollout_run_id,
            train_run_id=train_run_id,
            **by_bucket,
        )
        self._until_ns = until_ns
        self._record(event)
        return event

    def _delayed_ns(self) -> int:
        """Return by how many ns rollouts delayed serving's steps since the last slice. If the measured delay is
        negative, return 0, and carry the negative delay over to the next slice."""
        engine, delayed_ns = (self._page.get(Party.SERVING, field) for field in (Field.PID, Field.DELAYED_NS))
        new_ns = delayed_ns - (self._delayed_seen[1] if engine == self._delayed_seen[0] else 0)
        self._delayed_seen = engine, delayed_ns
        self._delayed_untold_ns += new_ns
        told_ns = max(0, self._delayed_untold_ns)
        self._delayed_untold_ns -= told_ns
        return told_ns

    def _lease_at(self, at_ns: int, *, last: bool = False) -> tuple[str | None, int | None]:
        """Return (id, RL step) of the lease in force at `at_ns`, or (None, None). If `last`, use the newest lease that
        was granted at or before `at_ns`, even if this lease has ended."""
        lease_and_step: tuple[str | None, int | None] = (None, None)
        for change in self._leases:
            if change.at_ns <= at_ns and not (last and change.lease_id is None):
                lease_and_step = (change.lease_id, change.step)
        return lease_and_step
