from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rose.pricing.closing.bill import bill
from rose.pricing.closing.period import Period
from rose.pricing.closing.restate import restate
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import BY, Cost, Question, ask
from tests.pricing.any_ledger import BOOK as ANY_BOOK
from tests.pricing.any_ledger import on_any_ledger, priced, root_of
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK_TOML,
    CLOSE_ID,
    DAY_NS,
    DEARER,
    HOUR_NS,
    NEXT_DAY_US,
    T0_NS,
    begun,
    close,
    ended,
    fleet_events,
    late_slice,
    write,
)
from tests.pricing.conftest import WEEK_CLOSE_ID
from tests.pricing.recorded import Made

USD = 10**9
#: Dimensions of the amortized view.
NAMES = [name for name in BY if name != "work"]
TEN_DAYS = Period(T0_NS, T0_NS + 10 * DAY_NS)
HOUR = Period(T0_NS, T0_NS + HOUR_NS)


@pytest.fixture
def book(tmp_path: Path) -> str:
    path = tmp_path / "book.toml"
    path.write_text(BOOK_TOML)
    return str(path)


def batched(names: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    names = tuple(names)
    return (names[start : start + size] for start in range(0, len(names), size))


def asked(root: Path, book: str, *by: str, period: Period = TEN_DAYS, **fields: Any) -> Cost:
    return ask(root, Question(period=period, by=by, **fields), book)


def test_closed_days_are_those_of_the_books_and_open_ones_live(half_closed_kept: Path, book: str) -> None:
    made = asked(half_closed_kept / "ledger", book, "day")
    day = 8640 * USD // 100
    assert [line.values[0] for line in made.lines] == [f"2026-06-{number:02}" for number in range(1, 11)]
    assert {(line.closed_nano, line.corrections_nano, line.open_nano) for line in made.lines[:7]} == {
        (day, day // 10, 0)
    }
    assert {(line.closed_nano, line.corrections_nano, line.open_nano) for line in made.lines[7:]} == {(0, 0, day)}
    assert dict(made.closes) == {WEEK_CLOSE_ID: 1}
    assert made.open == (Period(T0_NS + 7 * DAY_NS, T0_NS + 10 * DAY_NS),)
    assert made.bill_nano == made.total.cost_nano == 10 * day + 7 * day // 10


def test_closed_hours_without_a_charge_cost_nothing(fleet: Path, book: str) -> None:
    close(fleet, Period(T0_NS, T0_NS + DAY_NS))
    night = Period(T0_NS + 5 * HOUR_NS, T0_NS + 6 * HOUR_NS)
    assert asked(fleet, book, "team", period=night).total.cost_nano == 0


def test_by_any_dimensions_the_lines_sum_to_the_bill(half_closed_kept: Path, book: str) -> None:
    root, closed_days = half_closed_kept / "ledger", Period(T0_NS, T0_NS + 7 * DAY_NS)
    questions = [(closed_days, by) for by in batched(NAMES, 6)] + [(TEN_DAYS, ("hardware", "bucket"))]
    for period, by in questions:
        charged = bill(root, period, pricebook.load(book)).frame
        made = asked(root, book, *by, period=period)
        assert sum(line.cost_nano for line in made.lines) == made.bill_nano == int(charged["cost_nano"].sum())
        assert sum(line.ns for line in made.lines) == int(charged["ns"].sum())
        assert len({line.values for line in made.lines}) == len(made.lines)


def test_lines_of_one_team_or_tag_only(fleet_kept: Path, book: str) -> None:
    research = asked(fleet_kept, book, "bucket", period=HOUR, only={"team": "research"})
    assert research.bill_nano == BILL_NANO > research.total.cost_nano > 0
    tagged = asked(fleet_kept, book, "tag:serving_team", period=HOUR)
    assert [line.values for line in tagged.lines] == [("chat",)]
    assert tagged.total.cost_nano == BILL_NANO


def test_a_tag_is_read_once_whatever_its_name_and_of_the_runs_that_are_charged(tmp_path: Path, book: str) -> None:
    """A key given twice counts as its first, which `team` does too; a simulated run of the same id has its own tags."""
    tags = '{"team": "research", "team": "chat", "serving_team": "research", '
    tags += r'"a\"*": "odd", "": "none", "size": 3, "null": null}'
    root = write(tmp_path / "ledger", [*begun(tags), *fleet_events()[2:]])
    write(root, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    by = ("team", "tag:team", 'tag:a"*', "tag:size", "tag:null")
    made = asked(root, book, *by, period=HOUR, provenance="live")
    assert made.bill_nano == BILL_NANO
    (line,) = made.lines
    assert (line.values, line.cost_nano) == (("research", "research", "odd", "3", "unallocated"), BILL_NANO)
    with pytest.raises(PricingError, match="there is team"):
        asked(root, book, "tag:size", period=HOUR, provenance="simulated")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"only": {"team": "reserch"}}, "has team 'reserch'; did you mean 'research'"),
        ({"by": ("tag:colour",)}, "no run or device has the tag 'colour'; there is serving_team, team"),
        ({"by": ("teams",)}, "cannot be shown by 'teams'; did you mean 'team'"),
        ({"by": BY[:7]}, "give one to 6 dimensions"),
        ({"by": ("work",)}, "cannot be shown by 'work'"),
        ({"view": "marginal"}, "view 'marginal' is not known"),
        ({"period": Period(T0_NS - DAY_NS, T0_NS)}, "nothing is charged"),
    ],
)
def test_what_cannot_be_answered_is_refused(fleet_kept: Path, book: str, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PricingError, match=says):
        ask(fleet_kept, Question(**({"period": HOUR} | fields)), book)


def test_days_are_those_of_the_reader(half_closed_kept: Path, book: str) -> None:
    berlin = Calendar("Europe/Berlin")
    period = berlin.period("2026-06-03..2026-06-04", 0)
    made = asked(half_closed_kept / "ledger", book, "day", "bucket", period=period, calendar=berlin)
    assert {line.values[0] for line in made.lines} == {"2026-06-03", "2026-06-04"}
    assert made.total.cost_nano == int(
        bill(half_closed_kept / "ledger", period, pricebook.load(book)).frame["cost_nano"].sum()
    )


def tagged_book(*entries: str) -> PriceBook:
    cited = 'source = "inventory"\nsource_date = 2026-01-01\n'
    return pricebook.parse(BOOK_TOML + "".join(f"\n[[device_tag]]\n{entry}\n{cited}" for entry in entries), "tags.toml")


def test_a_device_s_tag_holds_where_its_run_has_none(half_closed_kept: Path) -> None:
    root = half_closed_kept / "ledger"
    entries = 'pool = "serving"\ntags = { site = "fra", team = "ops" }', 'hardware = "*/s0"\ntags = { rack = "7" }'
    book = tagged_book(*entries)
    two_days = Period(T0_NS + 6 * DAY_NS, T0_NS + 8 * DAY_NS)
    only = ask(root, Question(period=two_days, by=("day",), only={"tag:rack": "7"}), book)
    assert [line.values[0] for line in only.lines] == ["2026-06-07", "2026-06-08"]
    assert only.total.cost_nano == only.bill_nano
    made = ask(root, Question(period=two_days, by=("tag:team",)), book)
    assert [line.values for line in made.lines] == [("research",)]
    open_hour = Period(T0_NS + 8 * DAY_NS, T0_NS + 8 * DAY_NS + HOUR_NS)
    (line,) = ask(root, Question(period=open_hour, by=("tag:site", "tag:rack")), book).lines
    assert (line.values, line.cost_nano) == (("fra", "7"), 3_600_000_000)


@on_any_ledger
def test_the_lines_of_any_ledger_sum_to_its_bill_in_both_views(made: Made) -> None:
    whole = Calendar().period("2026-02-20..2026-03-10", 0)
    for view, by in (("amortized", ("team", "day")), ("fully-loaded", ("pool", "task", "version"))):
        answer = ask(root_of(made), Question(period=whole, by=by, view=view), ANY_BOOK)
        assert sum(line.cost_nano for line in answer.lines) == answer.bill_nano == priced(made).total_nano


@pytest.fixture(scope="module")
def corrected(closed_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(closed_made, tmp_path_factory.mktemp("corrected") / "ledger"))
    write(root, [late_slice()], "late")
    assert restate(root, CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    return root


def test_a_close_sums_to_its_total_by_every_dimension_in_both_views(corrected: Path) -> None:
    for view in ("amortized", "fully-loaded"):
        for names in batched(NAMES if view == "amortized" else BY, 6):
            made = ask(corrected, Question(period=HOUR, by=names, view=view, close_id=CLOSE_ID))
            assert made.total.closed_nano == BILL_NANO
            assert made.total.corrections_nano == 360_000_000
            assert made.total.cost_nano == sum(line.cost_nano for line in made.lines) == made.bill_nano
            assert made.view == view.replace("-", " ")


def test_a_close_as_of_a_time_is_what_it_was(corrected: Path) -> None:
    closed = Question(period=HOUR, by=("bucket",), close_id=CLOSE_ID, as_of_ns=NEXT_DAY_US * 1000)
    costs = {line.values[0]: line.cost_nano for line in ask(corrected, closed).lines}
    assert costs == {
        "serving": 1_800_000_000,
        "rollout": 900_000_000,
        "idle": 600_000_000,
        "unaccounted": 300_000_000,
        "transfer": 200_000_000,
        "energy": 68_750_000,
    }
    loaded = ask(corrected, replace(closed, by=("work",), view="fully-loaded"))
    # Idle and energy, $0.66875, go two to one to what serving and rollout time cost; the sync to rollout.
    assert {line.values[0]: line.cost_nano for line in loaded.lines} == {
        "serving": 2_245_833_333,
        "rollout": 1_322_916_667,
        "unaccounted": 300_000_000,
    }
    with pytest.raises(PricingError, match="nothing of it was known"):
        ask(corrected, replace(closed, as_of_ns=NEXT_DAY_US * 1000 - 1))
