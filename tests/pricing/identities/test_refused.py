"""What must never become a figure: each kind of bad input, given as a user gives it, is refused and says what to do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.pricing.price_books.pricebook import load
from tests.pricing.conftest import data, refused, rose, succeeded

EXAMPLE = load("example").text
HOUR = ("--period", "2026-06-01T00")


def asked(folder: Path, book: str) -> Iterator[tuple[str | Path, ...]]:
    path = folder / "book.toml"
    path.write_text(book.replace('name = "example"', 'name = "ours"'))
    yield ("report", "--json", "--price-book", path)
    yield ("export", *HOUR, "--out", folder / "focus.parquet", "--price-book", path)
    yield ("books", "close", *HOUR, "--with-open-runs", "--price-book", path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('class = "h100-sxm"', 'class = "h100-pcie"', ("no price for device class 'h100-sxm'", "add a [[device]]")),
        ("valid_from = 2026-03-01", "valid_from = 2026-06-02", ("'h100-sxm'", "on 2026-06-01", "add a [[device]]")),
        ('route = "inter-region"', 'route = "pigeon"', ("'inter-region'", "add")),
        ("valid_to = 2026-03-01", "valid_to = 2026-03-02", ("h100-sxm", "2026-03-01", "valid_to")),
        ("usd_per_hour = 2.35", "usd_per_hour = -2.35", ("usd_per_hour", "must be 0 or more", "-2.35")),
        ('currency = "USD"', 'currency = "EUR"', ("currency", "USD", "EUR")),
        ('currency = "USD"', 'currency = "zorkmid"', ("currency", "USD", "zorkmid")),
    ],
    ids=["no class", "no date", "no route", "overlap", "negative", "euros", "no currency"],
)
def test_a_price_book_that_lacks_a_price_or_has_a_wrong_one(
    sample: Path, tmp_path: Path, old: str, new: str, says: tuple[str, ...]
) -> None:
    assert old in EXAMPLE
    for command in asked(tmp_path, EXAMPLE.replace(old, new)):
        refused(rose(*command, ledger=sample), *says)
    assert not (tmp_path / "focus.parquet").exists()
    assert "no period is closed yet" in rose("books", "show", ledger=sample).stdout


@pytest.mark.parametrize(
    ("period", "says"),
    [
        ("2026-06-02..2026-06-01", ("2026-06-01",)),
        ("2026-05-01", ("no ", "2026-05-01")),
        ("2026-06-01T00:30..2026-06-01T01", ("is not a period",)),
    ],
    ids=["backwards", "nothing there", "half an hour"],
)
def test_a_period_without_anything_in_it(sample: Path, tmp_path: Path, period: str, says: tuple[str, ...]) -> None:
    refused(rose("export", "--period", period, "--out", tmp_path / "focus.parquet", ledger=sample), *says)
    *_, (*close, path) = asked(tmp_path, EXAMPLE)
    close = [word for word in close if word not in HOUR]
    refused(rose(*close, path, "--period", period, ledger=sample), *says)
    assert not (tmp_path / "focus.parquet").exists()


def test_a_run_without_device_time(write_ledger: Any) -> None:
    root = write_ledger([events.Run(action="started", name="n", at_us=1)])
    refused(rose("report", "--json", ledger=root), "no provisioned device time")
    refused(rose("report", "--json", ledger=write_ledger([], root=root.with_name("empty"))), "no run")


@pytest.fixture
def changed(sample: Path) -> Path:
    """The sample's ledger with a byte changed that no reader of Parquet minds: the writing software's name."""
    segment = sorted((sample / "live").rglob("*.parquet"))[-1]
    content = bytearray(segment.read_bytes())
    content[content.rindex(b"parquet-cpp")] = ord("q")
    segment.write_bytes(content)
    return sample


def test_a_ledger_that_does_not_verify(changed: Path, tmp_path: Path) -> None:
    for command in asked(tmp_path, EXAMPLE):
        refused(rose(*command, ledger=changed), "does not verify", "--allow-unverified")
    assert not (tmp_path / "focus.parquet").exists()


def test_every_figure_of_a_ledger_that_does_not_verify_is_marked(changed: Path, tmp_path: Path) -> None:
    assert data(rose("report", "--json", "--allow-unverified", ledger=changed))["stamp"]["verified"] is False
    assert "UNVERIFIED LEDGER" in rose("report", "--allow-unverified", ledger=changed).stdout
    *_, close = asked(tmp_path, EXAMPLE)
    closed = succeeded(rose(*close, "--allow-unverified", "--json", ledger=changed))
    assert '"verified": false' in closed
    assert '"verified": true' not in closed
