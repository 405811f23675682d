from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from rose.pricing.alerts.message import Message
from tests.pricing.alerts.conftest import MESSAGE


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_text_of_a_ledger_is_text_in_html(message: Message) -> None:
    page = Tags()
    page.feed(message.html)
    assert not page.seen & {"b", "img", "script", "a"}
    assert "Team <img src=x onerror=alert(1)> & co." in page.texts
    assert "=HYPERLINK(1)" in "".join(page.texts)


def test_the_subject_is_one_line_of_text(message: Message) -> None:
    assert message.subject == "ROSE: <b>research</b> has spent 80%"
    split = replace(message, title="a\r\nBcc: x@example.com\u2028\x85\x0b\x00\x1b[31m")
    assert split.subject == "ROSE: a Bcc: x@example.com \\x00\\x1b[31m"
    assert len(replace(message, title="x" * 999).subject) == 150


def test_what_is_not_live_says_so_and_what_is_over_too(message: Message) -> None:
    simulated = replace(message, provenance="simulated", kind="resolved")
    assert simulated.subject.startswith("ROSE: [SIMULATED] resolved: ")
    assert "simulated, message 5f0c" in simulated.text
    assert json.loads(simulated.body())["provenance"] == "simulated"


def test_plain_text_obeys_nothing(message: Message) -> None:
    text = replace(message, sentences=("\x1b[31mred",)).text
    assert "\x1b" not in text
    assert "\\x1b[31mred" in text
    assert "By team" in text


TEXTS = st.text(max_size=30)


@given(TEXTS, st.lists(TEXTS), st.integers(0, 9))
def test_a_message_is_the_same_after_it_was_kept(title: str, sentences: list[str], level: int) -> None:
    made = replace(MESSAGE, title=title, sentences=tuple(sentences), level=level)
    again = Message.from_record({**json.loads(json.dumps(made.record()))})
    assert again == made
    assert again.body() == made.body()
    assert len(made.subject.splitlines()) == 1
