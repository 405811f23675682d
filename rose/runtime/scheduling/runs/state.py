"""Keeps the controller's state across restarts: runs, drained devices, and unrecorded events."""

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rose import private_files
from rose.errors import UserError
from rose.ledger.files import layout
from rose.ledger.files.layout import TakenError

FILE = "controller.sqlite"
LOCK = "controller.lock"
GONE_S = 10.0  # A stopped or killed controller releases its state in this time.

RunState = Literal["open", "expired", "closed"]

_TABLES = """
CREATE TABLE IF NOT EXISTS run (run_id TEXT PRIMARY KEY, state TEXT NOT NULL, opened_us INTEGER NOT NULL,
    facts_json TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS drained (device_id TEXT PRIMARY KEY, reason TEXT) STRICT;
CREATE TABLE IF NOT EXISTS due (number INTEGER PRIMARY KEY AUTOINCREMENT, event_json TEXT NOT NULL) STRICT;
"""


class StateError(UserError):
    exit_code = 1


@dataclass(slots=True, kw_only=True)
class RunFacts:
    """A run on disk. Times are UTC in microseconds."""

    run_id: str
    name: str
    model: str
    opened_us: int
    team: str | None = None
    task: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    state: RunState = "open"
    fence: int = 1  # Number of the client that may publish.
    staleness_max: int = 1
    weight: float = 1.0
    priority: int = 0
    expires_s: float = 60.0
    trainer_device: str | None = None
    taken_us: int = 0
    version: int | None = None
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    signer: str | None = None
    client_address: str | None = None
    weights_sha256: str | None = None
    step: int | None = None
    #: Names that its client uses: versions by LoRA adapter, and published folders by their pulled copy.
    adapters: dict[str, int] = field(default_factory=dict)
    pulled: dict[str, str] = field(default_factory=dict)
    closed_us: int | None = None
    outcome: Literal["ended", "failed"] | None = None
    reason: str | None = None
    #: Keys of requests that opened or resumed it, newest last.
    keys: dict[str, dict[str, Any]] = field(default_factory=dict)


class State:
    """State in SQLite. `folder` (None: in memory) serves one process. Methods return when changes are on disk."""

    def __init__(self, folder: Path | None, wait_s: float = 0.0) -> None:
        self.path = None if folder is None else folder / FILE
        self._failure: str | None = None
        self._lock: int | None = None
        try:
            if folder is not None:
                private_files.make(folder)
                self._lock = _locked(folder / LOCK, wait_s)
                keep_private(folder / FILE)
            self._connection = sqlite3.connect(":memory:" if self.path is None else self.path, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA secure_delete = ON")  # Erases tokens of forgotten runs.
            self._connection.executescript(_TABLES)
        except (OSError, sqlite3.Error) as error:
            self._unlock()
            raise self._refused(error)

    def close(self) -> None:
        self._connection.close()
        self._unlock()

    def runs(self) -> list[RunFacts]:
        rows = self._read("SELECT facts_json FROM run ORDER BY opened_us, run_id")
        return [RunFacts(**json.loads(facts)) for (facts,) in rows]

    def keep(self, run: RunFacts, due: Iterable[dict[str, Any]] = ()) -> None:
        with self._writing() as connection:
            connection.execute(
                "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?)",
                (run.run_id, run.state, run.opened_us, json.dumps(asdict(run))),
            )
            connection.executemany("INSERT INTO due (event_json) VALUES (?)", [(json.dumps(event),) for event in due])

    def forget(self, run_ids: Iterable[str]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM run WHERE run_id = ?", [(run_id,) for run_id in run_ids])

    def due(self) -> list[tuple[int, dict[str, Any]]]:
        rows = self._read("SELECT number, event_json FROM due ORDER BY number")
        return [(number, json.loads(event)) for number, event in rows]

    def recorded(self, number: int) -> None:
        with self._writing() as connection:
            connection.execute("DELETE FROM due WHERE number = ?", (number,))

    def drained(self) -> dict[str, str | None]:
        return dict(self._read("SELECT device_id, reason FROM drained"))

    def drain(self, devices: Iterable[str], reason: str | None) -> None:
        with self._writing() as connection:
            connection.executemany("INSERT OR REPLACE INTO drained VALUES (?, ?)", [(name, reason) for name in devices])

    def undrain(self, devices: Iterable[str]) -> None:
        with self._writing() as connection:
            connection.executemany("DELETE FROM drained WHERE device_id = ?", [(name,) for name in devices])

    def check(self) -> str | None:
        """Return why the state cannot be written, or None. If the last write failed, try another write first."""
        if self._failure is not None:
            with suppress(StateError), self._writing() as connection:
                connection.execute("PRAGMA user_version = 0")  # A write without a change.
        return self._failure

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _read(self, query: str) -> list[Any]:
        try:
            return self._connection.execute(query).fetchall()
        except sqlite3.Error as error:
            raise self._refused(error)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A failed commit may be rolled back already.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            refused = self._refused(error)
            self._failure = str(refused)
            raise refused
        self._failure = None

    def _refused(self, error: Exception) -> StateError:
        return StateError(f"the controller's state at {self.path} cannot be read or written: {error}; check the disk")


def keep_private(path: Path) -> None:
    private_files.create(path)
    for beside in (path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")):
        if beside.exists():
            private_files.create(beside)


def _locked(path: Path, wait_s: float) -> int:
    deadline_s = time.monotonic() + wait_s
    while True:
        with suppress(TakenError):
            return layout.take(path, 0o600)
        if time.monotonic() >= deadline_s:
            raise StateError(f"another controller uses the state in {path.parent}: end it, or give another folder")
        time.sleep(0.05)
