from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import link
from dashboard.link import Link

_names = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=60)
_periods = st.sampled_from(
    ["newest", "all", "7d", "this-month", "2026-11", "2026-Q4", "2026-W45", "2026-11-03", "2026-11-03..2026-11-09"]
)
LINKS = st.builds(
    Link,
    period=_periods,
    compare=st.sampled_from(link.COMPARED),
    view=st.sampled_from(link.VIEWS),
    provenance=st.none() | st.sampled_from(link.PROVENANCES),
    run=st.none() | _names,
    team=st.none() | _names,
    tag=st.none() | st.builds("{}:{}".format, _names.filter(lambda name: ":" not in name), _names),
    target=st.decimals("0.0001", "100", places=4),
    figure=st.none() | st.sampled_from(["cost", "slo"]),
    lease=st.none() | _names,
    preemption=st.none() | _names,
    action=st.none() | st.sampled_from(link.ACTIONS),
    window=st.none() | st.sampled_from(["2026-11-03T05:00..2026-11-03T06:30", "2026-11-03T05:00:07..2026-11-03T05:01"]),
    by=st.sampled_from(link.GROUPS),
    row=st.none() | _names,
    axis=st.sampled_from(link.AXES),
    query=st.none() | st.sampled_from([link.OWN, "open_leases"]),
    variables=st.none() | st.just("since=7d&run_id=a%26b"),
    sql=st.none() | st.just("SELECT 1\n\t-- x"),
    chart=st.none() | st.sampled_from(link.CHARTS),
    x=st.none() | st.sampled_from(["day", "a.b [c]"]),
    y=st.none() | st.just("cost"),
)


@given(LINKS)
def test_what_is_written_is_read_again(written: Link) -> None:
    assert link.parse({name: [value] for name, value in link.query(written).items()}) == (written, [])


def test_defaults_are_left_out() -> None:
    assert link.query(Link()) == {}
    assert link.query(Link(team="a", target=Decimal("99.50"))) == {"team": "a", "target": "99.5"}
    assert link.parse({}) == (Link(), [])


@given(st.dictionaries(st.text(max_size=20), st.lists(st.text(max_size=80), max_size=3), max_size=4))
def test_anything_else_is_left_out_and_said(query: dict[str, list[str]]) -> None:
    read, ignored = link.parse(query)
    assert len(ignored) + len(link.query(read)) <= len(query)
    assert link.parse({name: [value] for name, value in link.query(read).items()}) == (read, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("period", text) for text in ("2026-13", "2026-11-03T05", "9999", "1..2", "")),
        *(("target", text) for text in ("0", "100.1", "nan", "-1")),
        *(("window", f"2026-0{month}T00:00..2026-03-01T00:00") for month in ("2-30", "3-02")),
        *(("run", text) for text in ("", "a\nb")),
        *(("tag", text) for text in ("project", ":x")),
        ("compare", "never"),
        ("view", "marginal"),
        ("provenance", "Live"),
        ("team", "x" * 201),
        ("figure", "../x"),
        ("figure", "zzz"),
        ("lease", ""),
        ("action", "take"),
        ("statement", "drop table"),
        ("query", "../x"),
        ("variables", "since"),
        ("variables", "Since=1"),
        ("sql", "x" * 2001),
        ("sql", "a\x00"),
        ("chart", "pie"),
        ("x", ""),
    ],
)
def test_a_value_that_is_none_is_named(name: str, value: str) -> None:
    read, ignored = link.parse({name: [value], "view": [link.FULLY_LOADED]} if name != "view" else {name: [value]})
    assert getattr(read, name, None) == getattr(Link(), name, None)
    assert len(ignored) == 1
    assert "left out" in ignored[0]


def test_a_hostile_value_is_shown_as_text_and_short() -> None:
    _, (said,) = link.parse({"view": ["![x](http://evil.example/p.png)" + "a" * 500]})
    assert "![" not in said
    assert "://" not in said
    assert len(said) < 200


def test_a_value_that_is_given_twice_is_none() -> None:
    read, ignored = link.parse({"team": ["a", "b"]})
    assert read.team is None
    assert "“a” and “b”" in ignored[0]
