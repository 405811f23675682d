"""Closed periods on disk, each written completely or not at all, and tables of them.
- closes/<close>/charges.parquet: the charges
- closes/<close>/stays.parquet: the time that each device was in the fleet
- closes/<close>/price_book.toml: the text of the price book
- closes/<close>/corrections-0001.parquet: the signed rows of the first correction, with its number, time and reason
- closes/<close>/price_book-0001.toml: the price book of this correction, if it differs from the previous price book

The ledger's event about a posting is written last, and without the event nothing is posted. Until all files are
written, they are in a hidden folder. Posted files are never replaced."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import TypeAdapter

from rose.clock import utc
from rose.ledger.evidence.receipt import canonical
from rose.ledger.files import layout, segments
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing.charges import Stay
from rose.pricing.money import PricingError, QuestionError, format_usd, signed_usd
from rose.pricing.period import Period, hour_text
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.table import Element, Table, columns

FOLDER = "closes"
CHARGES_FILE = "charges.parquet"
STAYS_FILE = "stays.parquet"
CLOSED, RESTATED = "closed", "restated"


@dataclass(frozen=True, kw_only=True, slots=True)
class BookStamp:
    name: str
    version: str
    currency: str
    sha256: str
    source: str
    file: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Posting:
    """Frozen rows: the charges of a close if `number` is 0, or else the rows of the correction with this number.

    `files` has the SHA-256 of each file of the posting. `watermark` has each writer's last priced seq, and the SHA-256
    of the segment with this seq."""

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
        """Return the SHA-256 of the posting's event. The event contains the SHA-256 of every file."""
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


FROM_JSON = TypeAdapter(Posting)


def postings(ledger: Ledger) -> dict[str, list[Posting]]:
    by_close: dict[str, list[Posting]] = {}
    for action in (CLOSED, RESTATED):
        for fields in ledger.book_details(action):
            posting = FROM_JSON.validate_python(fields)
            posted = by_close.setdefault(posting.close_id, [])
            if len(posted) != posting.number:
                raise PricingError(
                    f"close {posting.close_id}: the next posting must have number {len(posted)}, but the ledger's next "
                    f"event has {posting.number}; `rose ledger verify` says what is damaged"
                )
            posted.append(posting)
    return by_close


def watermark(ledger: Ledger) -> dict[str, tuple[int, str]]:
    """Return each writer's last seq on disk, and the SHA-256 of the segment with this seq."""
    return {writer: (link.last_seq, link.sha256) for writer, link in segments.newest_links(ledger.folder).items()}


def of_close(ledger: Ledger, close_id: str, as_of_ns: int | None = None) -> list[Posting]:
    known = postings(ledger)
    if close_id not in known:
        if folder(ledger, close_id).exists():
            raise PricingError(
                f"closes/{close_id} exists, but no event of the ledger names it: run `rose books verify`"
            )
        names = ", ".join(known) or "none yet; `rose books close` makes one"
        raise QuestionError(f"unknown close {close_id!r}; the closes of this ledger: {names}")
    posted = known[close_id]
    if as_of_ns is None:
        return posted
    if posted[0].posted_ns > as_of_ns:
        raise PricingError(f"{close_id} was closed at {utc(posted[0].posted_ns)}, which is after {utc(as_of_ns)}")
    return [posting for posting in posted if posting.posted_ns <= as_of_ns]


def file(ledger: Ledger, posting: Posting, name: str) -> Path:
    """Return the path of a frozen file. Raises PricingError if it is missing or has changed."""
    path = folder(ledger, posting.close_id) / name
    try:
        with path.open("rb") as stored:
            sha256 = hashlib.file_digest(stored, "sha256").hexdigest()
    except OSError as error:
        raise PricingError(
            f"{path}, a frozen file of {posting.close_id}, cannot be read ({error.strerror}); restore the original"
        ) from None
    # The book of a correction may lie in the file of an earlier posting.
    if sha256 != (posting.book.sha256 if name == posting.book.file else posting.files[name]):
        raise PricingError(f"{path} was changed after it was frozen; restore the original and run `rose books verify`")
    return path


def stays(ledger: Ledger, posting: Posting) -> tuple[Stay, ...]:
    frame = pl.read_parquet(file(ledger, posting, STAYS_FILE), hive_partitioning=False)
    return tuple(Stay(*row) for row in frame.iter_rows())


def book_of(ledger: Ledger, posting: Posting) -> PriceBook:
    text = file(ledger, posting, posting.book.file).read_text("utf-8")
    return pricebook.chosen(pricebook.parse(text, posting.book.source), pricebook.FROZEN)


def folder(ledger: Ledger, close_id: str) -> Path:
    return ledger.folder / FOLDER / close_id


def parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=True)
    return buffer.getvalue()


def post(ledger: Ledger, posting: Posting, contents: Mapping[str, bytes]) -> None:
    """Freeze a posting. The caller must hold the lock. Raises LedgerError if files or the event cannot be written."""
    assert {name: hashlib.sha256(stored).hexdigest() for name, stored in contents.items()} == posting.files
    frozen = folder(ledger, posting.close_id)
    hidden = frozen.with_name(f".{frozen.name}.tmp")
    for name, stored in contents.items():  # A killed process may have left the same files.
        if (frozen / name).exists() and (frozen / name).read_bytes() != stored:
            raise LedgerError(f"{frozen / name} exists, but no event of the ledger names it: run `rose books verify`")
    try:
        shutil.rmtree(hidden, ignore_errors=True)
        layout.make_folder(hidden)
        for name, stored in contents.items():
            layout.write_file(hidden / name, stored)
        if frozen.exists():
            for name in contents:
                layout.move_file(hidden / name, frozen / name)
            hidden.rmdir()
        else:
            layout.move_file(hidden, frozen)
        action = RESTATED if posting.number else CLOSED
        event_id = f"{posting.close_id}/{posting.number}"
        ledger.record_in_books(action, posting.to_json(), posting.posted_us, event_id)
    except OSError as error:
        shutil.rmtree(hidden, ignore_errors=True)
        raise LedgerError(f"cannot write {frozen}: {error.strerror}; nothing was posted") from error


def closes_table(posted: Mapping[str, Sequence[Posting]]) -> Iterator[Table]:
    rows = []
    for close_id, (first, *later) in posted.items():
        corrected = sum(posting.cost_nano for posting in later)
        rows.append(
            (
                close_id + ("" if first.verified else " (UNVERIFIED)"),
                hour_text(first.from_ns),
                hour_text(first.to_ns),
                format_usd(first.cost_nano),
                f"{len(later)}: {signed_usd(corrected)}" if later else "none",
                format_usd(first.cost_nano + corrected),
            )
        )
    names = ("close", "from", "to", "closed", "corrections", "total")
    yield Table(
        title="Closed periods", view="amortized; USD", columns=columns(*names, whole=("close",)), rows=tuple(rows)
    )


def posting_elements(posted: Sequence[Posting]) -> Iterator[Element]:
    first = posted[0]
    yield f"{first.close_id}: {utc(first.from_ns)} to {utc(first.to_ns)}, {first.provenance}, ROSE {first.rose_version}"
    yield f"SHA-256 of the close {first.sha256}"
    if first.open_runs:
        yield f"open runs: {', '.join(first.open_runs)}"
    yield Table(
        title="Postings",
        view="amortized; USD",
        columns=columns("no.", "posted", "amount", "rows", "prices", "why, and by whom", text=("why, and by whom",)),
        rows=tuple(
            (
                str(posting.number),
                utc(posting.posted_ns)[:19] + "Z",
                signed_usd(posting.cost_nano) if posting.number else format_usd(posting.cost_nano),
                f"{posting.rows:,}",
                f"{posting.book.name} {posting.book.version}",
                f"{posting.reason or 'close'} ({posting.posted_by}){'' if posting.verified else ' UNVERIFIED LEDGER'}",
            )
            for posting in posted
        ),
    )
