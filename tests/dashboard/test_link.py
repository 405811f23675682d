from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import link
from dashboard.link import Link

_names = st.text(st.characters(exclude_categories=["C", "Z"], include_characters=" "), min_size=1, max_size=60)
_periods = st.sampled_from(["newest", "all", "7d", "2026-11", "2026-Q4", "2026-W45", "2026-11-03..2026-11-09"])
_choices: Any = {"view": link.VIEWS, "window": [*link.WINDOWS_S], "by": link.GROUPS}
_choices |= {"provenance": [None, *link.PROVENANCES], "work": [link.ROLLOUTS, link.EVERYTHING]}
_chosen = {name: st.sampled_from(choices) for name, choices in _choices.items()}
LINKS = st.builds(Link, period=_periods, **_chosen, **dict.fromkeys(("run", "team", "lease"), st.none() | _names))


@given(LINKS)
def test_what_is_written_is_read_again_and_defaults_are_left_out(written: Link) -> None:
    assert link.parse({name: [value] for name, value in link.query(written).items()}) == (written, [])
    assert link.query(Link()) == {}


@given(st.dictionaries(st.text(max_size=20), st.lists(st.text(max_size=80), max_size=3), max_size=4))
def test_anything_else_is_left_out_and_said(query: dict[str, list[str]]) -> None:
    read, ignored = link.parse(query)
    assert len(ignored) + len(link.query(read)) <= len(query)
    assert link.parse({name: [value] for name, value in link.query(read).items()}) == (read, [])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("period", text) for text in ("2026-13", "1..2", "9999", "")),
        *(("run", text) for text in ("", "a\nb")),
        ("view", "marginal"),
        ("provenance", "Live"),
        ("team", "x" * 201),
        ("lease", ""),
        ("window", "2h"),
        ("by", "model"),
        ("statement", "drop table"),
    ],
)
def test_a_value_that_is_none_is_named(name: str, value: str) -> None:
    read, ignored = link.parse({name: [value], "work": [link.EVERYTHING]})
    assert read == Link(work=link.EVERYTHING)
    assert ignored == [name]


def test_a_hostile_name_is_shown_as_text_and_short_and_a_second_value_is_none() -> None:
    _, (name,) = link.parse({"![x](http://evil.example/p.png)" + "a" * 500: ["x"]})
    assert "![" not in name
    assert "://" not in name
    assert len(name) < 200
    assert link.parse({"team": ["a", "b"]}) == (Link(), ["team"])
