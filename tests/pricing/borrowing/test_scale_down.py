from __future__ import annotations

from pathlib import Path

import pytest

from rose.pricing.borrowing.scale_down import Span, read
from rose.pricing.money import PricingError

T0_NS = 1_780_272_000 * 10**9
HOUR_NS = 3600 * 10**9


def file_of(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "spans.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_spans_are_read_in_order_whatever_their_time_zone(tmp_path: Path) -> None:
    path = file_of(
        tmp_path, "device_id,from,to", "s1,2026-06-01T02:00:00+02:00,2026-06-01T01:00:00Z",
        " s0 ,2026-06-01T00:00:00.000001Z,2026-06-01T02:00:00Z",
    )  # fmt: skip
    assert read(path) == (Span("s0", T0_NS + 1000, T0_NS + 2 * HOUR_NS), Span("s1", T0_NS, T0_NS + HOUR_NS))


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["device,from,to"], r"line 1 must be `device_id,from,to`"),
        (["device_id,from,to", "s0,yesterday,2026-06-01T00:00:00Z"], "line 2: from must be a time"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00,2026-06-02T00:00:00Z"], "has no time zone"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z,2026-06-01T00:00:00Z"], "line 2: to .* must be after"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z"], "line 2 must have a value in each"),
        (["device_id,from,to", "s0,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z,x"], "line 2 must have a value in each"),
        (
            [
                "device_id,from,to",
                "s0,2026-06-01T00:00:00Z,2026-06-02T00:00:00Z",
                "s0,2026-06-01T23:00:00Z,2026-06-03T00:00:00Z",
            ],
            "two spans of device 's0' overlap",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_by_line(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(PricingError, match=said):
        read(file_of(tmp_path, *lines))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(PricingError, match=r"cannot read .*none\.csv"):
        read(tmp_path / "none.csv")
