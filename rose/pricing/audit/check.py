"""The check that the books have not changed. It compares every frozen byte with the ledger's events."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rose.ledger.evidence import continuation
from rose.ledger.evidence.receipt import Receipt
from rose.ledger.files import layout, segments
from rose.ledger.ledger import Ledger
from rose.pricing.closing import store
from rose.pricing.closing.store import Posting, postings
from rose.pricing.money import PricingError


@dataclass(frozen=True, slots=True)
class Check:
    closes: int
    corrections: int
    files: int
    problems: tuple[str, ...]


def check(ledger: Ledger, against: Mapping[str, Receipt] | None = None) -> Check:
    """Check that every frozen file is as its event recorded it, and that the ledger agrees with its hash chain.
    `against` has receipts by name; if there are any, the ledger must agree with them too. Raises LedgerError."""
    stored = sorted((ledger.folder / store.FOLDER).rglob("*"))  # Before the events: each is newer than its files.
    report = ledger.verify(marks=continuation.marks(against or {}))
    problems = [f"ledger: {problem}" for problem in report.doubts]
    if against:
        problems += [f"ledger: {problem}" for problem in continuation.check(report, against).problems]
    try:
        posted = [posting for own in postings(ledger).values() for posting in own]
    except PricingError as error:
        return Check(0, 0, 0, (*problems, str(error)))
    for posting in posted:
        for name in posting.files:
            try:
                store.file(ledger, posting, name)
            except PricingError as error:
                problems.append(str(error))
    problems += _foreign(ledger, stored, posted)
    problems += _watermarks(ledger, posted)
    closes = sum(posting.number == 0 for posting in posted)
    return Check(closes, len(posted) - closes, sum(len(posting.files) for posting in posted), tuple(problems))


def _foreign(ledger: Ledger, stored: Iterable[Path], posted: Iterable[Posting]) -> Iterator[str]:
    home = ledger.folder / store.FOLDER
    known = {store.folder(ledger, posting.close_id) / name for posting in posted for name in posting.files}
    for path in stored:
        if not path.is_dir() and path not in known and not path.relative_to(home).parts[0].startswith("."):
            why = "the event is lost, the file is foreign, or a process was stopped just before it posted the file"
            yield f"{path}: no event of the ledger names it: {why}. If nothing else is wrong, move the file away"


def _watermarks(ledger: Ledger, posted: Iterable[Posting]) -> Iterator[str]:
    chains = {writer: set(_chain(ledger, writer)) for writer in layout.writers(ledger.folder)}
    for posting in posted:
        for writer, (seq, sha256) in posting.watermark.items():
            if sha256 not in chains.get(writer, set()):
                yield (
                    f"{posting.name} was priced from writer {writer!r} up to seq {seq}, whose segment {sha256[:12]} "
                    "is no longer in the ledger: its history has changed"
                )


def _chain(ledger: Ledger, writer: str) -> Iterator[str]:
    for part in layout.chain(ledger.folder, writer):
        if part.state == "live":
            yield from map(segments.sha256_in, segments.segment_names(ledger.folder / part.folder))
        else:
            manifest = json.loads((ledger.folder / part.manifest).read_bytes())
            yield from (entry["sha256"] for entry in manifest["segments"])
