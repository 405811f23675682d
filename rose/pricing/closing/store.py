"""Closed periods on disk, each written completely or not at all.
- closes/<close>/charges.parquet: the charges
- closes/<close>/stays.parquet: the time that each device was in the fleet
- closes/<close>/price_book.toml: the text of the price book
- closes/<close>/corrections-0001.parquet: the signed rows of the first correction, with its number, time and reason
- closes/<close>/price_book-0001.toml: this correction's price book, if it is a different one

Files lie in a hidden folder until the ledger has recorded the event. If a process is killed before that, nothing
remains; if afterwards, the next process finishes its work."""

import hashlib
import io
import shutil
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from rose.clock import utc
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing import book_events
from rose.pricing.charges import Stay
from rose.pricing.closing import records
from rose.pricing.money import PricingError, QuestionError
from rose.pricing.price_books import choice, pricebook
from rose.pricing.price_books.pricebook import PriceBook

FOLDER = "closes"
CHARGES_FILE = "charges.parquet"
STAYS_FILE = "stays.parquet"


def of_close(ledger: Ledger, close_id: str, as_of_ns: int | None = None) -> list[records.Posting]:
    known = records.postings(ledger)
    if close_id not in known:
        if folder(ledger, close_id).exists():
            raise PricingError(
                f"closes/{close_id} exists, but no event of the ledger names it: run `rose ledger verify`"
            )
        names = ", ".join(known) or "none yet; `rose books close` makes one"
        raise QuestionError(f"unknown close {close_id!r}; the closes of this ledger: {names}")
    posted = known[close_id]
    publish(ledger, posted)
    if as_of_ns is None:
        return posted
    if posted[0].posted_ns > as_of_ns:
        raise PricingError(f"{close_id} was closed at {utc(posted[0].posted_ns)}, which is after {utc(as_of_ns)}")
    return [posting for posting in posted if posting.posted_ns <= as_of_ns]


def file(ledger: Ledger, posting: records.Posting, name: str) -> Path:
    """Return the path of a frozen file. Raises PricingError if it is missing or has changed."""
    path = folder(ledger, posting.close_id) / name
    try:
        with path.open("rb") as stored:
            sha256 = hashlib.file_digest(stored, "sha256").hexdigest()
    except OSError as error:
        raise PricingError(
            f"{path}, which {posting.close_id} was frozen in, cannot be read ({error.strerror}); restore the original"
        ) from None
    # The book of a correction may lie in the file of an earlier posting.
    if sha256 != (posting.book.sha256 if name == posting.book.file else posting.files[name]):
        raise PricingError(f"{path} was changed after it was frozen; restore the original, `rose books verify` checks")
    return path


def stays(ledger: Ledger, posting: records.Posting) -> tuple[Stay, ...]:
    frame = pl.read_parquet(file(ledger, posting, STAYS_FILE), hive_partitioning=False)
    return tuple(Stay(*row) for row in frame.iter_rows())


def book_of(ledger: Ledger, posting: records.Posting) -> PriceBook:
    text = file(ledger, posting, posting.book.file).read_text("utf-8")
    return choice.chosen(pricebook.parse(text, posting.book.source), choice.FROZEN)


def folder(ledger: Ledger, close_id: str) -> Path:
    return ledger.folder / FOLDER / close_id


def staged(ledger: Ledger, close_id: str) -> Path:
    return ledger.folder / FOLDER / f".{close_id}.tmp"


def parquet(frame: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=True)
    return buffer.getvalue()


def post(ledger: Ledger, posting: records.Posting, contents: Mapping[str, bytes]) -> None:
    """Freeze a posting. The caller must hold the lock. Raises LedgerError if the disk or the ledger refuses.

    If the event was recorded by then, the next call finishes the posting."""
    assert {name: hashlib.sha256(stored).hexdigest() for name, stored in contents.items()} == posting.files
    temporary = staged(ledger, posting.close_id)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            layout.make_folder(temporary)
            for name, stored in contents.items():
                layout.write_file(temporary / name, stored)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        action = records.RESTATED if posting.number else records.CLOSED
        event_id = f"{posting.close_id}/{posting.number}"
        book_events.record(ledger, action, posting.to_json(), posting.posted_us, event_id)
        finish(ledger, [posting])
    except OSError as error:
        raise LedgerError(f"cannot write {temporary}: {error.strerror}; nothing was posted") from error


def publish(ledger: Ledger, posted: list[records.Posting]) -> None:
    if all((folder(ledger, posting.close_id) / name).exists() for posting in posted for name in posting.files):
        return
    if staged(ledger, posted[0].close_id).exists():
        with book_events.lock(ledger):
            finish(ledger, posted)


def discard_unposted(ledger: Ledger) -> None:
    home = ledger.folder / FOLDER
    for path in home.glob(".*.tmp") if home.exists() else ():
        shutil.rmtree(path)


def finish(ledger: Ledger, posted: list[records.Posting]) -> None:
    for posting in posted:
        temporary, final = staged(ledger, posting.close_id), folder(ledger, posting.close_id)
        waiting = [name for name, sha256 in posting.files.items() if _is(temporary / name, sha256)]
        if posting.number == 0:
            if len(waiting) == len(posting.files) and not final.exists():
                temporary.rename(final)
                layout.sync_folder(final.parent)
        elif waiting and final.exists():
            for name in waiting:
                if not (final / name).exists():
                    layout.move_file(temporary / name, final / name)
            shutil.rmtree(temporary)


def _is(path: Path, sha256: str) -> bool:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest() == sha256
    except OSError:
        return False
