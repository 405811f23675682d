from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rose.pricing.commands import price_app
from rose.pricing.price_books import pricebook

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
app = typer.Typer()
app.add_typer(price_app, name="price")
runner = CliRunner()


def printed(*arguments: str, code: int = 0) -> str:
    """What `rose price` prints, its words without layout."""
    result = runner.invoke(app, ["price", *arguments])
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
    output = printed("show", wrong, code=2)
    assert "currency: Input should be 'USD' (got 'DKK')" in output
    assert "electricity.0.pue: must be 1 or more" in output
    assert "Did you mean `example`?" in printed("show", "exampel", code=2)


@pytest.mark.parametrize("name", pricebook.shipped())
def test_show_has_every_entry_with_its_days_and_source(name: str) -> None:
    output, book = printed("show", name), pricebook.load(name)
    assert f"Price book {name} {book.version} ({book.sha256[:12]}), USD" in output
    assert output.count("example:") + output.count("assumption") >= len(book.device)
    as_json = json.loads(printed("show", name, "--json"))
    assert as_json["sha256"] == book.sha256
    assert "text" not in as_json
    assert [price["usd_per_hour"] for price in as_json["device"]] == [str(price.usd_per_hour) for price in book.device]


def test_show_has_words_for_everything_a_book_can_hold(tmp_path: Path) -> None:
    book = file(
        tmp_path,
        ("idle_w = 267\nload_w = 680", "points = [[0.0, 267], [0.5, 520], [1.0, 680]]"),
        ('commitment = "1-year reserved"', 'commitment = "1-year [bold]reserved"\nenergy_included = true'),
        (
            "[electricity]",
            '[[vendor_resource]]\nsku = "a3-*"\nclass = "h100-sxm"\n'
            'source = "list"\nsource_date = 2026-05-01\n\n[electricity]',
        ),
    )
    output = printed("show", book)
    assert "267 W idle, 520" in output
    assert "[bold]" in output  # the user's own words, not markup
    assert "energy included" in output
    assert "per verdict" in output
    assert "interruptions" in output
    assert "is class h100-sxm" in output
