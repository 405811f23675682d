"""Whether the books are what was closed: every frozen byte against the ledger's events and the books' tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rose.errors import UserError
from rose.ledger import layout, segments
from rose.ledger.layout import LedgerError
from rose.ledger.verify import CLOSING_WRITER, verify
from rose.pricing.closing import approval, index, store
from rose.pricing.closing.close import settle
from rose.pricing.closing.period import naive
from rose.pricing.closing.records import Posting, postings
from rose.pricing.money import PricingError


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at, and what is wrong with it, each naming its file."""

    closes: int
    corrections: int
    files: int
    problems: tuple[str, ...]


def check(root: Path) -> Check:
    """Compare frozen files, the ledger's events and the books with one another. Raises LedgerError for no ledger."""
    root = layout.check(root)
    try:
        with store.lock(root):
            settle(root)
    except UserError:
        # What could not be finished is named below.
        pass
    own = (of.problems for of in verify(root).writers if of.writer == CLOSING_WRITER)
    problems = [f"ledger: {problem}" for found in own for problem in found]
    try:
        posted = [posting for of in postings(root).values() for posting in of]
    except PricingError as error:
        return Check(0, 0, 0, (*problems, str(error)))
    for posting in posted:
        problems += _files(root, posting)
    problems += _foreign(root, posted)
    problems += _watermarks(root, posted)
    try:
        problems += approval.faults(root, posted)
        problems += _books(root, posted)
    except LedgerError as error:
        problems.append(str(error))
    closes = sum(posting.number == 0 for posting in posted)
    return Check(closes, len(posted) - closes, sum(len(posting.files) for posting in posted), tuple(problems))


def _files(root: Path, posting: Posting) -> Iterator[str]:
    for name in posting.files:
        try:
            store.content(root, posting, name)
        except PricingError as error:
            yield str(error)


def _foreign(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """Files that no event speaks of."""
    home = root / store.FOLDER
    known = {store.folder(root, posting.close_id) / name for posting in posted for name in posting.files}
    for path in sorted(home.rglob("*")):
        if not path.is_dir() and path not in known and not path.relative_to(home).parts[0].startswith("."):
            yield f"{path}: no event of the ledger speaks of it; it is foreign, or its event is damaged"


def _watermarks(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    """Segments that were priced and are no longer part of the ledger's chain."""
    there = {writer: set(_chain(root, writer)) for writer in layout.writers(root)}
    for posting in posted:
        for writer, (seq, sha256) in posting.watermark.items():
            if sha256 not in there.get(writer, set()):
                yield (
                    f"{_name(posting)} was priced from writer {writer!r} up to seq {seq}, whose segment {sha256[:12]} "
                    "is not in the ledger any more: its history is another one now"
                )


def _chain(root: Path, writer: str) -> Iterator[str]:
    """SHA-256 of every segment of a writer, also of those that were merged or archived."""
    for part in layout.chain(root, writer):
        if part.state == "live":
            yield from map(segments.sha256_in, segments.segment_names(root / part.folder))
        else:
            manifest = json.loads((root / part.manifest).read_bytes())
            yield from (entry["sha256"] for entry in manifest["segments"])


def _books(root: Path, posted: Iterable[Posting]) -> Iterator[str]:
    rows = index.known(root)
    for posting in posted:
        row = rows.pop((posting.close_id, posting.number), None)
        if row is None:
            yield f"books.duckdb has no row of {_name(posting)}, which the ledger's events say was posted"
            continue
        said = {
            "posted_at": naive(posting.posted_ns),
            "verified": posting.verified,
            "book_sha256": posting.book.sha256,
            "row_count": posting.rows,
            "cost_nano": posting.cost_nano,
            "total_nano": posting.cost_nano,
            "file": posting.rows_file,
            "file_sha256": posting.files[posting.rows_file],
        }
        for field, value in said.items():
            if row[field] != value:
                yield f"books.duckdb: {field} of {_name(posting)} is {row[field]}, and the ledger's event says {value}"
    for close_id, number in rows:
        yield f"books.duckdb has posting {number} of {close_id}, of which no event of the ledger speaks"


def _name(posting: Posting) -> str:
    return posting.close_id if posting.number == 0 else f"correction {posting.number} of {posting.close_id}"
