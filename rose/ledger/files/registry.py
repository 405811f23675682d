"""The registry `writers.jsonl`: a line for each writer and each key, with the hash of the line before.

A line endorses `key` for its writer. The key `by` signs the line. The endorsement counts if `by` is endorsed for this
writer, or may endorse keys of all writers. The ledger's first key may endorse keys of all writers. If `by`
may do this too, a line with `endorses` also allows it to `key`."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rose.ledger.files import keys, layout
from rose.ledger.files.keys import Key
from rose.ledger.files.layout import LedgerError

FILE = "writers.jsonl"
_TAG = "rose writer 1"


@dataclass(frozen=True, slots=True)
class Line:
    """A line: `writer` signs with `key`, which the key `by` endorses. Without `key`, it only registers `writer`."""

    writer: str
    previous_sha256: str
    key: str = ""
    by: str = ""
    signature: str = ""
    endorses: bool = False


@dataclass(frozen=True, slots=True)
class Endorsements:
    endorsers: frozenset[str]
    pairs: frozenset[tuple[str, str]]

    def may_endorse(self, by: str, writer: str) -> bool:
        return by in self.endorsers or (writer, by) in self.pairs

    @property
    def keys(self) -> set[str]:
        return {*self.endorsers, *(key for _, key in self.pairs)}


def endorsements(
    registered: Sequence[Line], endorsers: Iterable[str] = (), pairs: Iterable[tuple[str, str]] = ()
) -> Endorsements:
    """Return the keys that may endorse keys of all writers, and the endorsed (writer, key) pairs, according to
    the lines. `endorsers` (if empty: the first key that signed a line) and `pairs` are trusted from the start."""
    signed = [line for line in registered if line.key and line.by]
    counted = Endorsements(frozenset(endorsers) or frozenset(line.by for line in signed[:1]), frozenset(pairs))
    while True:
        lines = [line for line in signed if counted.may_endorse(line.by, line.writer)]
        marked = {line.key for line in lines if line.endorses and line.by in counted.endorsers}
        more = Endorsements(counted.endorsers | marked, counted.pairs | {(line.writer, line.key) for line in lines})
        if more == counted:
            return counted
        counted = more


def note(root: Path, writer: str, key: str = "", by: Key | None = None) -> None:
    """Add a line for `writer` and `key`, signed by `by`, if no such line exists. A damaged registry is not changed."""
    # A damaged registry must not stop a writer.
    with suppress(LedgerError):
        if not _names(lines(root), writer, key):
            with layout.locked(root / "locks" / ".writers.lock"):
                if not _names(lines(root), writer, key):
                    _write(root, [(writer, key, by, False)])


def endorse(root: Path, key: str, by: Key, writer: str | None = None, *, endorses: bool = False) -> list[str]:
    """Endorse `key` for `writer` (None: all writers that sign with `key`). The key `by` signs. Return the writers'
    names. With `endorses`, `key` may then endorse keys of all writers. Raises LedgerError."""
    if not keys.is_public(key):
        raise LedgerError(f"{key!r} is not a public key of 64 hexadecimal digits; see `rose ledger verify`")
    with layout.locked(root / "locks" / ".writers.lock"):
        registered = lines(root)
        names = {line.writer for line in registered if line.key == key} if writer is None else {writer}
        if missing := names - {line.writer for line in registered}:
            raise LedgerError(f"{FILE} does not name the writer {missing.pop()!r}; `rose ledger verify` lists writers")
        if not names:
            raise LedgerError(f"the key {key} signs for no writer yet; name its future writer with --writer")
        standing = endorsements(registered)
        refused = sorted(name for name in names if not standing.may_endorse(by.public, name))
        if refused or (endorses and by.public not in standing.endorsers):
            raise LedgerError(
                f"the key {by.public} of this user may not endorse keys of {', '.join(refused) or 'all writers'}; run "
                "this with a key that may, such as the first key of the ledger (`rose ledger verify`)"
            )
        _write(root, [(name, key, by, endorses) for name in sorted(names)])
    return sorted(names)


def described(registered: Sequence[Line], own: str | None) -> list[dict[str, Any]]:
    standing = endorsements(registered)
    root = next((line.by for line in registered if line.key and line.by), None)
    signers: dict[str, dict[str, Any]] = {}
    for line in registered:
        if not line.key:
            continue
        new: dict[str, Any] = {
            "key": line.key,
            "writers": [],
            "endorsed_by": None,
            "root": line.key == root,
            "may_endorse": line.key in standing.endorsers,
            "own": line.key == own,
        }
        entry: dict[str, Any] = signers.setdefault(line.key, new)
        if line.writer not in entry["writers"]:
            entry["writers"].append(line.writer)
        if entry["endorsed_by"] is None and line.by != line.key and standing.may_endorse(line.by, line.writer):
            entry["endorsed_by"] = line.by
    return list(signers.values())


def _write(root: Path, entries: Sequence[tuple[str, str, Key | None, bool]]) -> None:
    texts, ledger_id = read(root).splitlines(), layout.ledger_id(root)
    for writer, key, by, endorses in entries:
        line: dict[str, Any] = {"writer": writer, "previous_sha256": _sha256(texts[-1]) if texts else ""}
        if key:
            line |= {"key": key, "by": "", "signature": ""} | ({"endorses": True} if endorses else {})
        if key and by is not None:
            line["by"] = by.public
            line["signature"] = by.sign(_message(ledger_id, Line(**line)))
        texts.append(json.dumps(line).encode())
    layout.write_file(root / FILE, b"".join(text + b"\n" for text in texts))


def _names(registered: Sequence[Line], writer: str, key: str) -> bool:
    return any(line.writer == writer and (line.key == key or not key) for line in registered)


def lines(root: Path) -> tuple[Line, ...]:
    return parse(read(root))


def read(root: Path) -> bytes:
    try:
        return (root / FILE).read_bytes()
    except FileNotFoundError:
        return b""
    except IsADirectoryError as error:
        raise LedgerError(f"{FILE}: it is a folder; restore the file from a copy") from error


def parse(content: bytes) -> tuple[Line, ...]:
    parsed, sha256 = [], ""
    for number, text in enumerate(content.splitlines(), start=1):
        try:
            entry = json.loads(text)
            line = Line(**{name: entry[name] for name in Line.__slots__ if name in entry})
            texts = [getattr(line, name) for name in Line.__slots__ if name != "endorses"]
            if not all(isinstance(text, str) for text in texts) or not isinstance(line.endorses, bool):
                raise TypeError(text)
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{FILE}: line {number} is damaged; restore the file from a copy") from error
        if line.previous_sha256 != sha256:
            raise LedgerError(f"{FILE}: line {number} does not follow the one before it: a writer was taken out")
        parsed.append(line)
        sha256 = _sha256(text)
    return tuple(parsed)


def sound_lines(root: Path) -> tuple[Line, ...]:
    try:
        return lines(root)
    except LedgerError:
        return ()


def keys_of(registered: Sequence[Line], writer: str) -> set[str]:
    return {line.key for line in registered if line.writer == writer and line.key}


def begins_signed(registered: Sequence[Line], writer: str) -> bool:
    """Return whether the first line of `writer` has a key. If so, the writer's first segment must be signed."""
    return next((bool(line.key) for line in registered if line.writer == writer), False)


def signature_faults(ledger_id: str, registered: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(registered, start=1):
        if (line.by or line.signature) and not keys.check(line.by, _message(ledger_id, line), line.signature):
            yield (
                f"{FILE}: line {number}, of writer {line.writer!r}, is not signed by the key {line.by!r} that it "
                "names: it was forged, or is of another ledger"
            )


def _message(ledger_id: str, line: Line) -> bytes:
    parts = [_TAG, ledger_id, line.writer, line.key, line.by, line.previous_sha256]
    parts += ["endorses"] if line.endorses else []
    return json.dumps(parts, separators=(",", ":")).encode()


def _sha256(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()
