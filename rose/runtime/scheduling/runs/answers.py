"""Keeps the answers of completed turns, for requests that are repeated. Counts turns and tokens of each run."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from rose.clock import utc_us
from rose.http_calls import AWAY_S, GONE_S
from rose.runtime.scheduling.runs.state import StateError, keep_private

FILE = "turns.sqlite"
#: The minimum time for which an answer is kept, unless space runs out. A client notices a lost connection after
#: `GONE_S`. The client then repeats its request for `AWAY_S`.
KEPT_US = round((AWAY_S + 2 * GONE_S) * 1e6)
KEPT_BYTES = 256 << 20
_TRIM_US = 1_000_000
_TABLES = """
CREATE TABLE IF NOT EXISTS turn (number INTEGER PRIMARY KEY AUTOINCREMENT, kept_us INTEGER NOT NULL,
    run_id TEXT NOT NULL, key TEXT NOT NULL, digest BLOB NOT NULL, answer BLOB NOT NULL, events_json BLOB NOT NULL,
    UNIQUE (run_id, key)) STRICT;
CREATE TABLE IF NOT EXISTS count (run_id TEXT PRIMARY KEY, completed INTEGER NOT NULL, tokens INTEGER NOT NULL) STRICT;
"""


class AnswerStore:
    """Answers in SQLite, in `folder` (None: in memory). Opening raises StateError. Later failures only lose answers."""

    def __init__(self, folder: Path | None) -> None:
        self.path = None if folder is None else folder / FILE
        self.failure: str | None = None
        try:
            if self.path is not None:
                keep_private(self.path)
            self._connection = sqlite3.connect(self.path or ":memory:", isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute("PRAGMA wal_autocheckpoint = 16384")  # Pages between waits for the disk.
            self._connection.executescript(_TABLES)
            self._trim(utc_us())
        except (OSError, sqlite3.Error) as error:
            raise StateError(self._refused(error))

    def close(self) -> None:
        self._connection.close()

    def find(self, run_id: str, key: str) -> tuple[bytes, bytes] | None:
        """Return (digest of the request, answer), or None if the turn is unknown or forgotten."""
        query = "SELECT digest, answer FROM turn WHERE run_id = ? AND key = ?"
        try:
            row: tuple[bytes, bytes] | None = self._connection.execute(query, (run_id, key)).fetchone()
        except sqlite3.Error:
            return None
        return row

    def events_json(self) -> Iterator[bytes]:
        for (events,) in self._connection.execute("SELECT events_json FROM turn ORDER BY number"):
            yield events

    def keep(self, run_id: str, key: str, digest: bytes, answer: bytes, events_json: bytes) -> None:
        now_us = utc_us()
        try:
            if abs(now_us - self._trimmed_us) >= _TRIM_US or self._bytes > KEPT_BYTES:
                self._trim(now_us)
        except sqlite3.Error as error:
            self.failure = self._refused(error)
            return
        turn = (
            "INSERT OR REPLACE INTO turn (kept_us, run_id, key, digest, answer, events_json) VALUES (?, ?, ?, ?, ?, ?)"
        )
        self._write(turn, now_us, run_id, key, digest, answer, events_json)
        self._bytes += len(answer) + len(events_json)

    def counts(self) -> dict[str, tuple[int, int]]:
        query = "SELECT run_id, completed, tokens FROM count"
        return {run_id: (completed, tokens) for run_id, completed, tokens in self._connection.execute(query)}

    def count(self, run_id: str, completed: int, tokens: int) -> None:
        self._write("INSERT OR REPLACE INTO count VALUES (?, ?, ?)", run_id, completed, tokens)

    def forget_count(self, run_id: str) -> None:
        self._write("DELETE FROM count WHERE run_id = ?", run_id)

    def _write(self, statement: str, *values: object) -> None:
        try:
            self._connection.execute(statement, values)
            self.failure = None
        except sqlite3.Error as error:
            self.failure = self._refused(error)

    def _trim(self, now_us: int) -> None:
        self._trimmed_us = now_us
        self._connection.execute("DELETE FROM turn WHERE kept_us < ?", (now_us - KEPT_US,))
        size = "SELECT coalesce(sum(length(answer) + length(events_json)), 0) FROM turn"
        while True:
            (self._bytes,) = self._connection.execute(size).fetchone()
            if self._bytes <= KEPT_BYTES:
                return
            self._connection.execute("DELETE FROM turn WHERE number <= (SELECT avg(number) FROM turn)")

    def _refused(self, error: Exception) -> str:
        return f"completed turns cannot be written to {self.path}: {error}; check the disk"


def forget(folder: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        (folder / f"{FILE}{suffix}").unlink(missing_ok=True)
