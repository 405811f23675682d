import json
from pathlib import Path

import polars as pl
import pytest
from pydantic import ValidationError

from rose.ledger.files.layout import LedgerError
from rose.ledger.growth import compaction
from rose.ledger.ledger import Ledger
from rose.pricing.audit.check import check
from rose.pricing.charges import Stay
from rose.pricing.closing import store
from rose.pricing.closing.bill import Bill, of_close
from rose.pricing.closing.store import postings, watermark
from rose.pricing.money import PricingError
from tests.ledger.conftest import close_epochs, flip
from tests.pricing.closing.conftest import BILL_NANO, BOOK, CLOSE_ID, FIRST_HOUR, NEXT_DAY_US, close, late_slice, write


def read(root: Path, close_id: str = CLOSE_ID, as_of_ns: int | None = None) -> tuple[Bill, tuple[Stay, ...]]:
    bill = of_close(Ledger(root), close_id, as_of_ns)
    assert bill.total_nano == int(bill.frame["cost_nano"].sum())
    return bill, store.stays(Ledger(root), bill.posted[0])


def test_a_close_reads_back_as_it_was_frozen(closed_kept: Path) -> None:
    bill, _ = read(closed_kept)
    assert (bill.period, bill.total_nano, bill.corrections) == (FIRST_HOUR, BILL_NANO, ())
    assert bill.newest_book == BOOK.model_copy(update={"chosen": "frozen with the close"})
    assert bill.frame.drop("closed").equals(bill.parts[0].frame)
    assert str(bill.stamp) == "USD, live"


def test_before_it_was_closed_nothing_was_known(closed_kept: Path) -> None:
    assert read(closed_kept, CLOSE_ID, NEXT_DAY_US * 1000)[0].total_nano == BILL_NANO
    with pytest.raises(PricingError, match=r"was closed at 2026-06-02T00:00:00\.000000Z, which is after"):
        read(closed_kept, CLOSE_ID, NEXT_DAY_US * 1000 - 1)


def test_what_is_not_there_is_named(closed: Path) -> None:
    with pytest.raises(PricingError, match=f"unknown close 'x'; the closes of this ledger: {CLOSE_ID}"):
        read(closed, "x")
    (closed / "closes" / "x").mkdir()
    with pytest.raises(PricingError, match=r"closes/x exists, but no event of the ledger names it"):
        read(closed, "x")


@pytest.mark.parametrize("name", ["charges.parquet", "stays.parquet", "price_book.toml"])
def test_a_changed_or_missing_file_is_never_read(closed: Path, name: str) -> None:
    path = closed / "closes" / CLOSE_ID / name
    flip(path, path.stat().st_size - 1)
    with pytest.raises(PricingError, match=f"{name} was changed after it was frozen"):
        read(closed)
    path.unlink()
    with pytest.raises(PricingError, match=f"{name}, a frozen file of {CLOSE_ID}, cannot be read"):
        read(closed)


def test_the_same_rows_are_the_same_bytes(closed_kept: Path) -> None:
    path = closed_kept / "closes" / CLOSE_ID / "charges.parquet"
    frame = pl.read_parquet(path)
    assert store.parquet(frame) == store.parquet(frame.clone()) == path.read_bytes()


def test_a_posting_goes_through_json_unchanged(closed: Path) -> None:
    (posting,) = postings(Ledger(closed))[CLOSE_ID]
    assert store.FROM_JSON.validate_python(json.loads(json.dumps(posting.to_json()))) == posting
    with pytest.raises(ValidationError):
        store.FROM_JSON.validate_python({"close_id": "x"})


def test_the_watermark_is_the_last_event_and_its_segment(fleet: Path) -> None:
    before = watermark(Ledger(fleet))
    ((writer, (seq, sha256)),) = before.items()
    assert (writer, seq) == ("test", 16)
    assert list((fleet / "live" / "test" / "000000").glob(f"*-{sha256}.parquet"))
    write(fleet, [late_slice()], "late")
    assert watermark(Ledger(fleet)) == {"late": (0, watermark(Ledger(fleet))["late"][1]), **before}
    write(fleet, [late_slice()])
    assert watermark(Ledger(fleet))["test"][0] == 17
    # A writer that was killed before its first segment stood.
    (fleet / "live" / "closing").mkdir()
    assert "closing" not in watermark(Ledger(fleet))


def test_a_posting_whose_files_cannot_be_written_is_not_posted(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(store, "STAYS_FILE", "missing/stays.parquet")
        with pytest.raises(LedgerError, match=r"cannot write .*/closes/.*nothing was posted"):
            close(fleet)
    assert postings(Ledger(fleet)) == {}
    assert list((fleet / "closes").iterdir()) == []
    assert close(fleet).close_id == CLOSE_ID
    assert read(fleet)[0].total_nano == BILL_NANO


def test_closes_outlive_a_compaction(closed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (before,) = postings(Ledger(closed))[CLOSE_ID]
    close_epochs(closed)
    assert compaction.compact(Ledger(closed), grace_s=0).files_written >= 2
    compaction.compact(Ledger(closed), grace_s=0)
    assert postings(Ledger(closed))[CLOSE_ID] == [before]
    assert (closed / "compacted" / "test").exists()
    assert not check(Ledger(closed)).problems
