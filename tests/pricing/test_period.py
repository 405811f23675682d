from datetime import date

import pytest

from rose.pricing import period
from rose.pricing.money import PricingError
from rose.pricing.period import Period


@pytest.mark.parametrize(
    ("from_text", "to_text", "label"),
    [
        ("2026-11-01", "2026-12-01", "2026-11"),
        ("2026-12-01", "2027-01-01", "2026-12"),
        ("2026-11-03", "2026-11-04", "2026-11-03"),
        ("2026-11-03T05", "2026-11-03T06", "2026-11-03T05"),
        ("2026-11-03T05:00Z", "2026-11-10T07:00+02:00", "2026-11-03T05-to-2026-11-10T05"),
    ],
)
def test_a_period_is_named(from_text: str, to_text: str, label: str) -> None:
    assert Period(period.instant(from_text, "--from"), period.instant(to_text, "--to")).label == label


def test_what_is_no_period_is_refused() -> None:
    for text in ("2026-13", "November"):
        with pytest.raises(PricingError, match=f"{text!r} is not a month"):
            period.of_month(text)
    with pytest.raises(PricingError, match="--hour 'soon' is not a UTC time"):
        period.hour("soon", "--hour")
    for text in ("2026-11-01T05:30", "2026-11-01"):
        with pytest.raises(PricingError, match=f"--hour '{text}' is not an hour"):
            period.hour(text, "--hour")
    with pytest.raises(PricingError, match="must end after it begins"):
        Period(0, 0)


def test_instants_keep_microseconds() -> None:
    at_ns = period.instant("2026-12-05T10:00:00.123456Z", "--as-of")
    assert at_ns % 10**9 == 123_456_000
    assert period.nanoseconds(period.naive(at_ns)) == at_ns
    assert period.day_of(at_ns) == date(2026, 12, 5)
    assert period.month_at(at_ns).label == "2026-12"
