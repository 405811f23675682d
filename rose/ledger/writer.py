"""The writer: a bounded queue, one thread that makes segments of it, and acknowledgements that mean "on disk"."""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, get_args

from rose.events import Event, Ledger, Provenance
from rose.ledger import catalog, layout, rows, segments
from rose.ledger.layout import LedgerError

#: A flush starts early once this many events wait: larger segments are no faster.
_BATCH_EVENTS = 8192
#: How long a flush waits for more durable events to share its file; a file costs about as much.
_LINGER_S = 0.001


class LedgerWriter:
    """Appends the events of one process to a ledger. Safe to share between threads; use it as a context manager.

    Each process needs a writer name of its own and nothing else: writers do not wait for one another. A process
    that died is succeeded by one that opens the same name, which goes on at the exact next seq.
    """

    def __init__(
        self,
        *,
        root: Path,
        writer: str,
        run_id: str,
        provenance: Provenance,
        flush_interval_s: float,
        queue_max: int,
        lock: int,
        tail: segments.Tail,
    ) -> None:
        """Use `LedgerWriter.open`."""
        self.root = root
        self.writer = writer
        self.run_id = run_id
        self.provenance: Provenance = provenance
        self._flush_interval_s = flush_interval_s
        self._queue_max = queue_max
        self._lock = lock

        #: Where the next segment goes; None after a failed write, until it is read from disk again.
        self._tail: segments.Tail | None = tail
        # Everything below is guarded by one mutex. Two conditions, so that a waiting caller never wakes another.
        mutex = threading.Lock()
        self._work = threading.Condition(mutex)
        self._progress = threading.Condition(mutex)
        self._pending: list[rows.Row] = []
        self._next_seq = tail.next_seq
        self._written_seq = tail.next_seq
        self._dropped: Counter[str] = Counter()
        self._dropped_total = 0
        self._urgent = False
        self._closing = False
        self._error: LedgerError | None = None

        self._thread = threading.Thread(target=self._run, name=f"ledger-{writer}", daemon=True)
        self._thread.start()
        # A program that forgets to close still gets its last events on disk.
        atexit.register(self.close)

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
        """Open the ledger at `root`, made if there is none, for writing as `writer`.

        `queue_max` bounds the events that wait to be written. Raises LedgerError if `root` is no ledger, if a live
        writer has this name, or if this name's newest segment is damaged.
        """
        root = layout.create(root)
        layout.check_writer_name(writer)
        if not run_id:
            raise LedgerError("run_id is empty; give the run's id, or a name for the job")
        if provenance not in get_args(Provenance):
            raise LedgerError(f"provenance must be one of {', '.join(get_args(Provenance))}, got {provenance!r}")
        if queue_max < 1 or flush_interval_s <= 0:
            raise LedgerError(f"queue_max {queue_max} and flush_interval_s {flush_interval_s} must be above 0")
        lock = _lock(root, writer)
        try:
            tail = segments.recover(root, writer)
            if tail is None:
                tail = segments.first_epoch(root, writer)
            elif not segments.has_every_column(root, tail):
                tail = segments.begin_epoch(root, tail)
            catalog.refresh(root)
            return cls(
                root=root,
                writer=writer,
                run_id=run_id,
                provenance=provenance,
                flush_interval_s=flush_interval_s,
                queue_max=queue_max,
                lock=lock,
                tail=tail,
            )
        except OSError as error:
            os.close(lock)
            raise LedgerError(f"cannot write to the ledger at {root}: {error}") from error
        except BaseException:
            os.close(lock)
            raise

    @property
    def dropped(self) -> int:
        """Events dropped since this writer was opened because the queue was full."""
        return self._dropped_total

    def record(self, event: Event, *, durable: bool | None = None) -> int | None:
        """Append an event; returns its seq, or None if it was dropped because the queue was full.

        With `durable` (by default what the kind says) it is on disk and in every view when this returns; otherwise
        within the flush interval. Events of durable kinds are never dropped: the caller waits for room.

        Raises LedgerError if a field does not fit its column, if the writer is closed, or while the disk refuses
        writes. An event that was not acknowledged may still be written later: retry it under the same event_id.
        """
        values = rows.encode(event)
        if durable is None:
            durable = event.durable
        with self._progress:
            if len(self._pending) >= self._queue_max and self._accepting():
                if not (durable or event.durable):
                    self._dropped[event.kind] += 1
                    self._dropped_total += 1
                    return None
                self._wake()
                self._progress.wait_for(lambda: len(self._pending) < self._queue_max or not self._accepting())
            if self._error is not None:
                raise LedgerError(str(self._error)) from self._error
            if self._closing:
                raise LedgerError(f"writer {self.writer!r} is closed; open it again to record events")
            seq = self._append(event.kind, values)
            if durable:
                self._wait_written(seq + 1)
            elif len(self._pending) == _BATCH_EVENTS:
                self._work.notify()
        return seq

    def flush(self) -> None:
        """Return once every event recorded so far is on disk. Raises LedgerError if the disk refuses it."""
        with self._progress:
            self._wait_written(self._next_seq)

    def close(self) -> None:
        """Write what waits, and let go of the writer's name. Raises LedgerError if events could not be written."""
        with self._progress:
            self._closing = True
            self._wake()
            self._progress.notify_all()
        self._thread.join()
        atexit.unregister(self.close)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
            if self._pending:
                raise LedgerError(f"{len(self._pending)} events were not written: {self._error}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        self.close()
        return False

    def _accepting(self) -> bool:
        return self._error is None and not self._closing

    def _append(self, kind: str, values: tuple[object, ...]) -> int:
        seq = self._next_seq
        self._next_seq += 1
        self._pending.append((seq, kind, values))
        return seq

    def _wake(self) -> None:
        self._urgent = True
        self._work.notify()

    def _wait_written(self, next_seq: int) -> None:
        """Wait, with the mutex held, until every seq below `next_seq` is on disk."""
        if self._written_seq >= next_seq:
            return
        self._wake()
        self._progress.wait_for(lambda: self._written_seq >= next_seq or self._error is not None)
        if self._written_seq < next_seq and self._error is not None:
            raise LedgerError(str(self._error)) from self._error

    def _run(self) -> None:
        """The writing thread: it ends when the writer is closed, after one last attempt to write."""
        while True:
            with self._work:
                self._work.wait_for(self._has_work, timeout=self._flush_interval_s)
                urgent, closing = self._urgent, self._closing
            if urgent and not closing:
                time.sleep(_LINGER_S)
            with self._work:
                batch = self._take()
            if batch:
                self._write(batch)
            if closing:
                return

    def _has_work(self) -> bool:
        return self._urgent or self._closing or (len(self._pending) >= _BATCH_EVENTS and self._error is None)

    def _take(self) -> list[rows.Row]:
        self._urgent = False
        if self._dropped:
            detail = json.dumps({"count": self._dropped.total(), "kinds": dict(self._dropped)})
            self._append(Ledger.kind, rows.encode(Ledger(action="dropped", detail_json=detail)))
            self._dropped.clear()
        batch, self._pending = self._pending, []
        return batch

    def _write(self, batch: list[rows.Row]) -> None:
        """Write a batch, or put it back at the head of the queue and say why in `_error`."""
        error = None
        try:
            batch = self._append_segment(batch)
        # Whatever it is (a full disk, a lost folder, no memory), callers must hear of it and no event may vanish.
        except Exception as caught:
            self._tail = None
            error = LedgerError(f"writer {self.writer!r} cannot write to {self.root}: {caught}")
            error.__cause__ = caught
        with self._progress:
            if error is not None:
                self._pending = batch + self._pending
            else:
                self._written_seq = batch[-1][0] + 1
            self._error = error
            self._progress.notify_all()

    def _append_segment(self, batch: list[rows.Row]) -> list[rows.Row]:
        if self._tail is None:
            self._tail = segments.recover(self.root, self.writer)
            assert self._tail is not None, "a writer's epoch was opened before its first event"
        # The segment of a failed write may stand after all (its name was not yet on disk): those events are written.
        unwritten = batch[self._tail.next_seq - batch[0][0] :]
        if not unwritten:
            return batch
        if self._tail.next_index > segments.SEGMENTS_PER_EPOCH:
            self._tail = segments.begin_epoch(self.root, self._tail)
            # A damaged file, maybe of another writer, must not stop this one: every reader is told of it by DuckDB.
            with suppress(LedgerError):
                catalog.refresh(self.root)
        self._tail = segments.append(self.root, self._tail, self.run_id, self.provenance, unwritten)
        return batch


def _lock(root: Path, writer: str) -> int:
    """Take the name `writer` for this process; the kernel frees it when the process ends in any way."""
    path = root / "locks" / f"{writer}.lock"
    path.parent.mkdir(exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(lock, 32).decode() or "unknown"
        os.close(lock)
        raise LedgerError(
            f"writer {writer!r} of {root} is open in the process with pid {holder}; give this one another writer name"
        ) from error
    os.truncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    return lock
