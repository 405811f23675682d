"""Numbers as people read them, by the unit that a column's name ends in."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from rose.ledger.commands import readable


@pytest.mark.parametrize(
    ("column", "value", "text"),
    [
        ("duration_ns", 1_240_000_000, "1.24 s"),
        ("ns", 0, "0 ns"),
        ("idle_ns", 999, "999 ns"),
        ("idle_ns", 999_600, "1.00 ms"),
        ("idle_ns", -1_500_000, "-1.50 ms"),
        ("total_ns", 90 * 10**9, "90 s"),
        ("total_ns", 600 * 10**9, "10 min"),
        ("total_ns", 3 * 86_400 * 10**9, "3 d"),
        ("mean_ns", Decimal("12345.5"), "12.3 µs"),
        ("bin_us", 1500, "1.50 ms"),
        ("wire_bytes", 3_100_000_000, "3.10 GB"),
        ("bytes", 999_600, "1.00 MB"),
        ("kv_bytes", 2**55, "36.0 PB"),
        ("power_mw", 310_000, "310 W"),
        ("energy_mj", 1_500_000, "1.50 kJ"),
        ("cost_nano_usd", 1_234_567_890_123, "1,234.567890123 USD"),
        ("cost_micro_usd", Decimal("2500000"), "2.500000 USD"),
        ("t0_ns", 1_795_375_801_123_456_789, "2026-11-22 19:30:01.123456789 UTC"),
        ("at_us", 1_795_375_801_123_456, "2026-11-22 19:30:01.123456 UTC"),
        ("newest_at_us", 0, "1970-01-01 00:00:00.000000 UTC"),
        ("day", datetime(2026, 11, 22, 19, 30, 1, 123456), "2026-11-22 19:30:01.123456 UTC"),
        ("day", datetime(2026, 11, 22, 20, tzinfo=timezone(timedelta(hours=1))), "2026-11-22 19:00:00.000000 UTC"),
        ("day", datetime(2026, 11, 22, tzinfo=UTC), "2026-11-22 00:00:00.000000 UTC"),
        # What needs no words, and what is no number.
        ("t0_ns", 2**70, None),
        ("seq", 5, None),
        ("count(duration_ns)", 5, None),
        ("duration_ns", None, None),
        ("duration_ns", "5", None),
        ("lent_ns", True, None),
        ("mean_ns", float("nan"), None),
        ("mean_ns", Decimal("NaN"), None),
        ("mean_bytes", float("inf"), None),
    ],
)
def test_a_cell_has_the_unit_of_its_column(column, value, text):
    assert readable.cell(column, value) == text
