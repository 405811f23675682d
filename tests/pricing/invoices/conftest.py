from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rose.pricing.closing.period import Period
from rose.pricing.closing.restate import restate
from rose.pricing.price_books import pricebook
from tests.pricing.closing.conftest import BOOK_TOML, DAY_NS, T0_NS, S, begun, close, ended, slice_, write

FIRST = Period(T0_NS, T0_NS + 2 * DAY_NS)
SECOND = Period(FIRST.to_ns, FIRST.to_ns + 2 * DAY_NS)
FIRST_ID, SECOND_ID = "2026-06-01-to-2026-06-03-live-1", "2026-06-03-to-2026-06-05-live-1"
RATES = """
[[exchange_rate]]
currency = "EUR"
usd_per_unit = 1.0843
valid_from = 2026-06-01
valid_to = 2026-06-05
source = "reference rate of the central bank"
source_date = 2026-06-01
"""
HEAD = 'issuer = "Compute platform"\ncontact = "costs@example.org"\nfiscal_start = 2\n'
TEXT = BOOK_TOML.replace('currency = "USD"\n', 'currency = "USD"\n' + HEAD, 1) + RATES
OURS = pricebook.parse(TEXT, "ours.toml")
DEARER = pricebook.parse(TEXT.replace("3.60", "3.96").replace('version = "1"', 'version = "2"'), "dearer.toml")
#: A day of the device: $86.40, and $95.04 by the dearer book.
DAY_NANO, DEARER_DAY_NANO = 86_400_000_000, 95_040_000_000


@pytest.fixture(scope="session")
def unclosed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four days of one device, which works an hour of each."""
    made = begun()
    for at_s in range(0, 4 * 86_400, 86_400):
        made += [slice_(at_s, lease_id="L1", rollout=3600), slice_(at_s + 3600, idle=23 * 3600)]
    return write(tmp_path_factory.mktemp("unclosed") / "ledger", [*made, *ended(4 * 86_400)])


@pytest.fixture(scope="session")
def books(unclosed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days closed and, within the two that follow, made dearer; those closed dearer, and cheaper again later."""
    root = Path(shutil.copytree(unclosed, tmp_path_factory.mktemp("invoices") / "ledger"))
    close(root, FIRST, OURS, now_us=(FIRST.to_ns + S) // 1000)
    assert restate(root, FIRST_ID, "contract 18 <b>", DEARER, now_us=(FIRST.to_ns + DAY_NS) // 1000)
    close(root, SECOND, DEARER, now_us=(SECOND.to_ns + DAY_NS) // 1000)
    assert restate(root, SECOND_ID, "it was never signed", OURS, now_us=(SECOND.to_ns + 2 * DAY_NS) // 1000)
    return root
