import pytest

from rose.pricing import console
from rose.pricing.money import NANO_USD_PER_USD
from rose.pricing.table import Column, Table
from tests.pricing.conftest import shown

CLOSE = "2026-11-22T14-live-1"
HEADINGS = ("close", "team", "closed", "of it corrections", "open", "shared", "credits", "total", "device-hours", "why")
TABLE = Table(
    title="Cost",
    columns=(
        Column("close"),
        Column("team"),
        *(Column(name, "money") for name in HEADINGS[2:8]),
        Column("device-hours", "hours"),
        Column("why"),
    ),
    rows=(
        (CLOSE, "research", *(12_345 * NANO_USD_PER_USD,) * 6, 10**15, "rates were dearer than expected on that day"),
    ),
)


@pytest.mark.parametrize("width", [145, 160])
def test_no_name_and_no_heading_breaks_inside_a_word_where_there_is_room(width: int) -> None:
    text = shown([TABLE], width)
    for word in (CLOSE, "research", "$12,345.00", "corrections", "device-hours", "expected"):
        assert word in text, text
    assert max(map(len, text.splitlines())) <= width


def test_where_there_is_no_room_amounts_stay_whole_and_the_longest_names_break() -> None:
    made = Table(
        title="",
        columns=(Column("run"), Column("team"), Column("cost", "money")),
        rows=(("r" * 300, "research", 12_345 * NANO_USD_PER_USD),),
    )
    text = shown([made], 100)
    assert "research" in text and "$12,345.00" in text  # noqa: PT018
    assert max(map(len, text.splitlines())) == 100


def test_where_there_is_no_room_no_figure_is_broken_and_columns_move_together() -> None:
    value, interval = "$1,234.57", "$1,134.57 to $1,334.57"
    names = [name for number in range(4) for name in (f"price {number}", f"95% of price {number}")]
    made = Table(
        title="",
        columns=(Column("priced at"), *(Column(name, "figure") for name in names)),
        rows=(("marginal price", *(value, interval) * 4),),
    )
    text = shown([made], 100)
    for number in (value, *interval.split()):
        assert text.count(number) == 4, text
    assert max(map(len, text.splitlines())) == 100


def test_a_table_is_as_wide_as_the_terminal_only_where_it_needs_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns, width in (("160", 160), ("60", 100)):
        monkeypatch.setenv("COLUMNS", columns)
        console.show([TABLE])
        assert capsys.readouterr().out == shown([TABLE], width)
    small = Table(title="", columns=(Column("team"),), rows=(("a",),))
    assert {len(line) for line in shown([small], 160).splitlines()} == {100}
