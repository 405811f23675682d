from __future__ import annotations

from datetime import date
from importlib import resources

from rose.pricing.price_books import coverage, pricebook

EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")
CITED = 'source = "by hand"\nsource_date = 2026-05-01\n'


def price(table: str, fields: str, dates: str) -> str:
    return f"\n[[{table}]]\n{fields}\n{dates}\n{CITED}"


def test_the_shipped_books_have_nothing_to_warn_of() -> None:
    for name in pricebook.shipped():
        assert coverage.warnings(pricebook.load(name)) == []


def test_days_that_touch_are_one_and_a_hole_is_a_gap() -> None:
    book = pricebook.parse(EXAMPLE, "book.toml")
    h100 = next(cover for cover in coverage.coverage(book) if cover.what == "device h100-sxm")
    assert h100.days == ((date(2025, 10, 1), date.max),)
    assert h100.gaps == ()
    holed = EXAMPLE.replace("valid_to = 2026-03-01", "valid_to = 2026-02-01")
    holed += price("transfer", 'route = "ship"\nusd_per_gb = 1', "valid_to = 2026-01-01")
    holed += price("transfer", 'route = "ship"\nusd_per_gb = 1', "valid_from = 2026-01-03")
    # Offers come and go: no run is refused for want of one.
    for dates in ("valid_from = 2026-01-01\nvalid_to = 2026-02-01", "valid_from = 2026-03-01"):
        holed += price("offer", 'class = "h200"\ncommitment = "new"\nusd_per_hour = 1', dates)
    assert coverage.warnings(pricebook.parse(holed, "book.toml")) == [
        "device h100-sxm has no price 2026-02-01 until 2026-03-01; a run that needs it on those days is refused",
        "transfer ship has no price 2026-01-01 until 2026-01-03; a run that needs it on those days is refused",
    ]


def test_a_pool_falls_back_on_the_price_of_its_class() -> None:
    def pooled(device_class: str) -> str:
        fields = f'class = "{device_class}"\npool = "rollout"\nusd_per_hour = 1\ncommitment = "c"'
        dates = ("valid_from = 2026-06-01\nvalid_to = 2026-06-03", "valid_from = 2026-06-09")
        return "".join(price("device", fields, days) for days in dates)

    book = pricebook.parse(EXAMPLE + pooled("h100-sxm"), "book.toml")
    assert coverage.warnings(book) == []
    warnings = coverage.warnings(pricebook.parse(EXAMPLE + pooled("b200"), "book.toml"))
    assert [line.split(";")[0] for line in warnings] == [
        "device b200 rollout has no price 2026-06-03 until 2026-06-09",
        "device b200 has no [[power]]",
    ]


def test_what_every_device_needs_is_wanted_from_the_first_day_with_a_device() -> None:
    book = pricebook.parse(
        EXAMPLE.replace("[electricity]\n", "[[electricity]]\nvalid_from = 2026-01-01\nvalid_to = 2026-07-01\n"),
        "book.toml",
    )
    assert [line.split(";")[0] for line in coverage.warnings(book)] == [
        "electricity has no price 2020-01-01 until 2026-01-01",
        "electricity has no price from 2026-07-01 on",
    ]


def test_a_class_whose_price_covers_energy_needs_no_power() -> None:
    text = EXAMPLE.replace('class = "h200"\nidle_w', 'class = "other"\nidle_w')
    (warning,) = coverage.warnings(pricebook.parse(text, "book.toml"))
    assert warning.startswith("device h200 has no [[power]]")
    included = text.replace("usd_per_hour = 2.50\n", "usd_per_hour = 2.50\nenergy_included = true\n", 1)
    assert coverage.warnings(pricebook.parse(included, "book.toml")) == []


def test_days_in_words() -> None:
    assert coverage.words((date.min, date.max)) == "always"
    assert coverage.words((date.min, date(2026, 1, 1))) == "until 2026-01-01"
