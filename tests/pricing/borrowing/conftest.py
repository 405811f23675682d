from collections.abc import Iterator
from pathlib import Path

import pytest

from rose.ledger.ledger import Ledger
from rose.pricing.price_books.pricebook import PriceBook, load, parse
from rose.pricing.run.priced import PricedRun, priced
from tests.pricing.closing.conftest import write

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


@pytest.fixture(scope="session")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of `test_harm.run`, whose leases were withheld at random, for tests that only read it."""
    from tests.pricing.borrowing.test_harm import run

    return write(tmp_path_factory.mktemp("held-out") / "ledger", run(), provenance="replay")


@pytest.fixture(scope="session")
def held_out_run(held_out: Path) -> Iterator[PricedRun]:
    with priced(Ledger(held_out), "run", PRICED) as run:
        yield run


@pytest.fixture(scope="session")
def never_withheld(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without any window in which leases were withheld."""
    from tests.pricing.borrowing.test_harm import run

    return write(tmp_path_factory.mktemp("never-withheld") / "ledger", run(windows=[]), provenance="replay")


@pytest.fixture(scope="session")
def never_withheld_run(never_withheld: Path) -> Iterator[PricedRun]:
    with priced(Ledger(never_withheld), "run", PRICED) as run:
        yield run
