from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose.text import visible, visible_lines

ANYTHING = st.text(st.characters(), max_size=50)


def obeyed(text: str) -> set[str]:
    """The characters of `text` that a screen obeys, hides or draws as it likes."""
    return {char for char in text if unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07\x9b31m", r"\x1b]0;title\x07\x9b31m"),
        ("two\nlines\r\tand \x7f", r"two\nlines\r\tand \x7f"),
        ("\u202etxt.exe \u200f\u200e\u2066\u2069\u061c", r"\u202etxt.exe \u200f\u200e\u2066\u2069\u061c"),
        ("soft\u00adhyphen, \u200b\ufeff\u2060", r"soft\xadhyphen, \u200b\ufeff\u2060"),
        ("tags \U000e0000\U000e0041", r"tags \U000e0000\U000e0041"),
        ("no\u3164ink\u2800\u034f\ufe00", r"no\u3164ink\u2800\u034f\ufe00"),
        ("\ud800 \ue000 \u2028\u2029\x85", r"\ud800 \ue000 \u2028\u2029\x85"),
    ],
)
def test_what_a_screen_would_obey_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain [bold]text[/bold]",
        "ünïcode e\u0301",
        "文字\u3000かな 한글",
        "русский العربية עברית",
        "🚀 ❤\ufe0f 👩🏽",
        "1\u00a0000",
    ],
)
def test_other_text_stays_as_it_is(text: str) -> None:
    assert visible(text) == visible_lines(text) == text


def test_text_with_lines_of_our_own_keeps_them() -> None:
    assert visible_lines("two\n\tlines\r\x1b\u200f\u2028") == "two\n\tlines\\r\\x1b\\u200f\\u2028"


@given(ANYTHING)
def test_no_text_is_obeyed(text: str) -> None:
    assert not obeyed(visible(text))
    assert obeyed(visible_lines(text)) <= {"\n", "\t"}
    assert visible(visible(text)) == visible(text)


@given(ANYTHING)
def test_what_needs_no_escape_has_none(text: str) -> None:
    clean = "".join(char for char in text if not obeyed(char))
    assert visible(clean) == clean
