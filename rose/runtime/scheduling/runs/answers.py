"""Answers of turns that were completed, kept for a while: a client that asks again for the same turn gets the same one.

They outlive the process, though not the machine's power: nothing waits for a disk to turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sqlite3
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from rose.clock import utc_us
from rose.runtime.scheduling.runs.state import StateError

FILE = "turns.sqlite"
#: How long an answer is kept, ...
KEPT_US = 180_000_000
#: ... and how many at most.
KEPT_MAX = 50_000
#: How often what is too old is removed.
_SWEEP_US = 5_000_000

_TABLES = """
CREATE TABLE IF NOT EXISTS turn (run_id TEXT, key TEXT, at_us INTEGER NOT NULL, digest BLOB NOT NULL,
    answer BLOB NOT NULL, events_json BLOB NOT NULL, PRIMARY KEY (run_id, key)) STRICT;
CREATE INDEX IF NOT EXISTS turn_at ON turn (at_us);
"""


@dataclass(frozen=True, slots=True)
class Kept:
    """A completed turn: a digest of its request, the answer, and its ledger events as JSON."""

    run_id: str
    key: str
    digest: bytes
    answer: bytes
    events_json: bytes


class AnswerStore:
    """A SQLite file in `folder`; None: in a folder that ends with this. A thread of its own writes, many at a time.

    Raises StateError if the file cannot be opened. Once open, a disk that refuses costs only what was to be kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="rose-turns-") if folder is None else None
        self.path = (folder or Path(self._temporary.name if self._temporary else "")) / FILE
        #: Why the disk refuses; None while all is well.
        self.failure: str | None = None
        self._queue: queue.SimpleQueue[tuple[Kept, asyncio.Future[None]] | None] = queue.SimpleQueue()
        try:
            self._reading, self._writing = self._connect(), self._connect()
        except (OSError, sqlite3.Error) as error:
            raise StateError(f"completed turns cannot be kept at {self.path}: {error}; see to its disk")
        self._thread = threading.Thread(target=self._write, name="answers", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what waits."""
        self._queue.put(None)
        self._thread.join()
        self._reading.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    def find(self, run_id: str, key: str) -> Kept | None:
        """None: it was not completed, or too long ago."""
        with contextlib.suppress(sqlite3.Error):
            row = self._reading.execute(
                "SELECT run_id, key, digest, answer, events_json FROM turn WHERE run_id = ? AND key = ?", (run_id, key)
            ).fetchone()
            return None if row is None else Kept(*row)
        return None

    def events_json(self) -> list[bytes]:
        """The ledger events of all turns that are kept, oldest first."""
        with contextlib.suppress(sqlite3.Error):
            return [events for (events,) in self._reading.execute("SELECT events_json FROM turn ORDER BY at_us")]
        return []

    async def keep(self, kept: Kept) -> None:
        """Returns once it would be found by another process, or the disk refused it."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.put((kept, written))
        await written

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.executescript(_TABLES)
        self.path.chmod(0o600)
        return connection

    def _write(self) -> None:
        connection = self._writing
        swept_us = 0
        ending = False
        while not ending:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            ending = None in batch
            items = [item for item in batch if item is not None]
            now_us = utc_us()
            try:
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(
                    "INSERT OR REPLACE INTO turn VALUES (?, ?, ?, ?, ?, ?)",
                    [(kept.run_id, kept.key, now_us, kept.digest, kept.answer, kept.events_json) for kept, _ in items],
                )
                if now_us - swept_us > _SWEEP_US:
                    swept_us = now_us
                    connection.execute("DELETE FROM turn WHERE at_us < ?", (now_us - KEPT_US,))
                    connection.execute(
                        "DELETE FROM turn WHERE at_us < (SELECT at_us FROM turn ORDER BY at_us DESC LIMIT 1 OFFSET ?)",
                        (KEPT_MAX,),
                    )
                connection.execute("COMMIT")
                self.failure = None
            except sqlite3.Error as error:
                self.failure = f"completed turns cannot be kept at {self.path}: {error}; see to its disk"
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            _tell([written for _, written in items])
        connection.close()


def _tell(written: list[asyncio.Future[None]]) -> None:
    """Each loop once."""
    for loop in {future.get_loop() for future in written}:
        with contextlib.suppress(RuntimeError):  # it was closed: nobody waits
            loop.call_soon_threadsafe(_resolve, [future for future in written if future.get_loop() is loop])


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
