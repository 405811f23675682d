"""The text of the SQL files: every word that a column may hold is named, and no line is too long."""

import re
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

import sql
from rose import events


@pytest.mark.parametrize(
    ("view", "column", "event"),
    [
        ("lease_event", "action", events.Lease),
        ("daily_lease", "action", events.Lease),
        ("turn", "outcome", events.Turn),
    ],
)
def test_a_head_names_the_words_of_a_column(view, column, event):
    head = next(line for line in sql.view(view).splitlines() if line.startswith(f"-- {column}: "))
    assert tuple(re.findall(r"`(\w+)`", head)) == get_args(get_type_hints(event)[column])


def test_no_line_is_too_long():
    root = Path(sql.__file__).parent
    files = list(root.rglob("*.sql"))
    assert len(files) > 100
    too_long = [
        f"{path.relative_to(root)}:{number}"
        for path in sorted(files)
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > 120
    ]
    assert not too_long
