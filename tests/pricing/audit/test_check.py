from __future__ import annotations

from pathlib import Path

import pytest

from rose.ledger.upkeep import books
from rose.pricing.audit.check import check
from rose.pricing.closing.restate import restate
from tests.pricing.closing.conftest import CLOSE_ID, DEARER, NEXT_DAY_US


@pytest.fixture(scope="module")
def corrected_made(closed_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import shutil

    root = Path(shutil.copytree(closed_made, tmp_path_factory.mktemp("corrected") / "ledger"))
    assert restate(root, CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    return root


@pytest.fixture
def corrected(corrected_made: Path, tmp_path: Path) -> Path:
    import shutil

    return Path(shutil.copytree(corrected_made, tmp_path / "corrected"))


def test_sound_books_are_found_sound(corrected: Path) -> None:
    found = check(corrected)
    assert (found.closes, found.corrections, found.files, found.problems) == (1, 1, 5, ())


@pytest.mark.parametrize(
    "name",
    ["charges.parquet", "stays.parquet", "price_book.toml", "corrections-0001.parquet", "price_book-0001.toml"],
)
def test_a_changed_byte_of_any_frozen_file_is_found_and_named(corrected: Path, name: str) -> None:
    path = corrected / "closes" / CLOSE_ID / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (problem,) = check(corrected).problems
    assert problem.startswith(f"{path} was changed after it was frozen")


def test_a_removed_close_and_a_foreign_file_are_found(corrected: Path) -> None:
    (corrected / "closes" / "mine.parquet").write_bytes(b"")
    (corrected / "closes" / CLOSE_ID / "charges.parquet").unlink()
    gone, foreign = check(corrected).problems
    assert "charges.parquet, which" in gone
    assert "mine.parquet: no event of the ledger speaks of it" in foreign


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("UPDATE closed_posting SET cost_nano = 1 WHERE correction = 0", f"cost_nano of {CLOSE_ID} is 1, and"),
        (
            "UPDATE closed_posting SET file_sha256 = 'x' WHERE correction = 1",
            f"file_sha256 of correction 1 of {CLOSE_ID}",
        ),
        ("DELETE FROM closed_total WHERE bucket = 'idle'", "total_nano of"),
        (
            "INSERT INTO closed_posting SELECT * REPLACE ('forged' AS close_id) FROM closed_posting LIMIT 1",
            "posting 0 of forged, of which no event",
        ),
    ],
)
def test_changed_books_are_found(corrected: Path, statement: str, says: str) -> None:
    with books.change(corrected) as connection:
        connection.execute(statement)
    problems = check(corrected).problems
    assert any(says in problem for problem in problems), problems


def test_books_that_are_lost_are_made_again_from_the_events(corrected: Path) -> None:
    (corrected / books.BOOKS).unlink()
    assert not check(corrected).problems
    with books.connect(corrected) as connection:
        assert connection.execute("SELECT count(*) FROM closed_posting").fetchall() == [(2,)]


def test_another_history_of_the_ledger_is_found(corrected: Path) -> None:
    """Someone who replaces a writer's events by others, in sound segments, does not get past a close."""
    import shutil

    from rose.ledger.verify import verify
    from tests.pricing.closing.conftest import fleet_events, late_slice, write

    shutil.rmtree(corrected / "live" / "test")
    (corrected / "heads" / "test.json").unlink()
    write(corrected, [*fleet_events(), late_slice()])
    assert not verify(corrected).ok, "the last verification saw the segments that are gone"
    shutil.rmtree(corrected / "verified")
    assert verify(corrected).ok
    problems = check(corrected).problems
    assert len(problems) == 2
    assert all("was priced from writer 'test' up to seq 16, whose segment" in problem for problem in problems)


def test_a_changed_event_of_a_close_is_found(corrected: Path) -> None:
    path = sorted((corrected / "live" / "closing" / "000000").iterdir())[-1]
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    problems = check(corrected).problems
    assert any(problem.startswith("ledger: live/closing") for problem in problems)
