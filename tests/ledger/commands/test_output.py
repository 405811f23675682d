import json
import math
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from rose.ledger.commands import output


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


@pytest.mark.parametrize("cell", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1", "\x00=1", "-"])
def test_text_that_is_a_formula_to_a_spreadsheet_is_escaped(cell):
    assert output.csv_cells([cell]) == [f"'{cell}"]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
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
def test_numbers_and_other_text_stay_what_they_are_in_csv(cell, text):
    assert output.csv_cells([cell]) == [text]
