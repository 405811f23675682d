"""The writer: a bounded queue, and a thread that makes segments from it."""

import atexit
import errno
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, get_args

from rose.events import Event, LedgerAction, Provenance
from rose.ledger.files import catalog, layout, rows, segments, sources
from rose.ledger.files.layout import LedgerError
from rose.ledger.files.rows import Row

#: A flush starts early at this many events: half as many cost an eighth more each, twice as many save nothing.
_BATCH_EVENTS = 16384
_LINGER_S = 0.001  # How long a flush waits for further callers to share its file, where several wait already.


class LedgerWriter:
    """Appends one process's events to a ledger. Thread-safe. Seqs continue where the last writer of this name ended."""

    def __init__(
        self,
        root: Path,
        writer: str,
        run_id: str,
        provenance: Provenance,
        flush_interval_s: float,
        queue_max: int,
        lock: int,
        tail: segments.Tail,
    ) -> None:
        self.root, self.writer, self.run_id = root, writer, run_id
        self.provenance: Provenance = provenance
        self._flush_interval_s, self._queue_max, self._lock = flush_interval_s, queue_max, lock

        #: Where the next segment goes; None after a failed write, until it is read from disk again.
        self._tail: segments.Tail | None = tail
        #: The newest epoch that the catalog reads. Acknowledged events lie in it, or in an earlier one.
        self._shown_epoch = tail.epoch
        # One mutex guards all below. There are two conditions, so that a waiting caller never wakes another.
        self._mutex = mutex = threading.Lock()
        self._work = threading.Condition(mutex)
        self._progress = threading.Condition(mutex)
        self._pending: list[rows.Row] = []
        self._pending_events = 0
        self._next_seq = tail.next_seq
        self._written_seq = tail.next_seq
        self._overflow = Overflow()
        self._dropped = 0
        self._waiting = 0
        self._urgent = False
        self._closing = False
        self._error: LedgerError | None = None

        self._thread = threading.Thread(target=self._run, name=f"ledger-{writer}", daemon=True)
        self._thread.start()
        atexit.register(self.close)  # A program that forgets to close still gets its last events on disk.

    @classmethod
    def open(
        cls,
        root: Path | str,
        writer: str,
        run_id: str,
        provenance: Provenance = "live",
        *,
        flush_interval_s: float = 2.0,
        queue_max: int = 65536,
    ) -> Self:
        """Return a writer for the ledger at `root`, which is created if missing. Events wait in a queue of at most
        `queue_max`, and are written every `flush_interval_s` seconds. Raises LedgerError."""
        root = layout.create(root)
        layout.check_writer_name(writer)
        if not run_id:
            raise LedgerError("run_id is empty; give the run's id, or a name for the job")
        if provenance not in get_args(Provenance):
            raise LedgerError(f"provenance must be one of {', '.join(get_args(Provenance))}, got {provenance!r}")
        if queue_max < 1 or flush_interval_s <= 0:
            raise LedgerError(f"queue_max {queue_max} and flush_interval_s {flush_interval_s} must be above 0")
        lock = take_name(root, writer)
        try:
            with layout.refusals(f"cannot write to the ledger at {root}"):
                tail = segments.recover(root, writer)
                if tail.epoch < 0 or not sources.has_the_columns(root / "live" / writer / f"{tail.epoch:06d}"):
                    tail = segments.begin_epoch(root, tail)
                segments.check_key(tail)
                catalog.refresh(root)
            # Arrow imports pandas at its first table: 200 ms that no caller of `record` should feel.
            rows.table(writer, 0, run_id, provenance, [(LedgerAction.kind, rows.encode(LedgerAction(action="opened")))])
            return cls(root, writer, run_id, provenance, flush_interval_s, queue_max, lock, tail)
        except BaseException:
            os.close(lock)
            raise

    @property
    def dropped(self) -> int:
        """Return how many events came while the queue was full. Each was merged with other events, or only counted."""
        return self._dropped

    @property
    def failure(self) -> str | None:
        return None if self._error is None else str(self._error)

    def record(self, event: Event, *, durable: bool | None = None) -> int | None:
        """Append an event and return its seq. If the queue is full, merge or only count the event, and return None.

        With `durable` (None: the kind decides), the event is on disk when this returns. After a LedgerError, the
        event may still be in the queue, so retry only with the same event_id."""
        values = rows.encode(event)
        wait = event.durable if durable is None else durable
        control = wait or event.durable
        with self._mutex:
            if self._closing:
                raise self._closed()
            if self._pending_events >= self._queue_max and not self._make_room(control):
                self._overflow.add(event, values)
                self._dropped += 1
                return None
            seq = self._next_seq
            self._next_seq = seq + 1
            self._pending.append((event.kind, values))
            self._pending_events += 1
            if self._error is not None and control:
                raise LedgerError(str(self._error)) from self._error
            if wait:
                self._wait_written(seq + 1)
            elif self._pending_events == _BATCH_EVENTS:
                self._work.notify()
        return seq

    def record_all(self, events: Sequence[Event]) -> None:
        """Write all events to disk, or no event. After a LedgerError, retry with the same event_ids."""
        values = [(event.kind, rows.encode(event)) for event in events]
        with self._mutex:
            if self._pending_events >= self._queue_max:
                self._make_room(control=True)
            if self._closing:
                raise self._closed()
            if self._error is not None:
                raise LedgerError(str(self._error)) from self._error
            self._pending += values
            self._pending_events += len(values)
            self._next_seq += len(values)
            self._wait_written(self._next_seq)

    def flush(self) -> None:
        with self._mutex:
            self._wait_written(self._next_seq + bool(self._overflow))

    def close(self) -> None:
        """Write the queue to disk, and free the writer's name. Raises LedgerError if this fails."""
        with self._mutex:
            self._closing = True
            self._wake()
            self._progress.notify_all()
        self._thread.join()
        atexit.unregister(self.close)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            if self._pending or self._overflow:
                raise LedgerError(f"{self._pending_events} events were not written: {self._error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _closed(self) -> LedgerError:
        return LedgerError(f"writer {self.writer!r} is closed; open it again to record events")

    def _make_room(self, control: bool) -> bool:
        if control:
            self._wake()
            self._progress.wait_for(
                lambda: self._pending_events < self._queue_max or self._error is not None or self._closing
            )
        return control

    def _wake(self) -> None:
        self._urgent = True
        self._work.notify()

    def _wait_written(self, next_seq: int) -> None:
        if self._written_seq >= next_seq:
            return
        self._wake()
        self._waiting += 1
        self._progress.wait_for(lambda: self._written_seq >= next_seq or self._error is not None)
        self._waiting -= 1
        if self._written_seq < next_seq and self._error is not None:
            raise LedgerError(str(self._error)) from self._error

    def _run(self) -> None:
        while True:
            with self._work:
                self._work.wait_for(self._has_work, timeout=self._flush_interval_s)
                linger, closing = self._waiting > 1, self._closing
            if linger and not closing:
                time.sleep(_LINGER_S)
            with self._work:
                items = self._take()
                first_seq = self._written_seq
            if items:
                self._write(first_seq, items)
                self._begin_epoch_if_full()
            if closing and (self._error is not None or not self._overflow):
                return

    def _has_work(self) -> bool:
        return self._urgent or self._closing or (self._pending_events >= _BATCH_EVENTS and self._error is None)

    def _take(self) -> list[rows.Row]:
        self._urgent = False
        # While the disk refuses, merged events stay merged, so that the queue does not grow.
        if self._overflow and self._error is None:
            late = list(self._overflow.drain())
            self._pending += late
            self._next_seq += len(late)
        items, self._pending = self._pending, []
        return items

    def _write(self, first_seq: int, items: list[rows.Row]) -> None:
        error = None
        next_seq = first_seq
        try:
            next_seq = self._append_segment(first_seq, items)
        # Callers must hear of any error (a full disk, a lost folder, no memory), and no event may vanish.
        except Exception as caught:
            self._tail = None
            way_out = f"; {layout.way_out(caught)}" if isinstance(caught, OSError) else ""
            error = LedgerError(f"writer {self.writer!r} cannot write to {self.root}: {caught}{way_out}")
            error.__cause__ = caught
        with self._mutex:
            if error is not None:
                self._pending = items + self._pending
            self._written_seq = next_seq
            self._pending_events = self._next_seq - next_seq
            self._error = error
            self._urgent = self._urgent or (bool(self._overflow) and error is None)
            self._progress.notify_all()

    def _begin_epoch_if_full(self) -> None:
        if self._tail is not None and self._tail.next_index > segments.SEGMENTS_PER_EPOCH:
            # The next write tries again and reports the error.
            with suppress(Exception):
                self._open_epoch()

    def _open_epoch(self) -> segments.Tail:
        tail, self._tail = self._tail or segments.recover(self.root, self.writer), None
        if tail.epoch < 0:
            raise LedgerError(f"its segments are gone; {layout.way_out(FileNotFoundError(errno.ENOENT, ''))}")
        if tail.next_index > segments.SEGMENTS_PER_EPOCH:
            tail = segments.begin_epoch(self.root, tail)
        if tail.epoch > self._shown_epoch:
            catalog.refresh(self.root)
            self._shown_epoch = tail.epoch
        self._tail = tail
        return tail

    def _append_segment(self, first_seq: int, items: list[rows.Row]) -> int:
        table = rows.table(self.writer, first_seq, self.run_id, self.provenance, items)
        next_seq = first_seq + int(table.num_rows)
        tail = self._open_epoch()
        # The segment of a failed write may stand after all. Its events are not written again.
        unwritten = table.slice(tail.next_seq - first_seq)
        if unwritten.num_rows == 0:
            return next_seq
        self._tail = segments.write_next(self.root, tail, unwritten)
        return next_seq


def take_name(root: Path, writer: str) -> int:
    """Take the name `writer` until this process ends. Raises LedgerError if a live process has it."""
    try:
        with layout.refusals(f"cannot write to the ledger at {root}"):
            return layout.take(root / "locks" / f"{writer}.lock")
    except layout.TakenError as error:
        raise LedgerError(f"writer {writer!r} of {root} is open in the process {error}; use another name") from error


MERGED_MAX = 4096  # Maximum of merged events: one for each device, engine and lease of some hours.
_AMOUNTS = ("_tokens", "_bytes", "_ns")
_MOMENTS = ("t0_ns", "t1_ns", "t_ns")


class Overflow:
    """Events that the queue could not take. Use it in one thread, or under a lock."""

    def __init__(self) -> None:
        self._merged: dict[tuple[Any, ...], dict[str, Any]] = {}
        #: By run (None: the writer's) and kind: the number of events, and the sums of their amounts.
        self._sums: dict[str | None, dict[str, Counter[str]]] = {}

    def __bool__(self) -> bool:
        return bool(self._merged or self._sums)

    def add(self, event: Event, values: tuple[Any, ...]) -> None:
        named = {field.name: value for field, value in zip(rows.fields_of(event.kind), values, strict=True)}
        if event.kind in ("device_slice", "power") and self._merge(event.kind, named):
            return
        sums = self._sums.setdefault(event.run_id, {}).setdefault(event.kind, Counter())
        sums["count"] += 1
        for name, value in named.items():
            if isinstance(value, int) and name.endswith(_AMOUNTS) and name not in _MOMENTS:
                sums[name] += value

    def drain(self) -> Iterator[Row]:
        for (kind, *_), named in self._merged.items():
            yield kind, tuple(named.values())
        for run_id, sums_by_kind in self._sums.items():
            kinds = {kind: {name: n for name, n in sums.items() if n} for kind, sums in sums_by_kind.items()}
            detail = json.dumps({"count": sum(sums["count"] for sums in kinds.values()), "kinds": kinds})
            yield LedgerAction.kind, rows.encode(LedgerAction(action="dropped", run_id=run_id, detail_json=detail))
        self.__init__()  # type: ignore[misc]

    def _merge(self, kind: str, named: dict[str, Any]) -> bool:
        same = (
            *("run_id", "device_id", "engine_id", "lease_id", "trajectory_id", "policy_version", "event_id", "source"),
            *("rollout_run_id", "train_run_id"),
        )
        identity = tuple(named.get(name) for name in same)
        before = self._merged.pop((kind, *identity, named["t0_ns"]), None)
        if before is None and len(self._merged) >= MERGED_MAX:
            return False
        if before is not None:
            if kind == "power":
                _merge_readings(before, named)
            else:
                for name in named:
                    if name.endswith("_ns") and name not in _MOMENTS:
                        known = [one[name] for one in (before, named) if one[name] is not None]
                        named[name] = sum(known) if known else None
            named["t0_ns"] = before["t0_ns"]
        self._merged[kind, *identity, named["t1_ns"]] = named
        return True


def _merge_readings(before: dict[str, Any], named: dict[str, Any]) -> None:
    """Merge the power reading `before` into `named`: add energies, and average other values over time. A value that is
    missing in either reading becomes None."""
    lengths_ns = [reading["t1_ns"] - reading["t0_ns"] for reading in (before, named)]
    for name in ("energy_mj", "package_energy_mj", "busy_share", "power_mw"):
        values = [before[name], named[name]]
        if None in values:
            named[name] = None
        elif name.startswith(("energy", "package")):
            named[name] = sum(values)
        else:
            weighed = sum(value * ns for value, ns in zip(values, lengths_ns, strict=True))
            span_ns = max(1, sum(lengths_ns))
            named[name] = weighed // span_ns if name == "power_mw" else weighed / span_ns
