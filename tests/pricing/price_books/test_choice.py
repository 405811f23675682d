import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from rose import events
from rose.ledger.files import examine
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report
from rose.pricing.closing.close import close
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.entries import PriceBookError
from rose.pricing.spend.calendar import Calendar
from tests.pricing import any_event
from tests.pricing.conftest import data, refused, rose, succeeded

EXAMPLE = pricebook.load("example")
DAY_US = 86_400_000_000
BEGIN_US = 1_780_272_000_000_000
FIRST_DAY = Period(BEGIN_US * 1000, (BEGIN_US + DAY_US) * 1000)
WATERMARK = "EXAMPLE PRICES, not yours"


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(pricebook.VARIABLE)


@pytest.fixture
def book_file(tmp_path: Path) -> Callable[[str], Path]:
    def write(name: str) -> Path:
        path = tmp_path / f"{name}.toml"
        path.write_text(EXAMPLE.text.replace('name = "example"', f'name = "{name}"'))
        return path

    return write


def run_with(price_book: object, run_id: str = "run", begin_us: int = 0) -> events.Run:
    """As `rose up` records it: with the SHA-256 of the file."""
    config = {"price_book": None if price_book is None else str(price_book)}
    if isinstance(price_book, Path):
        config["price_book_sha256"] = hashlib.sha256(price_book.read_bytes()).hexdigest()
    return events.Run(action="started", name=run_id, config_json=json.dumps(config), at_us=begin_us or BEGIN_US)


def test_without_a_decision_nothing_is_priced_and_the_error_says_the_ways(sample: Path) -> None:
    with pytest.raises(
        pricebook.NoPriceBookError,
        match=r"(?s)no price book for run run.*-b FILE.*price FILE --adopt.*ROSE_PRICE_BOOK=F",
    ):
        run_report.build(Ledger(sample))
    refused(rose("report", ledger=sample), "no price book")
    asked = ("explain", "--hour", "2001-01-01T00", "--bucket", "idle")
    refused(rose(*asked, ledger=sample), "no run lies in 2001-01-01T00")


def test_each_rule_goes_before_the_next(
    write_ledger: Callable[..., Path],
    sample_made: list[events.Event],
    book_file: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = write_ledger([run_with(book_file("own")), *sample_made[1:]])

    def rule() -> tuple[str, str]:
        book = pricebook.choose(Ledger(root), run_id="run")
        return book.name, book.chosen

    assert rule() == ("own", pricebook.RUNS_OWN)
    monkeypatch.setenv(pricebook.VARIABLE, str(book_file("configured")))
    assert rule() == ("own", pricebook.RUNS_OWN)
    adopted = pricebook.adopt(Ledger(root), pricebook.load(book_file("adopted")), by="ann")
    assert rule() == ("adopted", f"adopted by {adopted.adopted_by}")
    book = pricebook.choose(Ledger(root), book_file("named"))
    assert (book.name, book.chosen) == ("named", pricebook.NAMED)


def test_a_configured_book_prices_what_no_run_and_no_ledger_decides(
    sample: Path, book_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(pricebook.VARIABLE, str(book_file("ours")))
    for book in (pricebook.choose(Ledger(sample)), pricebook.choose_for_new_run(None, None)):
        assert book is not None
        assert (book.name, book.chosen, book.example) == ("ours", pricebook.CONFIGURED, False)
    assert pricebook.choose_for_new_run(Ledger(sample), "example") == pricebook.choose(
        Ledger(sample), "example"
    ).model_copy(update={"chosen": pricebook.RUNS_OWN})


def device(action: Literal["joined", "left"], at_us: int) -> events.Device:
    return any_event.device(action=action, device_id="d", t_ns=1000 * at_us, at_us=at_us)


def test_a_bill_of_runs_that_name_different_books_asks_for_one(
    write_ledger: Callable[..., Path], book_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_us = BEGIN_US + 10 * DAY_US
    held = [device("joined", BEGIN_US), device("left", BEGIN_US + 1)]
    root = write_ledger([run_with(book_file("one")), *held], writer="a", run_id="a")
    held = [device("joined", begin_us), device("left", begin_us + 1)]
    write_ledger([run_with(book_file("two"), "b", begin_us), *held], writer="b", run_id="b")
    with pytest.raises(PricingError, match=r"different price books \(a: .*one\.toml; b: .*two\.toml\).*--adopt"):
        pricebook.choose(Ledger(root))
    assert pricebook.choose(Ledger(root), run_id="b").name == "two"
    assert pricebook.choose(Ledger(root), period=FIRST_DAY).name == "one"
    monkeypatch.setenv(pricebook.VARIABLE, str(book_file("configured")))
    assert pricebook.choose(Ledger(root)).name == "configured"
    monkeypatch.delenv(pricebook.VARIABLE)
    book_file("one").unlink()
    with pytest.raises(PriceBookError, match=r"(?s)of run a cannot be used.*one\.toml.*--adopt"):
        pricebook.choose(Ledger(root), run_id="a")


def test_a_run_reprices_no_other_run(
    write_ledger: Callable[..., Path], book_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The book of one run holds for the fleet only where every run that had a device names it."""
    held = [device("joined", BEGIN_US), device("left", BEGIN_US + DAY_US)]
    root = write_ledger([run_with(book_file("own")), *held])
    write_ledger([run_with(book_file("cheap"), "empty")], writer="empty", run_id="empty")
    assert pricebook.choose(Ledger(root)).name == "own", "a run without a device is charged nothing"
    write_ledger([run_with(None, "silent"), *held], writer="silent", run_id="silent")
    with pytest.raises(PricingError, match=r"run: .*own\.toml; silent: none"):
        pricebook.choose(Ledger(root))
    monkeypatch.setenv(pricebook.VARIABLE, str(book_file("configured")))
    assert pricebook.choose(Ledger(root)).name == "configured"


def test_only_the_file_that_a_run_began_with_is_opened(
    write_ledger: Callable[..., Path], book_file: Callable[[str], Path], tmp_path: Path
) -> None:
    digest = hashlib.sha256(book_file("edited").read_bytes()).hexdigest()
    book_file("edited").write_text("secret = 1")
    os.mkfifo(tmp_path / "fifo.toml")
    (tmp_path / "long.toml").write_bytes(b"#" * (2**20 + 1))
    asked = [
        ("edited.toml", digest, r"is not the file that the run began with \(SHA-256 [0-9a-f]{64}\).*`-b FILE`"),
        ("edited.toml", None, r"edited.toml is not opened: it has no SHA-256 in the ledger; name .*`-b FILE`"),
        ("fifo.toml", digest, "is not a regular file"),
        ("long.toml", digest, "is not a regular file of at most 1048576 bytes"),
        ("passwd", digest, "does not end in .toml"),
        (".toml", digest, "No such file"),
    ]
    root = None
    for number, (name, sha256, _) in enumerate(asked):
        config = json.dumps({"price_book": str(tmp_path / name), "price_book_sha256": sha256})
        begun = events.Run(action="started", name="r", config_json=config, at_us=BEGIN_US)
        root = write_ledger([begun], root=root, writer=f"w{number}", run_id=f"r{number}")
    assert root is not None
    for number, (_, _, says) in enumerate(asked):
        with pytest.raises(PriceBookError, match=says) as refused:
            pricebook.choose(Ledger(root), run_id=f"r{number}")
        assert "secret" not in str(refused.value)


def test_a_run_of_another_provenance_or_that_died_before_prices_nothing(
    write_ledger: Callable[..., Path], book_file: Callable[[str], Path]
) -> None:
    begin_us = BEGIN_US - 60 * DAY_US
    dead = [run_with(book_file("cheap"), "dead", begin_us), device("joined", begin_us), device("joined", begin_us + 1)]
    root = write_ledger(dead, writer="dead", run_id="dead", provenance="simulated")
    held = [device("joined", BEGIN_US), device("left", BEGIN_US + DAY_US)]
    write_ledger([run_with(book_file("own")), *held])
    assert pricebook.choose(Ledger(root), provenance="replay").name == "own"
    assert pricebook.choose(Ledger(root), period=FIRST_DAY).name == "own"
    with pytest.raises(PricingError, match="different price books"):
        pricebook.choose(Ledger(root))


def test_the_book_adopted_last_holds_and_its_file_may_be_gone(sample: Path, book_file: Callable[[str], Path]) -> None:
    first, second = book_file("first"), book_file("second")
    for file, name in ((first, "first"), (second, "second"), (first, "first")):
        book = pricebook.load(file)
        adopted = pricebook.adopt(Ledger(sample), book, by="ann")
        assert pricebook.adopt(Ledger(sample), book, by="ben") == adopted == pricebook.adopted(Ledger(sample))
        assert (pricebook.choose(Ledger(sample)).name, pricebook.choose(Ledger(sample)).text) == (name, book.text)
    assert adopted.adopted_by == "ann"
    assert len(examine.recorded(sample, "closing", pricebook.ADOPTED)) == 3
    first.unlink()
    assert pricebook.choose(Ledger(sample)).name == "first"
    assert Ledger(sample).verify().problems == []


@pytest.mark.parametrize("name", pricebook.shipped())
def test_made_up_prices_are_never_closed_nor_adopted(sample: Path, name: str) -> None:
    book = pricebook.load(name)
    with pytest.raises(PricingError, match=rf"closing .* is refused .*{name}.*{WATERMARK}.*rose price FILE"):
        close(Ledger(sample), Calendar().period("2026-06-01", 0), book)
    with pytest.raises(PricingError, match=f"adoption is refused .*{WATERMARK}"):
        pricebook.adopt(Ledger(sample), book, by="ann")
    assert pricebook.parse(EXAMPLE.text.replace('version = "', 'version = "copy of '), "copied.toml").example


def test_made_up_prices_mark_every_figure(sample: Path, tmp_path: Path) -> None:
    answer = data(rose("report", "--json", "-b", "example", ledger=sample))
    assert (answer["stamp"]["example_prices"], answer["price_book"]["chosen"]) == (True, pricebook.NAMED)
    file = tmp_path / "out.csv"
    succeeded(rose("export", "--period", "2026-06-01", "--out", file, "-b", "example", ledger=sample))
    assert all(WATERMARK in line for line in file.read_text().splitlines()[1:])
    assert WATERMARK in succeeded(rose("price", "example"))
