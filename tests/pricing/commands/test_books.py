import json
from pathlib import Path

import pytest
from typer.testing import Result

from tests.pricing.closing.conftest import BILL_NANO, BOOK_TOML, CLOSE_ID, begun, fleet_events, slice_, write
from tests.pricing.conftest import a_copy_of, data, refused, rose


@pytest.fixture(scope="module")
def books_made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("books")
    write(folder / "ledger", fleet_events())
    (folder / "book.toml").write_text(BOOK_TOML)
    (folder / "dearer.toml").write_text(BOOK_TOML.replace("3.60", "3.96"))
    done = books(folder, "close", "--period", "2026-06-01T00", "--who", "ann")
    assert done.exit_code == 0, done.output
    assert f"{CLOSE_ID}: 2026-06-01T00:00:00.000000Z to 2026-06-01T01:00:00.000000Z, live" in done.output
    assert "To use them for all open hours too, run `rose price FILE --adopt`" in done.stderr
    return folder


folder = a_copy_of("books_made", "folder")


def run(folder: Path, *arguments: str) -> Result:
    priced = arguments[0] == "explain" or arguments[1] in ("close", "budget")
    book = ["--price-book", str(folder / "book.toml")] if priced else []
    return rose(*arguments, *book, ledger=folder / "ledger")


def books(folder: Path, *arguments: str) -> Result:
    return run(folder, "books", *arguments)


def test_a_close_is_listed_shown_and_verified(folder: Path) -> None:
    assert CLOSE_ID in books(folder, "show").output
    (listed,) = data(books(folder, "show", "--json"))
    assert listed["postings"][0]["posted_by"] == "ann"
    shown = data(books(folder, "show", CLOSE_ID, "--json"))
    assert (shown["total_nano"], shown["verified"]) == (BILL_NANO, True)
    assert shown == listed
    assert "the books are sound" in books(folder, "verify").output
    path = folder / "ledger" / "closes" / CLOSE_ID / "charges.parquet"
    path.write_bytes(path.read_bytes() + b"x")
    wrong = books(folder, "verify", "--json")
    assert wrong.exit_code == 1
    assert str(path) in json.loads(wrong.stdout)["problems"][0]


def test_a_restatement_says_what_it_posted_or_that_it_did_not(folder: Path) -> None:
    assert "no charge differs; nothing was posted" in books(folder, "restate", CLOSE_ID, "--reason", "x").output
    assert data(books(folder, "restate", CLOSE_ID, "--reason", "x", "--json"))["correction"] is None
    dearer = ["--price-book", str(folder / "dearer.toml"), "--reason", "contract 18"]
    assert data(books(folder, "restate", CLOSE_ID, *dearer, "--json"))["total_nano"] == BILL_NANO + 360_000_000
    assert "contract 18" in books(folder, "show", CLOSE_ID).output


def test_budgets_on_the_command_line(folder: Path) -> None:
    assert "$1,000.00" in books(folder, "budget", "chat", "1000", "--month", "2026-06").output
    assert data(books(folder, "budget", "chat", "900", "--month", "2026-06", "--json"))["budget_nano"] == 900 * 10**9
    again = books(folder, "budget", "chat", "800", "--month", "2026-06").output
    assert "$800.00, in place of $900.00" in again
    assert "warning" not in again
    misspelt = books(folder, "budget", "chatt", "5", "--month", "2026-06").output
    assert "warning: no run of the ledger has the tag team 'chatt'; did you mean 'chat'?" in misspelt
    chat, _ = data(books(folder, "budget", "--month", "2026-06", "--json"))
    assert (chat["team"], chat["spent"]["value"], chat["closed"]["value"]) == ("chat", 2_768_750_000, 2_768_750_000)
    assert "Budgets of 2026-06" in books(folder, "budget", "--month", "2026-06").output
    assert "no budget is set" in books(folder, "budget").output


def test_explain_re_adds_and_shows_events(folder: Path) -> None:
    (made,) = data(run(folder, "explain", "--bucket", "rollout", "--events", "--json"))
    assert (made["amount"]["value"], made["faults"]) == (900_000_000, [])
    assert [row["tokens"] for row in made["events"]["tokens"]] == [200, 60, 40]
    text = run(folder, "explain", "--hour", "2026-06-01T00", "--device", "s0", "--events")
    assert text.exit_code == 0
    assert "re-adds" in text.output
    assert "slices: 3 events" in text.output
    (booked,) = data(run(folder, "explain", "--close", CLOSE_ID, "--bucket", "idle", "--json"))
    assert (booked["amount"]["value"], booked["events"]) == (600_000_000, None)


def test_explain_fails_loudly_where_a_chain_does_not_hold(folder: Path) -> None:
    (folder / "ledger" / "live" / "test" / "000000" / "foreign").write_text("")
    done = run(folder, "explain", "--bucket", "idle", "--allow-unverified")
    assert done.exit_code == 1
    assert "DOES NOT RE-ADD" in done.output
    assert "ITS HASH CHAIN IS BROKEN" in done.output


def test_what_is_wrong_is_named(folder: Path) -> None:
    write(folder / "ledger", [*begun(), slice_(0, serving=60)], "replayer", "replay")
    for arguments, says in (
        (("books", "show", "nope"), "unknown close 'nope'"),
        (("books", "close", "--period", "2126-01"), "is not over"),
        (("books", "close", "--period", "2026-06-01T00", "--provenance", "live"), "overlaps"),
        (("books", "close", "--period", "2026-06", "--provenance", "replay"), "--with-open-runs"),
        (("books", "restate", CLOSE_ID, "--reason", ""), "--reason is empty"),
        (("books", "budget", "x"), "give the dollars too"),
        (("books", "budget", "x", "lots", "--month", "2026-06"), "is not an amount"),
        (("explain", "--bucket", "idle"), "provenance"),
        (("explain", "--close", CLOSE_ID, "--bucket", "train"), "no charge has bucket 'train'"),
    ):
        refused(run(folder, *arguments), says)


def test_books_that_this_user_may_not_change_are_named_in_a_line(folder: Path) -> None:
    lock = folder / "ledger" / "locks" / ".closing.lock"
    lock.unlink(missing_ok=True)
    lock.mkdir()
    for arguments in (("budget", "chat", "100", "--month", "2026-06"), ("restate", CLOSE_ID, "--reason", "late")):
        refused(books(folder, *arguments), f"cannot lock {lock}: Is a directory")
