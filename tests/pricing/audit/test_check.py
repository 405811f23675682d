import shutil
from pathlib import Path

import pytest

from rose import events
from rose.ledger.evidence import continuation, receipt
from rose.ledger.ledger import Ledger
from rose.pricing.audit.check import check
from rose.pricing.closing.close import restate
from rose.pricing.period import of_month
from rose.pricing.watch.budget import set_budget
from tests.ledger.conftest import flip
from tests.pricing.closing.conftest import CLOSE_ID, DEARER, NEXT_DAY_US, fleet_events, late_slice, write
from tests.pricing.conftest import a_copy_of


@pytest.fixture(scope="module")
def corrected_made(closed_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(closed_made, tmp_path_factory.mktemp("corrected") / "ledger"))
    assert restate(Ledger(root), CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    set_budget(Ledger(root), "research", "12000", of_month("2026-06"), by="finance")
    return root


corrected = a_copy_of("corrected_made", "corrected")


def test_sound_books_are_found_sound(corrected: Path) -> None:
    report = check(Ledger(corrected))
    assert (report.closes, report.corrections, report.files, report.problems) == (1, 1, 5, ())


def test_a_changed_byte_of_any_frozen_file_is_found_and_named(corrected: Path) -> None:
    names = ["charges.parquet", "stays.parquet", "price_book.toml", "corrections-0001.parquet", "price_book-0001.toml"]
    paths = [corrected / "closes" / CLOSE_ID / name for name in names]
    for path in paths:
        flip(path, path.stat().st_size // 2)
    told = [problem.partition(" was changed after it was frozen") for problem in check(Ledger(corrected)).problems]
    assert sorted(path for path, changed, _ in told if changed) == sorted(map(str, paths))
    assert len(told) == len(paths)


def test_a_removed_close_and_a_foreign_file_are_found(corrected: Path) -> None:
    (corrected / "closes" / "mine.parquet").write_bytes(b"")
    (corrected / "closes" / CLOSE_ID / "charges.parquet").unlink()
    gone, foreign = check(Ledger(corrected)).problems
    assert "charges.parquet" in gone
    assert "mine.parquet: no event of the ledger names it" in foreign


def test_another_history_of_the_ledger_is_found(corrected: Path) -> None:
    """Someone who replaces a writer's events by others, in sound segments, does not get past a close."""
    shutil.rmtree(corrected / "live" / "test")
    (corrected / "heads" / "test.json").unlink()
    write(corrected, [*fleet_events(), late_slice()])
    assert not Ledger(corrected).verify().ok, "the last verification saw the segments that are gone"
    shutil.rmtree(corrected / "verified")
    assert Ledger(corrected).verify().ok
    problems = check(Ledger(corrected)).problems
    assert len(problems) == 2
    assert all("was priced from writer 'test' up to seq 16, whose segment" in problem for problem in problems)


def test_a_changed_event_of_a_close_is_found(corrected: Path) -> None:
    flip(sorted((corrected / "live" / "closing" / "000000").iterdir())[-1], -20)
    assert any(problem.startswith("ledger: live/closing") for problem in check(Ledger(corrected)).problems)


def test_a_priced_segment_in_the_middle_that_is_gone_or_changed_is_found(corrected: Path) -> None:
    """The chain of a writer goes through all that was priced, not only its last segment."""
    write(corrected, [events.Preemption(action="cut", reason="late", device_id="s0")])
    middle = sorted((corrected / "live" / "test" / "000000").iterdir())[0]
    content = middle.read_bytes()
    for damaged in (bytes([content[0], content[1] ^ 1]) + content[2:], None):
        middle.unlink()
        if damaged is not None:
            middle.write_bytes(damaged)
        problems = check(Ledger(corrected)).problems
        assert any(problem.startswith("ledger: live/test") for problem in problems), problems


def test_closes_that_were_removed_with_every_trace_are_found_by_a_receipt(corrected: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept.json"
    receipt.keep(kept, receipt.take(Ledger(corrected)).content())
    receipts = continuation.read([kept])
    assert not check(Ledger(corrected), receipts).problems
    for trace in ("live/closing", "closes", "verified"):
        shutil.rmtree(corrected / trace)
    (corrected / "heads" / "closing.json").unlink()
    registry = corrected / "writers.jsonl"
    if registry.exists():
        lines = registry.read_bytes().splitlines(True)
        registry.write_bytes(b"".join(line for line in lines if b"closing" not in line))
    problems = check(Ledger(corrected), receipts).problems
    assert any("closing" in problem and "receipt" in problem for problem in problems), problems
