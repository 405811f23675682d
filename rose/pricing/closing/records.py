"""Postings: the ledger's events about closes and corrections."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rose.clock import utc
from rose.ledger.evidence.receipt import canonical
from rose.ledger.files import examine, layout, segments
from rose.ledger.ledger import Ledger
from rose.pricing import book_events
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook

CLOSED, RESTATED = "closed", "restated"


@dataclass(frozen=True, kw_only=True, slots=True)
class BookStamp:
    name: str
    version: str
    currency: str
    sha256: str
    source: str
    file: str

    @property
    def example(self) -> bool:
        return pricebook.is_example(self.name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """Frozen rows: the charges of a close (number 0), or the correction with this number.

    `files` has the SHA-256 of each file in the close's folder, and `watermark` each writer's last priced seq and its
    segment's SHA-256."""

    close_id: str
    number: int
    provenance: str
    from_ns: int
    to_ns: int
    posted_us: int
    posted_by: str
    rose_version: str
    verified: bool
    reason: str | None
    open_runs: tuple[str, ...]
    book: BookStamp
    rows: int
    cost_nano: int
    rows_file: str
    files: Mapping[str, str]
    totals: tuple[Mapping[str, Any], ...]  # Sums of the rows by kind and bucket; the costs sum to `cost_nano`.
    watermark: Mapping[str, tuple[int, str]]

    @property
    def name(self) -> str:
        return self.close_id if self.number == 0 else f"correction {self.number} of {self.close_id}"

    @property
    def sha256(self) -> str:
        """Return the SHA-256 of the posting's event, which also covers the posting's files."""
        return hashlib.sha256(canonical(self.to_json())).hexdigest()

    @property
    def period(self) -> Period:
        return Period(self.from_ns, self.to_ns)

    @property
    def posted_ns(self) -> int:
        return self.posted_us * 1000

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @property
    def facts(self) -> dict[str, Any]:
        times = {"from": utc(self.from_ns), "to": utc(self.to_ns), "posted_at": utc(self.posted_ns)}
        hidden = ("totals", "from_ns", "to_ns", "posted_us")
        own = {name: value for name, value in self.to_json().items() if name not in hidden}
        return times | own | {"sha256": self.sha256}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Posting:
        typed = {
            "open_runs": tuple(fields["open_runs"]),
            "book": BookStamp(**fields["book"]),
            "totals": tuple(fields["totals"]),
            "watermark": {writer: (int(seq), str(sha256)) for writer, (seq, sha256) in fields["watermark"].items()},
        }
        return cls(**{**fields, **typed})


def postings(ledger: Ledger) -> dict[str, list[Posting]]:
    by_close: dict[str, list[Posting]] = {}
    for action in (CLOSED, RESTATED):
        for fields in book_events.recorded(ledger, action):
            posting = Posting.from_json(fields)
            posted = by_close.setdefault(posting.close_id, [])
            if len(posted) != posting.number:
                raise PricingError(
                    f"close {posting.close_id}: the ledger's events have posting {posting.number} where "
                    f"{len(posted)} comes next; `rose ledger verify` says what is damaged"
                )
            posted.append(posting)
    return by_close


def watermark(ledger: Ledger) -> dict[str, tuple[int, str]]:
    heads = {}
    for writer in layout.writers(ledger.folder):
        if not (parts := layout.chain(ledger.folder, writer)):
            continue  # The writer was killed before its first segment.
        part = parts[-1]
        if part.state == "live":
            folder = ledger.folder / part.folder
            newest = segments.segment_names(folder)[-1]
            heads[writer] = (segments.read_header((folder / newest).read_bytes()).last_seq, segments.sha256_in(newest))
        else:
            manifest = examine.manifest((ledger.folder / part.manifest).read_bytes())
            heads[writer] = (int(manifest.said["last_seq"]), manifest.last.sha256)
    return heads
