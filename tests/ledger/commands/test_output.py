import json
import math
import sys
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pytest

from rose.ledger.commands import common, output


def test_json_is_json_whatever_the_numbers():
    rows = [{"a": math.nan, "b": [math.inf, 1.5, {"c": -math.inf}], "d": {math.nan: 1}, "e": Decimal("NaN")}]
    text, count = output.json_text(rows)

    def refuse(name):
        raise AssertionError(name)

    read = json.loads(text, parse_constant=refuse)
    assert read == [{"a": None, "b": [None, 1.5, {"c": None}], "d": {"nan": 1}, "e": "NaN"}]
    assert count == 3


def test_json_escapes_what_a_terminal_would_obey_and_means_the_same():
    hostile = "\x1b[2J\x9b1m\x7f\u202e\u200f\u2028\U000e0041\ud800 ü"
    text, _ = output.json_text({"a": hostile})
    assert not {*hostile} - {*"[2J1m ü"} & {*text}
    assert json.loads(text) == {"a": hostile}


FORMULAS = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\x00=1", "-"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        *((formula, f"'{formula}") for formula in FORMULAS),
        (-1, "-1"),
        (-1.5, "-1.5"),
        (Decimal("-2.50"), "-2.50"),
        (-math.inf, "-inf"),
        (True, "True"),
        (None, ""),
        ("plain - text", "plain - text"),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00.000000+00:00"),
        (timedelta(seconds=-1), "-1 day, 23:59:59"),
    ],
)
def test_what_a_spreadsheet_takes_for_a_formula_is_escaped_in_csv_and_nothing_else(cell, text):
    assert output.csv_cells([cell]) == [text]


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
    assert output.readable(column, value) == text


def test_a_long_cell_is_cut_on_a_terminal_alone(monkeypatch, capsys):
    text = "x" * 5000
    common.print_table(["config_json"], [(text,)])
    assert text in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    common.print_table(["config_json"], [(text,), ("short",)])
    shown = capsys.readouterr()
    assert 90 < shown.out.count("x") < 200
    assert "short" in shown.out
    assert "Long cells are cut" in shown.err
    assert "columns" not in shown.err
    common.print_table([f"column {number}" for number in range(40)], [[1] * 40])
    assert "40 columns are too many" in capsys.readouterr().err
