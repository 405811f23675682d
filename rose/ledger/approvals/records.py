"""Signed events of the writer `controls`: rules, proposals and what became of them, holds.

Whoever reads them must have all of them or none: a rule that cannot be read would be one that does not hold.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from rose.events import Ledger
from rose.ledger import layout, segments, verified
from rose.ledger.approvals.values import CONTROLS_WRITER
from rose.ledger.checks import registry
from rose.ledger.evidence import keys
from rose.ledger.evidence.keys import Key
from rose.ledger.layout import LedgerError, Part
from rose.ledger.writer import LedgerWriter

_DOMAIN = "rose controls 1"
#: Parts may be merged, and those that were removed, while they are read.
_LOOKS = 3
_BETWEEN_LOOKS_S = 0.3


@dataclass(frozen=True, slots=True)
class Record:
    """One event as it stands. It counts for nothing where `fault` says why."""

    seq: int
    at_us: int
    action: str
    body: Mapping[str, Any]
    #: user@host, for people to read.
    by: str
    #: Public key, 64 hexadecimal characters.
    key: str
    fault: str | None = None


def canonical(value: Any) -> str:
    """The one JSON text of a value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def sha256_of(value: Any) -> str:
    """SHA-256 of a value's canonical JSON, in hexadecimal."""
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def read(root: Path) -> list[Record]:
    """All of them, in order. Raises LedgerError if one is missing or damaged."""
    for look in range(_LOOKS):
        try:
            return [_record(layout.ledger_id(root), *row) for row in _rows(root)]
        except OSError as error:
            if look == _LOOKS - 1:
                raise _unreadable(f"{error.filename}: {error.strerror}") from error
            time.sleep(_BETWEEN_LOOKS_S)
    raise AssertionError("the last look returns or raises")


@contextmanager
def exclusive(root: Path) -> Iterator[None]:
    """Hold this from reading what stands to recording what follows from it."""
    # No writer's name begins with a dot.
    with layout.locked(root / "locks" / f".{CONTROLS_WRITER}.lock"):
        yield


def signing_key() -> Key:
    """This user's key. Raises LedgerError if there is none and none can be made."""
    key = keys.load_or_make()
    if key is None:
        path = keys.key_path(os.environ)
        raise LedgerError(f"no signing key can be made at {path}; name a file that can be written in {keys.VARIABLE}")
    return key


def append(root: Path, action: str, body: Mapping[str, Any]) -> None:
    """Record an event under this user's key; on disk when this returns. The caller holds `exclusive`.

    Raises LedgerError, also where this user has no key.
    """
    key, by = signing_key(), verified.user_at_host()
    signature = key.sign(_message(layout.give_id(root), action, body, by))
    detail = {"body": body, "by": by, "key": key.public, "signature": signature}
    with LedgerWriter.open(root, CONTROLS_WRITER, layout.UPKEEP_RUN_ID) as log:
        log.record(Ledger(action=action, detail_json=canonical(detail)), durable=True)
    # Without its head nothing can be read, so a power cut must leave it.
    head = root / "heads" / f"{CONTROLS_WRITER}.json"
    for path in (head, head.parent):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _rows(root: Path) -> list[tuple[int, int, str, str | None]]:
    """(seq, at_us, action, detail_json) of every event, without a gap. Raises LedgerError, OSError."""
    parts = layout.chain(root, CONTROLS_WRITER)
    if not parts:
        named = CONTROLS_WRITER in (registry.known(root) or ()) or segments.read_head(root, CONTROLS_WRITER).segment
        if named:
            # Or its very first segment was written since the chain was looked at: the next look sees it.
            raise FileNotFoundError(errno.ENOENT, "is gone", f"live/{CONTROLS_WRITER}")
        return []
    stored_rows: list[tuple[int, int, str, str | None]] = []
    for part in parts:
        if part.state == "archived":
            raise _unreadable(f"{part.manifest}: its events left the ledger")
        for path in sorted(root.glob(part.pattern)):
            stat = path.stat()
            stamp = (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
            stored_rows += _rows_of(path, _expected_sha256(root, part, path), stamp)
    stored_rows.sort(key=lambda row: row[0])
    if [row[0] for row in stored_rows] != list(range(len(stored_rows))):
        raise _unreadable("an event is missing or appears twice")
    head = segments.read_head(root, CONTROLS_WRITER).segment
    if head is None:
        # Whoever writes the very first segment is about to write it.
        raise FileNotFoundError(errno.ENOENT, "is gone", f"heads/{CONTROLS_WRITER}.json")
    live = parts[-1].state == "live" and segments.place(head)[0] >= parts[-1].first
    if live and not (root / head).exists():
        raise _unreadable(f"{head}, its newest segment, is gone")
    return stored_rows


@functools.lru_cache(maxsize=1024)
def _rows_of(path: Path, sha256: str, stamp: tuple[int, ...]) -> tuple[tuple[int, int, str, str | None], ...]:
    """The rows of a file whose size, inode and times are `stamp`: each is read once in a process."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise _unreadable(f"{path} was changed after it was written")
    try:
        table = segments.read_rows(content, ["seq", "at_us", "action", "detail_json"]).to_pylist()
    except pa.ArrowException as error:
        raise _unreadable(f"{path}: {error}") from error
    return tuple((row["seq"], row["at_us"], row.get("action") or "", row.get("detail_json")) for row in table)


def _expected_sha256(root: Path, part: Part, path: Path) -> str:
    if part.state == "live":
        return segments.sha256_in(path.name)
    try:
        return str(json.loads((root / part.manifest).read_bytes())["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(f"{part.manifest} is damaged") from error


@functools.lru_cache(maxsize=4096)
def _record(ledger_id: str, seq: int, at_us: int, action: str, detail_json: str | None) -> Record:
    try:
        detail = json.loads(detail_json or "")
        body, by, key = detail["body"], detail["by"], detail["key"]
        if not (isinstance(body, dict) and isinstance(by, str) and isinstance(key, str)):
            raise TypeError("body, by or key has the wrong type")
        fits = keys.check(key, _message(ledger_id, action, body, by), detail["signature"])
    except (ValueError, KeyError, TypeError):
        return Record(seq, at_us, action, {}, "", "", "it is not of the form that `rose` writes")
    return Record(seq, at_us, action, body, by, key, None if fits else "its signature is wrong, or missing")


def _message(ledger_id: str, action: str, body: Mapping[str, Any], by: str) -> bytes:
    """What is signed; with the ledger's id, so that what was approved in one does not count in another."""
    return canonical([_DOMAIN, ledger_id, action, body, by]).encode()


def _unreadable(what: str) -> LedgerError:
    return LedgerError(
        f"the rules and approvals of this ledger cannot be read ({what}), so nothing that they govern is done. "
        "Run `rose ledger verify`, and put the file back"
    )
