import hashlib
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.files import examine
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.audit.check import check
from rose.pricing.charges import pricing
from rose.pricing.closing import store
from rose.pricing.closing.bill import bill, of_close
from rose.pricing.closing.close import restate
from rose.pricing.closing.store import postings
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    BOOK_TOML,
    CLOSE_ID,
    DEARER,
    FIRST_HOUR,
    HOUR_NS,
    NEXT_DAY_US,
    T0_NS,
    begun,
    close,
    ended,
    slice_,
    write,
)


def test_a_close_freezes_the_charges_and_all_they_were_made_from(fleet: Path) -> None:
    before = charges.price(Ledger(fleet), BOOK, FIRST_HOUR)
    posting = close(fleet)
    assert [posting] == postings(Ledger(fleet))[CLOSE_ID]
    (charged,) = of_close(Ledger(fleet), CLOSE_ID).parts
    assert charged.frame.equals(before.frame)
    assert store.stays(Ledger(fleet), posting) == before.stays
    assert charged.book.text == BOOK_TOML
    folder = fleet / "closes" / CLOSE_ID
    assert {path.name for path in folder.iterdir()} == set(posting.files)
    assert posting.files["charges.parquet"] == hashlib.sha256((folder / "charges.parquet").read_bytes()).hexdigest()
    assert posting.book.sha256 == BOOK.sha256 == hashlib.sha256(BOOK_TOML.encode()).hexdigest()
    assert posting.watermark["test"][0] == 16
    assert (posting.posted_by, posting.posted_us, posting.verified) == ("ann", NEXT_DAY_US, True)
    assert sum(total["cost_nano"] for total in posting.totals) == posting.cost_nano == BILL_NANO

    (payload,) = examine.recorded(fleet, "closing", "closed")
    assert payload["files"] == dict(posting.files)
    assert not check(Ledger(fleet)).problems


def test_the_same_ledger_and_book_give_the_same_bytes(fleet: Path, closed: Path) -> None:
    close(fleet)
    for name in ("charges.parquet", "stays.parquet", "price_book.toml"):
        assert (fleet / "closes" / CLOSE_ID / name).read_bytes() == (closed / "closes" / CLOSE_ID / name).read_bytes()


def test_what_cannot_be_closed_is_refused(closed: Path) -> None:
    later = Period(T0_NS + HOUR_NS, T0_NS + 2 * HOUR_NS)
    cases: list[tuple[Period, dict[str, Any], str]] = [
        (FIRST_HOUR, {}, f"overlaps {CLOSE_ID}.*rose books restate {CLOSE_ID}"),
        (Period(T0_NS, T0_NS + 2 * HOUR_NS), {}, f"overlaps {CLOSE_ID}"),
        (later, {}, "has no provisioned device time"),
        (later, {"now_us": later.to_ns // 1000 - 1}, "is not over at 2026-06-01T01:59:59"),
        (later, {"provenance": "replay"}, "provenance 'replay'"),
    ]
    for period, options, says in cases:
        with pytest.raises(PricingError, match=says):
            close(closed, period, **options)
    assert list(postings(Ledger(closed))) == [CLOSE_ID]
    assert [path.name for path in (closed / "closes").iterdir()] == [CLOSE_ID]


def test_a_run_that_goes_on_needs_to_be_said(tmp_path: Path) -> None:
    root = write(tmp_path / "ledger", [*begun(), slice_(0, serving=7200)])
    with pytest.raises(PricingError, match=r"a run has not ended: run.*--with-open-runs"):
        close(root)
    assert close(root, with_open_runs=True).open_runs == ("run",)
    # What began afterwards, or is not charged here, does not hold a close up.
    write(root, [events.Run(action="started", name="later", at_us=NEXT_DAY_US)], "other")
    assert close(root, Period(T0_NS + HOUR_NS, T0_NS + 2 * HOUR_NS), with_open_runs=True).close_id


def test_provenances_are_closed_apart(fleet: Path) -> None:
    write(fleet, [*begun(), slice_(0, serving=60), *ended(60)], "replayer", "replay")
    with pytest.raises(PricingError, match="different provenance"):
        close(fleet)
    live, replay = close(fleet, provenance="live"), close(fleet, provenance="replay")
    assert (live.close_id, replay.close_id) == (CLOSE_ID, "2026-06-01T00-replay-1")
    assert (live.cost_nano, replay.cost_nano) == (BILL_NANO, 60_000_000)


def test_an_unverified_ledger_is_closed_only_if_asked_and_marked(fleet: Path) -> None:
    segment = sorted((fleet / "live" / "test" / "000000").iterdir())[-1]
    (segment.parent / "foreign.txt").write_text("not ours")
    with pytest.raises(PricingError, match="does not verify"):
        close(fleet)
    assert not close(fleet, allow_unverified=True).verified
    assert "UNVERIFIED LEDGER" in str(of_close(Ledger(fleet), CLOSE_ID).stamp)


_KILLED = """
import os, signal, sys
from pathlib import Path
from rose.ledger.files import layout
from rose.ledger.ledger import Ledger
from rose.pricing.closing.close import restate
from tests.pricing.closing.conftest import CLOSE_ID, DEARER, close

def die(*arguments, **options):
    os.kill(os.getpid(), signal.SIGKILL)

match sys.argv[3]:
    case "as its files are written": layout.sync_file = die
    case "as its files are moved": layout.move_file = die
    case "before its event": Ledger.record_in_books = die
match sys.argv[2]:
    case "close": close(Path(sys.argv[1]))
    case "restate": restate(Ledger(sys.argv[1]), CLOSE_ID, "contract 18", DEARER)
"""
_WRITING = ["as its files are written", "as its files are moved"]


def killed(fleet: Path, command: str, where: str) -> None:
    line = [sys.executable, "-c", _KILLED, str(fleet), command, where]
    done = subprocess.run(line, cwd=Path(__file__).parents[3], check=False, capture_output=True)
    assert done.returncode == -9, done.stderr.decode()


@pytest.mark.parametrize("where", _WRITING)
def test_a_process_killed_in_a_close_has_closed_nothing(fleet: Path, where: str) -> None:
    killed(fleet, "close", where)
    assert postings(Ledger(fleet)) == {}
    assert check(Ledger(fleet)).problems == ()
    with pytest.raises(PricingError, match="unknown close"):
        of_close(Ledger(fleet), CLOSE_ID)
    assert close(fleet).close_id == CLOSE_ID
    report = check(Ledger(fleet))
    assert (report.closes, report.problems) == (1, ())
    assert bill(Ledger(fleet), FIRST_HOUR).total_nano == BILL_NANO
    assert [path.name for path in (fleet / "closes").iterdir()] == [CLOSE_ID]


@pytest.mark.parametrize("where", _WRITING)
def test_a_process_killed_in_a_correction_has_corrected_nothing(closed: Path, where: str) -> None:
    killed(closed, "restate", where)
    assert bill(Ledger(closed), FIRST_HOUR).total_nano == BILL_NANO
    correction = restate(Ledger(closed), CLOSE_ID, "contract 18", DEARER)
    assert correction is not None
    assert bill(Ledger(closed), FIRST_HOUR).total_nano == BILL_NANO + correction.cost_nano
    report = check(Ledger(closed))
    assert (report.corrections, report.problems) == (1, ())
    assert [path.name for path in (closed / "closes").iterdir()] == [CLOSE_ID]


def test_files_whose_event_is_missing_are_named_and_never_replaced(fleet: Path) -> None:
    """The process was killed in between, or the ledger lost the event: the files may be all that is left of a bill."""
    killed(fleet, "close", "before its event")
    kept = {path: path.read_bytes() for path in (fleet / "closes" / CLOSE_ID).iterdir()}
    assert len(kept) == len(check(Ledger(fleet)).problems) == 3
    with pytest.raises(PricingError, match="no event of the ledger names it: run `rose books verify`"):
        of_close(Ledger(fleet), CLOSE_ID)
    with pytest.raises(LedgerError, match=r"charges.parquet exists, but no event of the ledger names it"):
        close(fleet, book=DEARER)
    assert {path: path.read_bytes() for path in kept} == kept
    assert close(fleet).close_id == CLOSE_ID
    assert {path: path.read_bytes() for path in kept} == kept
    assert check(Ledger(fleet)).problems == ()
    assert bill(Ledger(fleet), FIRST_HOUR).total_nano == BILL_NANO


def test_a_correction_never_replaces_files_whose_event_is_missing(closed: Path) -> None:
    killed(closed, "restate", "before its event")
    kept = {path: path.read_bytes() for path in (closed / "closes" / CLOSE_ID).iterdir()}
    with pytest.raises(LedgerError, match="exists, but no event of the ledger names it: run `rose books verify`"):
        restate(Ledger(closed), CLOSE_ID, "contract 18", DEARER)
    assert {path: path.read_bytes() for path in (closed / "closes" / CLOSE_ID).iterdir()} == kept
    assert bill(Ledger(closed), FIRST_HOUR).total_nano == BILL_NANO


def _too_dear() -> Any:
    """The book with a bill of $12e9: rates that no book may have, as if the check of books had been passed by."""
    factor = Decimal(12 * 10**18 // BILL_NANO)
    devices = [price.model_copy(update={"usd_per_hour": factor * price.usd_per_hour}) for price in BOOK.device]
    return BOOK.model_copy(update={"device": devices, "sha256": "dear"})


def test_what_the_books_cannot_hold_is_not_frozen(fleet: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PricingError, match=r"cost_nano of the period comes to .* check the unit"):
        close(fleet, book=_too_dear())
    with monkeypatch.context() as patch:
        patch.setattr(pricing, "_refuse_too_large", lambda frame: None)
        with pytest.raises(PricingError, match="the books take only amounts below"):
            close(fleet, book=_too_dear())
    assert postings(Ledger(fleet)) == {}
    assert not (fleet / "closes").exists()
