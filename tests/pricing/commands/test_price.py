from pathlib import Path

import pytest

from rose.pricing.price_books import pricebook
from tests.pricing.conftest import data, refused, rose, succeeded


def file(folder: Path, *changes: tuple[str, str]) -> str:
    text = pricebook.load("example").text
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / f"{len(changes)}.toml"
    path.write_text(text)
    return str(path)


def test_everything_that_is_wrong_is_named(tmp_path: Path) -> None:
    wrong = file(tmp_path, ('currency = "USD"', 'currency = "DKK"'), ("pue = 1.25", "pue = 0"))
    pue = "electricity.0.pue: Input should be greater than or equal to 1"
    refused(rose("price", wrong), "currency: Input should be 'USD' (got 'DKK')", pue)
    refused(rose("price", "exampel"), "did you mean 'example'?")


@pytest.mark.parametrize("name", pricebook.shipped())
def test_show_has_every_entry_with_its_days_and_source(name: str) -> None:
    output, book = succeeded(rose("price", name, COLUMNS="400")), pricebook.load(name)
    assert f"Price book {name} {book.version} ({book.sha256[:12]}), USD" in output
    assert output.count("example:") + output.count("assumption") >= len(book.device)
    as_json = data(rose("price", name, "--json"))
    assert as_json["sha256"] == book.sha256
    assert "text" not in as_json
    assert [price["usd_per_hour"] for price in as_json["device"]] == [str(price.usd_per_hour) for price in book.device]


def test_every_field_of_an_entry_is_shown_as_it_is_written(tmp_path: Path) -> None:
    book = file(
        tmp_path, ('commitment = "1-year reserved"', 'commitment = "1-year [bold]reserved"\nenergy_included = true')
    )
    output = succeeded(rose("price", book, COLUMNS="400"))
    assert "idle_w 267, load_w 680" in output
    assert "commitment 1-year [bold]reserved" in output  # the user's own words, not markup
    assert "energy_included true" in output
    assert "usd_per_verdict" in output
    assert "interruptions_per_hour" in output


def test_a_book_is_adopted_by_name(sample: Path, tmp_path: Path) -> None:
    ours = file(tmp_path, ('name = "example"', 'name = "ours"'))
    assert "is adopted, by ann" in succeeded(rose("price", ours, "--adopt", "--who", "ann", ledger=sample))
    assert "Price book ours" in succeeded(rose("price", ledger=sample))
    refused(rose("price", "example", "--adopt", ledger=sample), "adoption is refused with price book 'example'")
    refused(rose("price", "--adopt", ledger=sample), "--adopt", "file")
