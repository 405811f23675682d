from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.annotations import views
from rose.pricing.money import PricingError


def test_the_last_view_of_a_name_holds_until_it_is_removed(fleet: Path) -> None:
    views.save(fleet, "month", "period=2026-05", by="ann")
    last = views.save(fleet, "month", "period=2026-06&team=r%C3%A9search", by="ben")
    other = views.save(fleet, "all", "period=2026")
    assert views.load(fleet) == {"all": other, "month": last}
    assert (last.query, last.by) == ("period=2026-06&team=r%C3%A9search", "ben")
    assert views.remove(fleet, "month") == last
    assert views.load(fleet) == {"all": other}
    with pytest.raises(PricingError, match="no view is saved as 'month'; there is all"):
        views.remove(fleet, "month")
    assert views.save(fleet, "month", "period=2026-07").query == "period=2026-07"


@pytest.mark.parametrize("name", ["", "a/b", "-x", "x" * 65, "a b"])
def test_another_name_is_refused(fleet: Path, name: str) -> None:
    with pytest.raises(PricingError, match="is no name for a view"):
        views.save(fleet, name, "period=2026")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("", "is no query of a URL"),
        ("?period=2026", "is no name of a parameter"),
        ("http://host/?period=2026", "is no name of a parameter"),
        ("period", "is no query of a URL"),
        ("period=1&period=2", "period is given twice"),
        ("team=a%0Ab", "team has a control character"),
        ("team=%ff", "is no query of a URL"),
        ("team=" + "x" * 8000, "8005 characters, and 8000 are the most"),
        ("sql=a%00b", "sql has a control character"),
        ("<script>=1", "is no name of a parameter"),
    ],
)
def test_what_is_no_query_is_refused(query: str, says: str) -> None:
    with pytest.raises(PricingError, match=says):
        views.checked_query(query)


def test_a_query_of_several_lines_is_kept_as_it_was_written(fleet: Path) -> None:
    text = "SELECT\n\tkind -- what happened\nFROM event"
    saved = views.save(fleet, "kinds", urlencode({"query": "own", "sql": text}))
    assert dict(parse_qsl(views.load(fleet)["kinds"].query)) == {"query": "own", "sql": text}
    assert saved == views.load(fleet)["kinds"]


@given(st.dictionaries(st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True), st.text(max_size=20), min_size=1))
def test_a_query_says_the_same_after_it_was_checked(pairs: dict[str, str]) -> None:
    query = urlencode(pairs)
    if len(query) <= 8000 and all(value.isprintable() for value in pairs.values()):
        assert dict(parse_qsl(views.checked_query(query), keep_blank_values=True)) == pairs
    else:
        with pytest.raises(PricingError):
            views.checked_query(query)
