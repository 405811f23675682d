"""The chain of a writer, link by link, as its segments and manifests say it; `verify` says whether it is so.

Read from the newest link back, so that what came since a link that is known costs what came since, and not the whole
ledger. Only the last bytes of a live segment are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rose.ledger import layout, segments
from rose.ledger.layout import LedgerError, Part

#: Of a segment's file, from its end: they hold its header, unless it has many columns with long names.
_TAIL_BYTES = 2048
#: As `segments` writes it, which the end of a Parquet file has as it is. It is read a hundred times faster so.
_HEADER = re.compile(
    rb'\{"writer": "[\w.-]+", "epoch": \d+, "index": \d+, "first_seq": (\d+), "last_seq": (-?\d+), '
    rb'"previous_sha256": "[0-9a-f]*", "format_version": 1, "rows_sha256": "([0-9a-f]*)", '
    rb'"chain_sha256": "([0-9a-f]*)", "key": "([0-9a-f]*)", "signature": "[0-9a-f]*"\}'
)
#: A compaction may take away what was listed a moment before.
_LOOKS = 3


class Link(NamedTuple):
    """What a segment adds to its writer's chain."""

    #: As it was written; what was merged or archived since has it no more.
    path: str
    #: The file that holds its rows now, or its manifest once they were archived, relative to the ledger.
    file: str
    first_seq: int
    last_seq: int
    rows_sha256: str
    chain_sha256: str
    #: Public key that it was signed with; empty if it was not.
    key: str

    @property
    def next_seq(self) -> int:
        """The seq after its last row."""
        return self.last_seq + 1

    @property
    def value(self) -> str:
        """What the next link commits to."""
        return self.chain_sha256


def newest(root: Path, writer: str) -> Link | None:
    """The newest link of `writer`; None if it has no segment. Raises LedgerError for a damaged one."""
    # What is live is newer than all that was merged, and nearly always there.
    for epoch in reversed(layout.epochs(root, writer)[-1:]):
        try:
            return next(_live(root, f"live/{writer}/{epoch:06d}"))
        except (OSError, StopIteration):
            break
    return next(back(root, writer), None)


def back(root: Path, writer: str) -> Iterator[Link]:
    """The links of `writer` from the newest to the first. Raises LedgerError for a damaged file."""
    oldest: Link | None = None
    for look in range(_LOOKS):
        try:
            for part in reversed(layout.chain(root, writer)):
                for link in _of_part(root, part):
                    # Looking again, on from where the first look came to.
                    if look == 0 or oldest is None or segments.place(link.path) < segments.place(oldest.path):
                        oldest = link
                        yield link
            return
        except FileNotFoundError as error:
            if look == _LOOKS - 1:
                raise LedgerError(f"{error.filename} is missing. Run `rose ledger verify`") from error
        except OSError as error:
            raise LedgerError(f"{error.filename} cannot be read ({error.strerror})") from error


def _of_part(root: Path, part: Part) -> Iterator[Link]:
    """The links of a part, newest first. Raises OSError and LedgerError."""
    if part.state != "live":
        file = part.manifest if part.state == "archived" else part.pattern
        for entry in reversed(_entries((root / part.manifest).read_bytes(), part.manifest)):
            yield _link(entry["file"], file, entry)
        return
    yield from _live(root, part.folder)


def _live(root: Path, folder: str) -> Iterator[Link]:
    """The links of a live epoch, newest first. Raises OSError and LedgerError."""
    for name in sorted(filter(layout.SEGMENT_NAME.fullmatch, layout.names(root / folder)), reverse=True):
        path = f"{folder}/{name}"
        yield _segment(f"{root}/{path}", path)


def _link(path: str, file: str, header: dict[str, Any]) -> Link:
    try:
        texts = (header[name] for name in ("rows_sha256", "chain_sha256", "key"))
        return Link(path, file, header["first_seq"], header["last_seq"], *texts)
    except (KeyError, TypeError, AttributeError) as error:
        raise _damaged(path) from error


def _entries(content: bytes, manifest: str) -> list[dict[str, Any]]:
    try:
        entries: list[dict[str, Any]] = json.loads(content)["segments"]
        return entries
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(manifest) from error


def _segment(file: str, path: str) -> Link:
    """The link of a live segment, from the last bytes of its file. Raises OSError and LedgerError."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        size = os.lseek(descriptor, 0, os.SEEK_END)
        tail = os.pread(descriptor, _TAIL_BYTES, max(0, size - _TAIL_BYTES))
    finally:
        os.close(descriptor)
    # Text of an event may look like a header; it is not the last such text in the file.
    if match := _HEADER.match(tail, max(0, tail.rfind(b'{"writer": "'))):
        first_seq, last_seq, rows_sha256, chain_sha256, key = match.groups()
        return Link(
            path, path, int(first_seq), int(last_seq), rows_sha256.decode(), chain_sha256.decode(), key.decode()
        )
    # It is damaged, or longer than what was read.
    try:
        header = segments.read_header(Path(file).read_bytes())
    except LedgerError as error:
        raise _damaged(path) from error
    return Link(path, path, header.first_seq, header.last_seq, header.rows_sha256, header.chain_sha256, header.key)


def _damaged(path: str) -> LedgerError:
    return LedgerError(f"{path} is damaged. Run `rose ledger verify`")
