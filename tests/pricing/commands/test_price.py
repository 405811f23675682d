from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rose.pricing.commands.price import price_command
from rose.pricing.price_books import pricebook

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
app = typer.Typer()
app.command("price")(price_command)
app.callback()(lambda: None)
runner = CliRunner()


def printed(*arguments: str, code: int = 0) -> str:
    """What `rose price` prints, its words without layout."""
    result = runner.invoke(app, ["price", *arguments], env={"COLUMNS": "400"})
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return " ".join(result.output.split())


def file(folder: Path, *changes: tuple[str, str]) -> str:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / f"{len(changes)}.toml"
    path.write_text(text)
    return str(path)


def test_everything_that_is_wrong_is_named(tmp_path: Path) -> None:
    wrong = file(tmp_path, ('currency = "USD"', 'currency = "DKK"'), ("pue = 1.25", "pue = 0"))
    output = printed(wrong, code=2)
    assert "currency: Input should be 'USD' (got 'DKK')" in output
    assert "electricity.0.pue: Input should be greater than or equal to 1" in output
    assert "Did you mean `example`?" in printed("exampel", code=2)


@pytest.mark.parametrize("name", pricebook.shipped())
def test_show_has_every_entry_with_its_days_and_source(name: str) -> None:
    output, book = printed(name), pricebook.load(name)
    assert f"Price book {name} {book.version} ({book.sha256[:12]}), USD" in output
    assert output.count("example:") + output.count("assumption") >= len(book.device)
    as_json = json.loads(printed(name, "--json"))
    assert as_json["sha256"] == book.sha256
    assert "text" not in as_json
    assert [price["usd_per_hour"] for price in as_json["device"]] == [str(price.usd_per_hour) for price in book.device]


def test_every_field_of_an_entry_is_shown_as_it_is_written(tmp_path: Path) -> None:
    book = file(
        tmp_path,
        ("idle_w = 267\nload_w = 680", "points = [[0.0, 267], [0.5, 520], [1.0, 680]]"),
        ('commitment = "1-year reserved"', 'commitment = "1-year [bold]reserved"\nenergy_included = true'),
    )
    output = printed(book)
    assert "points [[0.0, 267], [0.5, 520], [1.0, 680]]" in output
    assert "commitment 1-year [bold]reserved" in output  # the user's own words, not markup
    assert "energy_included true" in output
    assert "usd_per_verdict" in output
    assert "interruptions_per_hour" in output


def test_a_book_is_adopted_by_name(sample: Path, tmp_path: Path) -> None:
    ours = file(tmp_path, ('name = "example"', 'name = "ours"'))
    ledger = ("--ledger", str(sample))
    assert "is adopted, by ann" in printed(ours, "--adopt", "--who", "ann", *ledger)
    assert "Price book ours" in printed(*ledger)
    assert "adoption is refused with price book 'example'" in printed("example", "--adopt", *ledger, code=2)
    assert "--adopt puts a book on record: name its file" in printed("--adopt", *ledger, code=2)
