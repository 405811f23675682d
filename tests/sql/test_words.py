"""Heads of views against the events: every word that a column may hold is named."""

import re
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
