from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing import closing
from rose.pricing.closing import store
from rose.pricing.closing.period import naive
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    CLOSE_ID,
    FIRST_HOUR,
    NEXT_DAY_US,
)


def test_a_close_reads_back_as_it_was_frozen(closed_kept: Path) -> None:
    close = closing.read(closed_kept, CLOSE_ID)
    assert isinstance(close, closing.Closed)
    assert (close.charges.from_ns, close.charges.to_ns) == (FIRST_HOUR.from_ns, FIRST_HOUR.to_ns)
    assert close.charges.total_nano == BILL_NANO
    assert close.closed_at == naive(NEXT_DAY_US * 1000)
    assert close.book == close.charges.book == BOOK.model_copy(update={"chosen": "frozen with the close"})
    assert close.corrections.is_empty()
    assert close.frame.equals(close.charges.frame)
    assert str(close.stamp) == "USD, live"


def test_before_it_was_closed_nothing_was_known(closed_kept: Path) -> None:
    assert closing.read(closed_kept, CLOSE_ID, NEXT_DAY_US * 1000).charges.total_nano == BILL_NANO
    with pytest.raises(PricingError, match=r"was closed at 2026-06-02T00:00:00\.000000Z, so nothing of it was known"):
        closing.read(closed_kept, CLOSE_ID, NEXT_DAY_US * 1000 - 1)


def test_what_is_not_there_is_named(closed: Path) -> None:
    with pytest.raises(PricingError, match=f"no close 'x'; the closes of this ledger: {CLOSE_ID}"):
        closing.read(closed, "x")
    (closed / "closes" / "x").mkdir()
    with pytest.raises(PricingError, match=r"closes/x is there, but no event of the ledger speaks of it"):
        closing.read(closed, "x")


@pytest.mark.parametrize("name", ["charges.parquet", "stays.parquet", "price_book.toml"])
def test_a_changed_or_missing_file_is_never_read(closed: Path, name: str) -> None:
    path = closed / "closes" / CLOSE_ID / name
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(PricingError, match=f"{name} was changed after it was frozen"):
        closing.read(closed, CLOSE_ID)
    path.unlink()
    with pytest.raises(PricingError, match=f"{name}, which {CLOSE_ID} was frozen in, cannot be read"):
        closing.read(closed, CLOSE_ID)


def test_the_same_rows_are_the_same_bytes(closed_kept: Path) -> None:
    frame = closing.read(closed_kept, CLOSE_ID).charges.frame
    assert store.parquet(frame) == store.parquet(frame.clone())
    assert store.parquet(frame) == (closed_kept / "closes" / CLOSE_ID / "charges.parquet").read_bytes()
