import hashlib
from pathlib import Path

import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.audit.check import check
from rose.pricing.charges.pricing import AMOUNTS, DIMENSIONS
from rose.pricing.closing import store
from rose.pricing.closing.bill import of_close
from rose.pricing.closing.close import restate
from rose.pricing.closing.store import Posting, postings
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import PriceBook, parse
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    BOOK_TOML,
    CLOSE_ID,
    DEARER,
    FIRST_HOUR,
    NEXT_DAY_US,
    judged,
    late_slice,
    write,
)
from tests.pricing.conftest import printed


def again(root: Path, reason: str = "late", book: PriceBook | None = None, hours: int = 1) -> Posting | None:
    return restate(Ledger(root), CLOSE_ID, reason, book, by="bob", now_us=NEXT_DAY_US + hours * 3_600_000_000)


def now(root: Path, book: PriceBook = BOOK) -> pl.DataFrame:
    return charges.price(Ledger(root), book, FIRST_HOUR).frame


def amounts(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.select(*DIMENSIONS, *AMOUNTS)


def test_no_difference_is_not_posted(closed: Path) -> None:
    before = sorted(path.name for path in (closed / "closes" / CLOSE_ID).iterdir())
    assert again(closed) is None
    assert sorted(path.name for path in (closed / "closes" / CLOSE_ID).iterdir()) == before
    assert len(postings(Ledger(closed))[CLOSE_ID]) == 1


def test_late_events_become_a_correction_of_the_hour_they_belong_to(closed: Path) -> None:
    frozen = (closed / "closes" / CLOSE_ID / "charges.parquet").read_bytes()
    write(closed, [late_slice()], "late")
    posting = again(closed, "an agent was cut off")
    assert posting is not None
    # 300 s at $0.001 move from unaccounted to idle; the bill stays.
    assert (posting.number, posting.cost_nano, posting.reason) == (1, 0, "an agent was cut off")
    close = of_close(Ledger(closed), CLOSE_ID)
    corrections = pl.read_parquet(closed / "closes" / CLOSE_ID / "corrections-0001.parquet")
    rows = {(row["bucket"], row["cause"]): row for row in corrections.iter_rows(named=True)}
    assert rows["unaccounted", None]["cost_nano"] == -300_000_000
    assert rows["idle", "could have been lent"]["cost_nano"] == 300_000_000
    assert rows["idle", "could have been lent"]["ns"] == 300 * 10**9
    assert set(corrections["hour"]) == set(close.parts[0].frame["hour"])
    added = {"correction": pl.Int64, "posted_at": pl.Datetime("us"), "reason": pl.String}
    assert corrections.schema == close.parts[0].frame.schema | added
    assert amounts(close.frame).equals(amounts(now(closed)))
    # The close itself is what it was.
    assert (closed / "closes" / CLOSE_ID / "charges.parquet").read_bytes() == frozen
    assert close.parts[0].total_nano == BILL_NANO
    assert again(closed) is None
    assert not check(Ledger(closed)).problems


def test_a_new_price_book_corrects_every_hour_and_stays_for_the_next_time(closed: Path) -> None:
    posting = again(closed, "contract 18", DEARER)
    assert posting is not None
    assert posting.cost_nano == 360_000_000
    assert posting.book.file == "price_book-0001.toml"
    stored = (closed / "closes" / CLOSE_ID / posting.book.file).read_bytes()
    assert hashlib.sha256(stored).hexdigest() == DEARER.sha256
    assert again(closed, "again", hours=2) is None, "the book of the last posting prices the next"
    write(closed, judged("t1", 2600, accepted=True), "judge")
    second = again(closed, "the verdict was revised", hours=3)
    assert second is not None
    assert (second.number, second.book.sha256, second.book.file) == (2, DEARER.sha256, "price_book-0001.toml")
    close = of_close(Ledger(closed), CLOSE_ID)
    assert amounts(close.frame).equals(amounts(now(closed, DEARER)))
    assert close.parts[0].book.sha256 == BOOK.sha256
    assert store.book_of(Ledger(closed), second).text == DEARER.text
    assert not check(Ledger(closed)).problems


def test_a_correction_is_never_posted_before_what_it_corrects(closed: Path) -> None:
    assert again(closed, "contract 18", DEARER, hours=-30)
    first, second = postings(Ledger(closed))[CLOSE_ID]
    assert second.posted_us == first.posted_us + 1


@pytest.mark.parametrize(
    ("close_id", "reason", "says"), [("nope", "x", "unknown close 'nope'"), (CLOSE_ID, " ", "needs a reason")]
)
def test_what_cannot_be_restated_is_refused(closed: Path, close_id: str, reason: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        restate(Ledger(closed), close_id, reason)


@pytest.mark.parametrize("name", ["charges.parquet", "stays.parquet", "price_book.toml"])
def test_a_close_whose_file_was_changed_is_not_restated(closed: Path, name: str) -> None:
    path = closed / "closes" / CLOSE_ID / name
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(PricingError, match=f"{name} was changed after it was frozen"):
        again(closed)


def test_closed_and_corrections_are_the_restated_at_every_instant(closed: Path) -> None:
    known = [(NEXT_DAY_US, amounts(of_close(Ledger(closed), CLOSE_ID).frame))]
    for step, rate in enumerate(["1.8", "3.6000000007"], 1):
        book = parse(BOOK_TOML.replace("3.60", rate), "book.toml")
        assert again(closed, f"rate {rate}", book, hours=step)
        known.append((NEXT_DAY_US + step * 3_600_000_000, amounts(now(closed, book))))
    for place, (at_us, expected) in enumerate(known):
        close = of_close(Ledger(closed), CLOSE_ID, at_us * 1000)
        assert amounts(close.frame).equals(expected)
        for keys in ("team", "bucket", "hour", "device_id", "fate"):
            assert _by(pl.concat([part.frame for part in close.parts]), keys) == _by(expected, keys)
        # One who asks about the same instant later is told the same, and one who asks about a later instant knows more.
        later = of_close(Ledger(closed), CLOSE_ID, known[-1][0] * 1000)
        assert all(part.frame.equals(then.frame) for part, then in zip(later.parts, close.parts, strict=False))
        assert close.posted == later.posted[: len(close.posted)]
        assert place >= len(close.posted) - 1


def _by(frame: pl.DataFrame, key: str) -> dict[object, int]:
    return dict(frame.group_by(key).agg(pl.col("cost_nano").sum()).iter_rows())


def test_a_close_and_its_corrections_are_shown(closed: Path) -> None:
    restate(Ledger(closed), CLOSE_ID, "contract 18 [signed]", DEARER, by="bob", now_us=NEXT_DAY_US + 1)
    assert f"{CLOSE_ID} 2026-06-01 2026-06-01T01 $3.87 1: +$0.360 $4.23" in printed(
        store.closes_table(postings(Ledger(closed)))
    )
    text = printed(store.posting_elements(postings(Ledger(closed))[CLOSE_ID]))
    assert f"SHA-256 of the close {postings(Ledger(closed))[CLOSE_ID][0].sha256}" in text
    assert "0 2026-06-02T00:00:00Z $3.87" in text
    assert "+$0.360" in text
    assert "contract 18 [signed] (bob)" in text
