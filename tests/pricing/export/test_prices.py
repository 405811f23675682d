from datetime import date
from fractions import Fraction

from rose.pricing.closing.bill import Bill
from rose.pricing.export import prices


def test_every_price_that_was_charged_is_there_once_for_each_stretch(period_bill: Bill) -> None:
    used = {(price.item, price.stretch): price for price in prices.used(period_bill.parts[0])}
    before, after = sorted({stretch for _, stretch in used})
    assert {item: price.usd for (item, stretch), price in used.items() if stretch == before} == {
        "device/owned/serving": Fraction("1.700000001"),
        "device/owned/rollout": Fraction("1.700000001"),
        "device/rented/serving": Fraction("3.3"),
        "energy": Fraction("0.1") * Fraction("1.25"),
        "transfer/inter-region": Fraction("0.02"),
        "transfer/loopback": Fraction(0),
    }
    assert used["device/owned/rollout", after].usd == Fraction("0.777777777777")
    assert used["energy", after].usd == Fraction("0.123456789") * Fraction("1.1")


def test_one_entry_of_the_book_has_one_name(period_bill: Bill) -> None:
    used = {(price.item, price.stretch): price for price in prices.used(period_bill.parts[0])}
    before, after = sorted({stretch for _, stretch in used})
    assert used["device/owned/serving", before].name == used["device/owned/rollout", before].name
    assert used["device/owned/rollout", after].name == "awkward/1/device/owned/rollout/old/2026-03-01"
    rented = used["device/rented/serving", before]
    assert rented.name == used["device/rented/serving", after].name
    assert rented.entry.days == (date(2020, 1, 1), None)
    assert (rented.entry.source, rented.entry.source_date) == ("by hand", date(2026, 1, 1))


def test_a_unit_says_what_it_counts(period_bill: Bill) -> None:
    assert dict(prices.keyed(period_bill.parts[0]).select("kind", "unit").unique().iter_rows()) == {
        "capacity": "GPU-Hours",
        "transfer": "GB",
        "energy": "kWh",
    }
