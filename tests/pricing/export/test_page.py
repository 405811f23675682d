import re
from html.parser import HTMLParser

from rose.pricing.export import out
from rose.pricing.table import Column, Table

#: A run's name that a page would take for markup, and a mark that turns the text after it around.
NAME = '<script>alert("run")</script> \u202egnp.exe\u0007'


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.words: list[str] = []
        self.tags: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())


def written() -> str:
    table = Table(
        title=NAME,
        columns=(Column(NAME), Column("cost", "money")),
        rows=((NAME, 1_500_000_000),),
        notes=(NAME,),
        marks={0: "alarm"},
        footer=(("total", 1_500_000_000),),
    )
    return out.page(NAME, [NAME, table], [NAME])


def test_text_is_no_markup_and_nothing_in_it_is_obeyed() -> None:
    text = written()
    page = Page(text)
    assert "script" not in page.tags
    assert not {"\u202e", "\u0007"} & set(text)
    assert page.words.count('<script>alert("run")</script> \\u202egnp.exe\\x07') == 8
    assert page.words.count("$1.50") == 2
    assert '<tr class="alarm">' in text


def test_a_page_needs_nothing_but_itself_and_is_the_same_bytes_again() -> None:
    text = written()
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script|<link", text)
    assert "@media print" in text
    assert written() == text
