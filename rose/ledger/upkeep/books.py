"""The books: `books.duckdb`, what was worked out from the ledger and may change: prices of days, exported reports.

It is the one mutable database of a ledger. A change is made on a copy that then takes the file's name, so a reader
never meets a lock nor half a change. Its tables are made by the numbered files of `sql/migrations`.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import duckdb

import sql
from rose.ledger import catalog, database, layout
from rose.ledger.layout import LedgerError

BOOKS = "books.duckdb"
#: Older DuckDB clients can open a file of this version.
_STORAGE_VERSION = "v1.5.0"
_MIGRATION_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>\w+)\.sql")


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the books' structure."""

    number: int
    name: str
    text: str

    @property
    def sha256(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


@contextmanager
def change(root: Path | str, steps: Sequence[Migration] | None = None) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a copy of the books of the ledger at `root`, which replaces them when the block ends well.

    Missing migrations are applied first: those of this version, or `steps`. Changes wait for one another; readers
    see the books as they were until the end, and for good if the block raises or the process dies.
    Raises LedgerError if the books cannot be changed; then nothing has.
    """
    root = layout.check(root)
    path, temporary = root / BOOKS, root / f".{BOOKS}.tmp"
    with layout.locked(root / "locks" / "books.lock"):
        if _log(path).exists():
            raise LedgerError(
                f"{_log(path)}: a client has opened {path.name} for writing; close it there and open it read-only, or "
                "delete that file if the client is gone"
            )
        _discard(temporary)
        try:
            if path.exists():
                shutil.copyfile(path, temporary)
            with database.connect() as connection:
                version = catalog.quoted(_STORAGE_VERSION)
                connection.execute(f"ATTACH {catalog.quoted(str(temporary))} AS books (STORAGE_VERSION {version})")
                connection.execute("USE books")
                connection.execute("SET TimeZone = 'UTC'")
                _migrate(connection, path, migrations() if steps is None else steps)
                yield connection
            layout.replace_file(temporary, path)
        except (duckdb.Error, OSError) as error:
            raise LedgerError(f"cannot change {path}, which is as it was: {error}") from error
        finally:
            _discard(temporary)


@contextmanager
def connect(root: Path | str) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection that reads the books of the ledger at `root` as they are now, with UTC as its time zone.

    Books that an older version made are brought up to date first. Raises LedgerError if there are none, or if a
    newer version made them.
    """
    root = layout.check(root)
    path = root / BOOKS
    if not path.exists():
        raise LedgerError(f"{path} is not there yet; `rose jobs run price --price-book FILE` makes it")
    known = migrations()
    with database.connect() as connection:
        _attach(connection, path)
        if len(_applied(connection, path, known)) < len(known):
            connection.execute("USE memory")
            connection.execute("DETACH books")
            with change(root):
                pass
            _attach(connection, path)
        yield connection


def migrations() -> list[Migration]:
    """The migrations of this version, in order: `sql/migrations/0001_*.sql` and on."""
    steps = []
    for file in resources.files(sql).joinpath("migrations").iterdir():
        if match := _MIGRATION_NAME.fullmatch(file.name):
            steps.append(Migration(int(match["number"]), match["name"], file.read_text(encoding="utf-8")))
    steps.sort(key=lambda step: step.number)
    assert [step.number for step in steps] == list(range(1, len(steps) + 1)), "migrations are numbered without a gap"
    return steps


def _migrate(connection: duckdb.DuckDBPyConnection, path: Path, steps: Sequence[Migration]) -> None:
    connection.execute(sql.read("migrations/migration.sql"))
    for step in steps[len(_applied(connection, path, steps)) :]:
        connection.execute("BEGIN")
        try:
            connection.execute(step.text)
            values = [step.number, step.name, step.sha256]
            connection.execute("INSERT INTO migration VALUES (?, ?, ?, now()::TIMESTAMP)", values)
            connection.execute("COMMIT")
        except duckdb.Error as error:
            raise LedgerError(
                f"migration {step.number:04d}_{step.name} fails on {path}, which is as it was: {error}"
            ) from error


def _applied(connection: duckdb.DuckDBPyConnection, path: Path, steps: Sequence[Migration]) -> list[int]:
    """Numbers of the migrations applied so far. Raises LedgerError unless they are the first ones of `steps`."""
    rows = connection.execute("SELECT number, name, sha256 FROM migration ORDER BY number").fetchall()
    for position, (number, name, sha256) in enumerate(rows):
        if position >= len(steps):
            raise LedgerError(
                f"{path} was made by a newer version of ROSE: it has migration {number:04d}_{name}, and this version "
                f"knows {len(steps)}; use that version or a newer one"
            )
        step = steps[position]
        if (number, sha256) != (step.number, step.sha256):
            what = "was changed since" if number == step.number else f"is not {step.number:04d}_{step.name}"
            raise LedgerError(
                f"{path}: migration {number:04d}_{name}, which was applied to it, {what} in this version of ROSE; "
                f"use the version that made it, or move the file away and let the jobs make a new one"
            )
    return [number for number, _, _ in rows]


def _attach(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    try:
        connection.execute(f"ATTACH {catalog.quoted(str(path))} AS books (READ_ONLY)")
        connection.execute("USE books")
        connection.execute("SET TimeZone = 'UTC'")
    except duckdb.Error as error:
        raise LedgerError(
            f"cannot read {path}: {error}\nIf a client opened it for writing, open it read-only there; if it is "
            "damaged, move it away and let the jobs make a new one"
        ) from error


def _log(path: Path) -> Path:
    return path.with_name(f"{path.name}.wal")


def _discard(temporary: Path) -> None:
    for path in (temporary, _log(temporary)):
        path.unlink(missing_ok=True)
