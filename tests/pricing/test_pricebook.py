from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from importlib import resources
from pathlib import Path

import pytest

from rose.pricing import pricebook
from rose.pricing.pricebook import PriceBookError

EXAMPLE = resources.files("rose.pricing.books").joinpath("example.toml").read_text("utf-8")


def ns(year: int, month: int, day: int) -> int:
    return int(datetime(year, month, day, tzinfo=UTC).timestamp()) * 10**9


def test_the_example_has_the_classes_a_demonstration_needs_and_exact_rates() -> None:
    book = pricebook.load("example")
    assert {"cpu-core", "h100-sxm", "h200"} <= {price.device_class for price in book.device}
    ((_, _, price),) = book.device_prices("h100-sxm", ns(2026, 5, 1), ns(2026, 5, 2))
    assert price.usd_per_hour == Decimal("2.35")
    assert book.transfer_of("inter-region").usd_per_gb == Decimal("0.02")
    assert "no market price" in book.device_prices("cpu-core", ns(2026, 5, 1), ns(2026, 5, 2))[0][2].source


def test_the_time_around_a_price_change_is_covered_by_both_prices() -> None:
    change = ns(2026, 3, 1)
    covered = pricebook.load("example").device_prices("h100-sxm", change - 5, change + 7)
    assert [(from_ns - change, to_ns - change) for from_ns, to_ns, _ in covered] == [(-5, 0), (0, 7)]
    assert [price.usd_per_hour for _, _, price in covered] == [Decimal("1.70"), Decimal("2.35")]
    assert change in pricebook.load("example").change_times_ns()


def test_a_missing_price_is_refused_with_the_class_and_the_day() -> None:
    book = pricebook.load("example")
    with pytest.raises(PriceBookError, match=r"'b200' \(it has cpu-core, h100-sxm, h200\)"):
        book.device_prices("b200", ns(2026, 5, 1), ns(2026, 5, 2))
    with pytest.raises(PriceBookError, match="'h100-sxm' on 2025-09-30"):
        book.device_prices("h100-sxm", ns(2025, 9, 30), ns(2025, 10, 2))
    with pytest.raises(PriceBookError, match=r"\[\[power\]\] for device class 'b200'"):
        book.power_of("b200")
    with pytest.raises(PriceBookError, match="route 'pigeon'"):
        book.transfer_of("pigeon")


def test_a_hole_between_two_prices_is_refused() -> None:
    book = pricebook.parse(EXAMPLE.replace("valid_to = 2026-03-01", "valid_to = 2026-02-01"), "book.toml")
    with pytest.raises(PriceBookError, match="on 2026-02-01"):
        book.device_prices("h100-sxm", ns(2026, 1, 1), ns(2026, 4, 1))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("usd_per_hour = 1.70", "usd_per_hour = -1.70", r"line 10: device\.0\.usd_per_hour: .*got -1\.70"),
        ("usd_per_hour = 1.70", "usd_per_hour = nan", r"line 10: device\.0\.usd_per_hour: .*got NaN"),
        ("usd_per_hour = 2.35", 'usd_per_hour = "2.35"', r"device\.1\.usd_per_hour: must be a number.*got '2\.35'"),
        ("usd_per_hour = 2.35", "usd_per_hour = true", r"device\.1\.usd_per_hour: must be a number.*got True"),
        ("usd_per_hour = 2.35", "usd_per_minute = 2.35", r"device\.1\.usd_per_minute: Extra inputs"),
        ('currency = "USD"', 'currency = "EUR"', r"line 5: currency: .*'USD'.*got 'EUR'"),
        ("valid_to = 2026-03-01", "valid_to = 2026-03-02", "'h100-sxm' has two prices on 2026-03-01"),
        ("valid_to = 2026-03-01", "valid_to = 2025-10-01", "valid_to 2025-10-01 must be after valid_from 2025-10-01"),
        ("valid_to = 2026-03-01", 'valid_to = "soon"', r"device\.0\.valid_to: must be a date.*got 'soon'"),
        ("valid_to = 2026-03-01", "valid_to = 2026-03-01T10:00:00Z", r"device\.0\.valid_to: must be a date"),
        ("pue = 1.25", "pue = 0.9", r"electricity\.pue: .*got 0\.9"),
        ("load_w = 680", "load_w = 200", "load_w 200 must be at least idle_w 267"),
        ('route = "internet"', 'route = "loopback"', "transfer route 'loopback' appears 2 times"),
        ("idle_anyway = true", "", r"line \d+: lending\.idle_anyway: Field required"),
        ("idle_anyway = true", 'idle_anyway = "yes"', r"lending\.idle_anyway: .*got 'yes'"),
        ('version = "2026-06-01"', 'version = ""', r"version: .*got ''"),
        ('name = "example"', 'name = "example"\nsha256 = "0"', "sha256: is worked out"),
        ("[electricity]", "[electricity", "not valid TOML"),
    ],
)
def test_a_wrong_book_is_refused_with_file_field_and_value(old: str, new: str, says: str) -> None:
    assert old in EXAMPLE
    with pytest.raises(PriceBookError, match=says) as caught:
        pricebook.parse(EXAMPLE.replace(old, new, 1), "my/book.toml")
    assert "my/book.toml" in str(caught.value)


def test_a_book_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "book.toml"
    path.write_text(EXAMPLE.replace('name = "example"', 'name = "ours"'))
    book = pricebook.load(path)
    assert (book.name, len(book.sha256)) == ("ours", 64)
    assert book.sha256 != pricebook.load("example").sha256
    with pytest.raises(PriceBookError, match=r"cannot read price book .*nowhere\.toml"):
        pricebook.load(tmp_path / "nowhere.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(PriceBookError, match="not UTF-8"):
        pricebook.load(path)
