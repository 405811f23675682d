from rose.pricing.marginal_cost.terms import Stretches
from rose.pricing.price_books.pricebook import PriceBook, load, parse
from tests.pricing.closing.conftest import DAY_NS, T0_NS

EXAMPLE = load("example").text


def book_with(*changes: tuple[str, str]) -> PriceBook:
    text = EXAMPLE
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return parse(text, "book.toml")


#: The example with a penalty, a curve and the prices that a book may leave out.
PRICED = book_with(
    (
        "violation_usd = 0\n",
        "violation_usd = 0.001\nlatency_usd = [[0.5, 0], [1.0, 0.0005]]\ninterference_usd_per_device_hour = 2\n"
        "held_memory_usd_per_gib_hour = 0.01\npublish_usd_per_sync = 0.25\n",
    ),
    ("scheduler_usd_per_lease_s = 0\n", "scheduler_usd_per_lease_s = 0.001\n"),
)


def penalty(usd: str) -> Stretches:
    book = book_with(("violation_usd = 0\n", f"violation_usd = {usd}\n"))
    return Stretches(book, ((T0_NS, T0_NS + 30 * DAY_NS),))
