"""The folder of a ledger: what is where in it, and the marker file that says that a folder is a ledger.

ledger.json                              the marker, with the format version and the id of the ledger
ledger.duckdb                            the catalog: views and nothing else, replaced atomically
live/<writer>/<epoch>/<index>-<sha256>.parquet     segments, in the order in which they were written
compacted/<writer>/<first>-<last>.parquet, .json   the merged segments of epochs first to last, and the manifest
archived/<writer>/<first>-<last>.json    the same manifest after its file has left the ledger
heads/<writer>.json                      the newest segment of each writer
heads/<writer>.next                      the segment that a writer is about to write, or nothing
writers.jsonl                            every writer and its keys; each line has the hash of the line before it
verified/                                how far the ledger was verified, and what was found in each file
rollup/                                  sums by day, made from the events, and the ids of these events
pricing.duckdb                           the cache of pricing; can be removed at any time
closes/                                  charges of closed periods, which never change
alerts.json                              the alerts that were sent and still apply
locks/                                   lock files: one for each writer, the catalog, and changes of parts
"""

import errno
import fcntl
import json
import os
import re
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rose.errors import UserError

FORMAT_VERSION = 1
MARKER = "ledger.json"
CATALOG = "ledger.duckdb"
UPKEEP_RUN_ID = "ledger"  # Run under which upkeep records its own events: compaction, roll-ups, the archive, jobs.
CLOSING_WRITER = "closing"  # Its events prove the frozen charges of closed periods.
PRICING = "pricing.duckdb"  # Pricing's sums, made again from the events if the file is gone.

WRITER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
#: SEGMENT_NAME for DuckDB's and Python's `glob`, without other matches.
SEGMENT_PATTERN = f"{'[0-9]' * 6}-{'[0-9a-f]' * 64}.parquet"
SEGMENT_NAME = re.compile(r"(?P<index>\d{6})-(?P<sha256>[0-9a-f]{64})\.parquet")
MANIFEST_NAME = re.compile(r"(?P<first>\d{6,})-(?P<last>\d{6,})\.json")
#: Files that an interrupted command leaves. No view reads them, and the next command removes them.
LEFTOVER_NAME = re.compile(r"\..+\.(tmp|gone)")

PARTS_LOCK = "parts"  # Held while files move to another part.
#: DuckDB takes these characters for a pattern, so no ledger's path may have one.
_PATTERN_CHARACTERS = set("*?[],")
_FILES_SHORT = "this process may open too few files, and nothing is damaged: raise `ulimit -n`"

State = Literal["archived", "compacted", "live"]  # Of parts with the same epochs, the first in this order counts.


class LedgerError(UserError):
    """The ledger cannot do what was asked. The message names the file or field, and says what to do."""


class LockError(UserError, OSError):
    """The file system refuses a lock. The ledger is sound, and readers need no lock."""

    def __str__(self) -> str:
        return f"cannot lock {self.filename}: {self.strerror}; {way_out(self)}"


class TakenError(Exception):
    """Another process has a lock. The text is the pid of that process."""


def create(root: Path | str) -> Path:
    """Make `root` a ledger, or check that it is one. Return its absolute path. Raises LedgerError."""
    root = _absolute(root)
    marker = root / MARKER
    if not marker.exists():
        if root.exists() and not root.is_dir():
            raise LedgerError(f"{root} is a file; a ledger is a folder. Name another folder")
        if foreign := sorted(name for name in names(root) if name != MARKER and not name.startswith(f".{MARKER}")):
            raise LedgerError(f"{root} is no ledger and contains {foreign[0]!r}; name a new or an empty folder")
        with refusals(f"cannot make a ledger at {root}"):
            root.mkdir(parents=True, exist_ok=True)
            create_file(marker, json.dumps({"rose_ledger": FORMAT_VERSION, "id": uuid.uuid4().hex}).encode())
    return check(root)


def check(root: Path | str) -> Path:
    root = _absolute(root)
    try:
        version = json.loads((root / MARKER).read_bytes())["rose_ledger"]
    except OSError as error:
        raise LedgerError(
            f"{root} is not a ledger: no {MARKER} can be read there ({error.strerror}). "
            "Name the ledger's folder; the first writer makes the ledger"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerError(f'{root / MARKER} is damaged; write {{"rose_ledger": {FORMAT_VERSION}}} into it') from error
    if version != FORMAT_VERSION:
        raise LedgerError(
            f"{root} is a ledger of format {version!r} and this version of ROSE reads format {FORMAT_VERSION}; "
            "use the version of ROSE that wrote it, or a newer one"
        )
    return root


def ledger_id(root: Path) -> str:
    return str(json.loads((root / MARKER).read_bytes()).get("id", ""))


def check_writer_name(writer: str) -> None:
    if not WRITER_NAME.fullmatch(writer):
        raise LedgerError(
            f"writer name {writer!r}: give 1 to 64 letters, digits, '.', '_' or '-', and begin with a letter or digit"
        )


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The epochs `first` to `last` of a writer: a live folder, a compacted file, or an archived file's manifest."""

    writer: str
    first: int
    last: int
    state: State

    @property
    def pattern(self) -> str:
        assert self.state != "archived", f"{self.manifest} has no file"
        if self.state == "compacted":
            return f"{self.stem}.parquet"
        return f"{self.folder}/{SEGMENT_PATTERN}"

    @property
    def folder(self) -> str:
        return f"live/{self.writer}/{self.first:06d}"

    @property
    def stem(self) -> str:
        return f"compacted/{self.writer}/{self.first:06d}-{self.last:06d}"

    @property
    def manifest(self) -> str:
        assert self.state != "live", f"{self.folder} has no manifest"
        return f"{self.state}/{self.writer}/{self.first:06d}-{self.last:06d}.json"


def parts(root: Path, writer: str) -> list[Part]:
    """Return a writer's parts in the ledger, in order, so that every event is included once."""
    return [part for part in chain(root, writer) if part.state != "archived"]


def chain(root: Path, writer: str) -> list[Part]:
    """Return a writer's parts, archived ones too, in order, so that every segment is included once."""
    return [part for part, superseded in all_parts(root, writer) if not superseded]


def all_parts(root: Path, writer: str) -> list[tuple[Part, bool]]:
    """Return every part of `writer`, in order, and whether a wider part supersedes it."""
    parts = {Part(writer, epoch, epoch, "live") for epoch in epochs(root, writer)}
    states: tuple[State, ...] = ("compacted", "archived", "compacted")
    for state in states:
        for name in names(root / state / writer):
            if (span := manifest_span(name)) is not None:
                parts.add(Part(writer, *span, state))
    ranked: list[tuple[Part, bool]] = []
    covered = -1
    for part in sorted(parts, key=lambda part: (part.first, -part.last, part.state)):
        ranked.append((part, part.last <= covered))
        covered = max(covered, part.last)
    return ranked


def archived_parts(root: Path) -> list[Part]:
    return [part for writer in writers(root) for part in chain(root, writer) if part.state == "archived"]


def read_manifest(root: Path, part: Part) -> tuple[dict[str, Any], bytes]:
    content = (root / part.manifest).read_bytes()
    try:
        manifest: dict[str, Any] = json.loads(content)
    except ValueError as error:
        raise LedgerError(f"{part.manifest} is damaged. Run `rose ledger verify`") from error
    return manifest, content


def manifest_span(name: str) -> tuple[int, int] | None:
    if (match := MANIFEST_NAME.fullmatch(name)) is None:
        return None
    first, last = int(match["first"]), int(match["last"])
    return (first, last) if name == f"{first:06d}-{last:06d}.json" and first <= last else None


def epochs(root: Path, writer: str) -> list[int]:
    """Return the live epochs of `writer`, in order. The last one still gets segments."""
    return sorted(int(name) for name in names(root / "live" / writer) if is_number(name))


def writers(root: Path) -> list[str]:
    written = {name for folder in ("live", "compacted", "archived") for name in names(root / folder)}
    return sorted(name for name in written if WRITER_NAME.fullmatch(name))


def write_file(path: Path, content: bytes, *, sync: bool = True, read_back: bool = False) -> None:
    """Write a file atomically. With `sync`, it is on disk when this returns. With `read_back`, the written bytes are
    read again and compared. Raises OSError, also if they differ."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        temporary.write_bytes(content)
        if sync:
            sync_file(temporary)
        if read_back and temporary.read_bytes() != content:
            raise OSError(errno.EIO, "its disk returns other bytes than were written", str(temporary))
        temporary.replace(path)
        if sync:
            sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def create_file(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Make the file `path`, on disk when this returns. A file that exists already stays as it is. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        sync_file(temporary)
        with suppress(FileExistsError):
            path.hardlink_to(temporary)  # A rename would replace another process's file, which may be in use by now.
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_file(temporary: Path, path: Path) -> None:
    sync_file(temporary)
    temporary.replace(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def move_file(path: Path, target: Path) -> None:
    make_folder(target.parent)
    path.replace(target)
    sync_folder(target.parent)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Bring the names in `folder` to disk. Without this, a power cut may undo a rename."""
    sync_file(folder)


def lock_file(root: Path, name: str) -> Path:
    return root / "locks" / f".{name}.lock"  # No writer's name begins with a dot.


def is_locked(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


@contextmanager
def locked(path: Path) -> Iterator[None]:
    try:
        # No parents: a ledger that was moved away must not reappear in its old place.
        path.parent.mkdir(exist_ok=True)
        file = path.open("ab")
    except OSError as error:
        raise LockError(error.errno, error.strerror, str(path)) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def take(path: Path, mode: int = 0o644) -> int:
    """Lock `path`, and write this process's pid into it. Return the descriptor that holds the lock until it is closed
    or this process ends. Raises TakenError or OSError."""
    path.parent.mkdir(exist_ok=True)
    lock = os.open(path, os.O_RDWR | os.O_CREAT, mode)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.truncate(lock, 0)
        os.write(lock, str(os.getpid()).encode())
    except BlockingIOError as error:
        holder = os.read(lock, 32).decode() or "unknown"
        os.close(lock)
        raise TakenError(holder) from error
    except OSError:
        os.close(lock)
        raise
    return lock


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Raise an OSError of the block as a LedgerError that begins with `what`."""
    try:
        yield
    except OSError as error:
        raise refused(what, error) from error


def refused(what: str, error: OSError) -> LedgerError:
    return LedgerError(f"{what}: {error}" if isinstance(error, LockError) else f"{what}: {error}; {way_out(error)}")


def unreadable(error: object) -> str:
    short = os.strerror(errno.EMFILE) in str(error)
    return f"{error}\n{_FILES_SHORT if short else '`rose ledger verify` names what is damaged'}"


def way_out(error: OSError) -> str:
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return _FILES_SHORT
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return "make room there"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "no write access: mount it for writing, change its permissions, or use a copy"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return "restore it, or open it at its new place"
    return "check its disk"


def _absolute(root: Path | str) -> Path:
    root = Path(root).expanduser().resolve()
    if bad := _PATTERN_CHARACTERS & set(str(root)):
        raise LedgerError(f"{root} cannot be a ledger's folder: DuckDB reads {min(bad)!r} in a path as a pattern")
    return root


def is_number(name: str) -> bool:
    return name.isdecimal() and name == f"{int(name):06d}"


def names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - a Path for each name takes five times as long
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # This is no damage to the ledger.
            raise refused(f"cannot list {folder}", error) from error
        raise
