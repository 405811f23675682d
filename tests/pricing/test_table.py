from fractions import Fraction

import pytest

from rose.pricing.figures import AMORTIZED
from rose.pricing.stats.bootstrap import Interval
from rose.pricing.table import Column, Paragraph, Table, columns
from tests.pricing.conftest import printed, shown
from tests.pricing.test_figures import MAKE, STAMP

HOUR_NS = 3600 * 10**9
BY_TEAM = Table(
    title="Who pays",
    view="amortized",
    notes=("Sums to the bill.",),
    grouped=True,
    marks={2: "alarm"},
    columns=(Column("team"), Column("run"), Column("cost", "money"), Column("time", "hours")),
    rows=(
        ("chat", "a", 1_500_000_000, HOUR_NS),
        ("chat", "b", 2_500_000_000, HOUR_NS),
        ("research", "[c]", None, None),
    ),
    footer=(("total", None, 4_000_000_000, 2 * HOUR_NS),),
)


def test_rows_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="table 'Who pays' has 2 columns and a row of 1"):
        Table(title="Who pays", columns=columns("team", "cost"), rows=(("chat",),))


def test_cells_of_every_kind_are_text_for_people() -> None:
    kinds = Table(
        title="Kinds", columns=(Column("tokens", "count"), Column("share", "figure")), rows=((1_234, "41.2%"),)
    )
    assert BY_TEAM.row_text(BY_TEAM.footer[0]) == ["total", "", "$4.00", "2 h 00 min 00 s"]
    assert list(kinds.texts()) == [["1,234", "41.2%"]]


def test_a_group_says_its_name_once() -> None:
    assert [row[0] for row in BY_TEAM.texts()] == ["chat", "", "research"]
    lines = shown([BY_TEAM]).splitlines()
    assert lines[0].rstrip() == "Who pays  [amortized]"
    second, research = (next(n for n, line in enumerate(lines) if word in line) for word in ("$2.50", "research"))
    assert not lines[second + 1].strip(), "a line between the teams"
    assert research == second + 2
    assert lines[-1].strip() == "Sums to the bill."


def test_no_amount_is_broken_in_a_table_of_many() -> None:
    amounts = [Column(f"what is owed by {number}", "money") for number in range(8)]
    row = ("research", *[-1_296_000_007 * 10**6] * 8)
    table = Table(title="", columns=(Column("team"), *amounts), rows=(row,), footer=(row,))
    assert shown([table]).count("-$1,296,000.01") == 16


def test_nothing_in_a_ledger_is_obeyed_by_a_terminal() -> None:
    hostile = "[bold]x[/bold] :smile: \x1b[2Jgone"
    table = Table(title=hostile, columns=columns(hostile, "n"), rows=((hostile, hostile),), footer=((hostile, ""),))
    text = printed([table, Paragraph(hostile, lead=hostile), hostile])
    assert text.count("[bold]x[/bold] :smile: \\x1b[2Jgone") == 8
    assert "\x1b" not in text


def test_figures_keep_their_values_and_are_text_where_they_are_shown() -> None:
    known = MAKE.money(Fraction(1), AMORTIZED, basis="assumed", interval=Interval(low=0.5, high=2))
    guessed = MAKE.money(Fraction(2), AMORTIZED, no_interval="a guess")
    absent, explained = (MAKE.money(None, AMORTIZED, why=why) for why in ("too few", "said beside it"))
    table = Table(
        title="Terms",
        stamp=STAMP,
        columns=columns("term", "cost", "each", "why", text=("why",)),
        rows=(("a", known, guessed, ""), ("b", absent, explained, "said beside it")),
    )
    assert table.row("a")["cost"] is known
    first, second = table.to_json()["rows"]
    assert (first["cost"]["value"], first["cost"]["low"], first["cost"]["basis"]) == (10**9, 500_000_000, "assumed")
    assert (second["cost"]["value"], second["cost"]["why"]) == (None, "too few")
    plain = table.plain()
    assert [column.name for column in plain.columns] == ["term", "cost", "95% of cost", "each", "why"]
    assert plain.rows[0] == ("a", "$1.00 (assumed)", "$0.500 to $2.00", "$2.00", "")
    assert plain.rows[1][:4] == ("b", "-", "-", "-")
    assert plain.notes == ("Why a cell has a dash: too few.", "No interval: a guess.")
    assert BY_TEAM.plain() is BY_TEAM
