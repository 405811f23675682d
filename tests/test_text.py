import itertools
import os
import tempfile
import time
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rose import clock
from rose.clock import Anchor, both_ns
from rose.errors import did_you_mean
from rose.private_files import TemporaryFolder
from rose.terminal import visible, visible_lines

ANYTHING = st.text(st.characters(), max_size=50)


def obeyed(text: str) -> set[str]:
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


def test_a_message_names_what_is_near_or_else_what_there_is() -> None:
    teams = {"chat", "research"}
    assert did_you_mean("reserch", teams) == "; did you mean 'research'?"
    assert did_you_mean("x", teams) == "; there is chat, research"
    assert did_you_mean("x", ()) == ""
    assert did_you_mean("x", [f"team-{n}" for n in range(10, 30)]).endswith("team-20, team-21 ...")


def test_an_anchor_turns_a_monotonic_reading_into_utc() -> None:
    anchor = Anchor.take()
    before = time.time_ns()
    assert abs(anchor.utc_ns(clock.monotonic_ns()) - before) < 5 * 10**9
    assert anchor.utc_us(10**9) == anchor.utc_ns(10**9) // 1000


@pytest.mark.parametrize("first", range(3))
def test_two_clocks_are_read_at_once_whatever_comes_between(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    ahead_ns = time.time_ns() - time.monotonic_ns()
    names = ("monotonic_ns", "time_ns", "monotonic_ns")
    read, number = getattr(time, names[first]), itertools.count()

    def switched() -> int:
        if next(number) == first // 2:
            time.sleep(0.05)
        return read()  # type: ignore[no-any-return]

    monkeypatch.setattr(time, names[first], switched)
    monotonic, utc = both_ns()
    assert next(number) > first // 2
    assert abs(utc - monotonic - ahead_ns) < 20_000_000


@given(st.integers(0, 4 * 10**18))
def test_a_time_is_shown_to_the_microsecond_without_rounding_up(ns: int) -> None:
    shown = clock.utc(ns)
    assert shown == clock.iso(ns // 1000)
    at = datetime.fromisoformat(shown)
    assert at.tzinfo is not None
    assert (at - datetime(1970, 1, 1, tzinfo=UTC)) // (at - at).resolution == ns // 1000


def test_only_folders_that_no_process_has_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = TemporaryFolder("p-")
    for name in ("p-left", "p-young", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "p-file").touch()
    (tmp_path / "p-link").symlink_to(tmp_path / "other")
    for path in tmp_path.iterdir():
        if path.name != "p-young":
            os.utime(path, (0, 0), follow_symlinks=False)
    others = {"p-young", "p-file", "p-link", "other"}
    with TemporaryFolder("p-") as path:
        assert {path.name for path in tmp_path.iterdir()} == {*others, folder.path.name, path.name}
    folder.close()
    assert {path.name for path in tmp_path.iterdir()} == others
    assert (tmp_path / "other" / "file").exists()
