from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rose.ledger import layout
from rose.pricing import closing
from rose.pricing.charges import Charges
from rose.pricing.closing import charge_algebra, store
from rose.pricing.closing.close import make_posting
from rose.pricing.closing.period import naive
from rose.pricing.money import PricingError
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    CLOSE_ID,
    FIRST_HOUR,
    NEXT_DAY_US,
    frames_of_charges,
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


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(frames_of_charges(), min_size=2, max_size=3),
    st.lists(st.integers(1, 10**6), min_size=3, max_size=3),
)
def test_whatever_is_posted_every_instant_keeps_its_answer(
    tmp_path_factory: pytest.TempPathFactory, states: list[pl.DataFrame], steps_us: list[int]
) -> None:
    """Identity 9 and as-of on any charges: rows added, removed and changed."""
    root = layout.create(tmp_path_factory.mktemp("any") / "ledger")
    at_us, posted = NEXT_DAY_US, [states[0]]
    history: list[tuple[int, pl.DataFrame]] = []
    for number, state in enumerate(states):
        priced = Charges(
            frame=state,
            stays=(),
            from_ns=FIRST_HOUR.from_ns,
            to_ns=FIRST_HOUR.to_ns,
            provenance="live",
            verified=True,
            book=BOOK,
        )
        frame = state
        if number:
            rows = charge_algebra.difference(state, charge_algebra.add(posted))
            posted.insert(0, rows)
            frame = rows.with_columns(
                correction=pl.lit(number, pl.Int64),
                posted_at=pl.lit(naive(at_us * 1000), pl.Datetime("us")),
                reason=pl.lit("any"),
            )
        files = {} if number else {"stays.parquet": _no_stays(), "price_book.toml": BOOK.text.encode()}
        posting, contents = make_posting(
            close_id="any",
            number=number,
            priced=priced,
            frame=frame,
            more_files=files,
            book_file="price_book.toml",
            rows_file=f"corrections-{number:04d}.parquet" if number else "charges.parquet",
            watermark={},
            posted_us=at_us,
            by="ann",
            reason="any" if number else None,
        )
        with store.lock(root):
            store.post(root, posting, contents)
        history.append((at_us, state))
        at_us += steps_us[number]
    for place, (at_us, state) in enumerate(history):
        until_us = history[place + 1][0] if place + 1 < len(history) else at_us + 1
        for asked_us in (at_us, until_us - 1):
            close = closing.read(root, "any", asked_us * 1000)
            assert len(close.posted) == place + 1
            assert _amounts(close.frame).equals(_amounts(state))
            assert charge_algebra.total(close.charges.frame) + charge_algebra.total(
                close.corrections
            ) == charge_algebra.total(state)


def _amounts(frame: pl.DataFrame) -> pl.DataFrame:
    return charge_algebra.add([frame]).select(*charge_algebra.DIMENSIONS, *charge_algebra.AMOUNTS)


def _no_stays() -> bytes:
    names = ("run_id", "device_id", "pool", "device_class")
    return store.parquet(pl.DataFrame(schema={**dict.fromkeys(names, pl.String), "t0_ns": pl.Int64, "t1_ns": pl.Int64}))
