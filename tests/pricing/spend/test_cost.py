import csv
import io
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from rose.ledger.files import layout, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from rose.pricing.closing.bill import Bill, bill, of_close
from rose.pricing.closing.close import restate
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.spend import spend_tables
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.cost import BY, Cost, Question, answer, ask
from rose.pricing.spend.saved import saved
from tests.pricing.any_ledger import BOOK as ANY_BOOK
from tests.pricing.any_ledger import on_any_ledger, priced, root_of
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
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
from tests.pricing.conftest import OURS, WEEK_CLOSE_ID, printed
from tests.pricing.recorded import Made

USD = 10**9
#: Dimensions of the amortized view.
NAMES = [name for name in BY if name != "work"]
HOUR, DAY = Period(T0_NS, T0_NS + HOUR_NS), Period(T0_NS, T0_NS + DAY_NS)


def batched(names: Iterable[str], size: int) -> Iterator[tuple[str, ...]]:
    names = tuple(names)
    return (names[start : start + size] for start in range(0, len(names), size))


def asked(billed: Bill, *by: str, **fields: Any) -> Cost:
    return answer(billed, Question(period=billed.period, by=by, **fields))


@pytest.fixture(scope="module")
def hour(fleet_kept: Path) -> Bill:
    return bill(Ledger(fleet_kept), HOUR, BOOK)


@pytest.fixture(scope="module")
def ten_days(half_closed_kept: Path) -> Bill:
    return bill(Ledger(half_closed_kept / "ledger"), Period(T0_NS, T0_NS + 10 * DAY_NS), BOOK)


def test_closed_days_are_those_of_the_books_and_open_ones_live(ten_days: Bill) -> None:
    made = asked(ten_days, "day")
    day = 8640 * USD // 100
    assert [line.values[0] for line in made.lines] == [f"2026-06-{number:02}" for number in range(1, 11)]
    amounts = [(line.closed_nano, line.corrections_nano, line.open_nano) for line in made.lines]
    assert amounts == [(day, day // 10, 0)] * 7 + [(0, 0, day)] * 3
    assert dict(made.closes) == {WEEK_CLOSE_ID: 1}
    assert made.open == (Period(T0_NS + 7 * DAY_NS, T0_NS + 10 * DAY_NS),)
    assert made.bill_nano == made.total.cost_nano == 10 * day + 7 * day // 10


def test_closed_hours_without_a_charge_cost_nothing(fleet: Path) -> None:
    close(fleet, Period(T0_NS, T0_NS + DAY_NS))
    night = Period(T0_NS + 5 * HOUR_NS, T0_NS + 6 * HOUR_NS)
    assert ask(Ledger(fleet), Question(period=night, by=("team",))).total.cost_nano == 0


def test_by_any_dimensions_the_lines_sum_to_the_bill(ten_days: Bill) -> None:
    charged = ten_days.frame
    for by in batched(NAMES, 6):
        made = asked(ten_days, *by)
        assert sum(line.cost_nano for line in made.lines) == made.bill_nano == int(charged["cost_nano"].sum())
        assert sum(line.ns for line in made.lines) == int(charged["ns"].sum())
        assert len({line.values for line in made.lines}) == len(made.lines)


def test_lines_of_one_team_or_tag_only(hour: Bill) -> None:
    research = asked(hour, "bucket", only={"team": "research"})
    assert research.bill_nano == BILL_NANO > research.total.cost_nano > 0
    tagged = asked(hour, "tag:serving_team")
    assert [line.values for line in tagged.lines] == [("chat",)]
    assert tagged.total.cost_nano == BILL_NANO


def test_a_tag_is_read_once_whatever_its_name_and_of_the_runs_that_are_charged(tmp_path: Path) -> None:
    """A key given twice counts as its first, which `team` does too; a simulated run of the same id has its own tags."""
    tags = '{"team": "research", "team": "chat", "serving_team": "research", '
    tags += r'"a\"*": "odd", "": "none", "size": 3, "null": null}'
    root = write(tmp_path / "ledger", [*begun(tags), *fleet_events()[2:]])
    write(root, [*begun('{"team": "nobody"}'), *ended(3600)], "other", "simulated")
    by = ("team", "tag:team", 'tag:a"*', "tag:size", "tag:null")
    made = asked(bill(Ledger(root), HOUR, BOOK, provenance="live"), *by)
    assert made.bill_nano == BILL_NANO
    (line,) = made.lines
    assert (line.values, line.cost_nano) == (("research", "research", "odd", "3", "unallocated"), BILL_NANO)
    with pytest.raises(PricingError, match="there is team"):
        asked(bill(Ledger(root), HOUR, BOOK, provenance="simulated"), "tag:size")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"only": {"team": "reserch"}}, "has team 'reserch'; did you mean 'research'"),
        ({"by": ("tag:colour",)}, "no run or device has the tag 'colour'; there is serving_team, team"),
        ({"by": ("teams",)}, "cannot be shown by 'teams'; did you mean 'team'"),
        ({"by": BY[:7]}, "give one to 6 dimensions"),
        ({"by": ("work",)}, "cannot be shown by 'work'"),
        ({"view": "marginal"}, "view 'marginal' is not known"),
    ],
)
def test_what_cannot_be_answered_is_refused(hour: Bill, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(PricingError, match=says):
        answer(hour, Question(period=HOUR, **fields))


def test_a_period_without_a_charge_is_refused(fleet_kept: Path) -> None:
    with pytest.raises(PricingError, match="nothing is charged"):
        ask(Ledger(fleet_kept), Question(period=Period(T0_NS - DAY_NS, T0_NS)), BOOK)


def test_days_are_those_of_the_reader(half_closed_kept: Path) -> None:
    berlin = Calendar("Europe/Berlin")
    billed = bill(Ledger(half_closed_kept / "ledger"), berlin.period("2026-06-03..2026-06-04", 0), BOOK)
    made = asked(billed, "day", "bucket", calendar=berlin)
    assert {line.values[0] for line in made.lines} == {"2026-06-03", "2026-06-04"}
    assert made.total.cost_nano == int(billed.frame["cost_nano"].sum())


def tagged_book(*entries: str) -> PriceBook:
    cited = 'source = "inventory"\nsource_date = 2026-01-01\n'
    return pricebook.parse(BOOK_TOML + "".join(f"\n[[device_tag]]\n{entry}\n{cited}" for entry in entries), "tags.toml")


def test_a_device_s_tag_holds_where_its_run_has_none(half_closed_kept: Path) -> None:
    root = half_closed_kept / "ledger"
    entries = 'pool = "serving"\ntags = { site = "fra", team = "ops" }', 'hardware = "*/s0"\ntags = { rack = "7" }'
    book = tagged_book(*entries)
    billed = bill(Ledger(root), Period(T0_NS + 6 * DAY_NS, T0_NS + 8 * DAY_NS), book)
    only = asked(billed, "day", only={"tag:rack": "7"})
    assert [line.values[0] for line in only.lines] == ["2026-06-07", "2026-06-08"]
    assert only.total.cost_nano == only.bill_nano
    assert [line.values for line in asked(billed, "tag:team").lines] == [("research",)]
    open_hour = Period(T0_NS + 8 * DAY_NS, T0_NS + 8 * DAY_NS + HOUR_NS)
    (line,) = ask(Ledger(root), Question(period=open_hour, by=("tag:site", "tag:rack")), book).lines
    assert (line.values, line.cost_nano) == (("fra", "7"), 3_600_000_000)


@on_any_ledger
def test_the_lines_of_any_ledger_sum_to_its_bill_in_both_views(made: Made) -> None:
    billed = bill(Ledger(root_of(made)), Calendar().period("2026-02-20..2026-03-10", 0), ANY_BOOK)
    for view, by in (("amortized", ("team", "day")), ("fully-loaded", ("pool", "task", "version"))):
        cost = asked(billed, *by, view=view)
        assert sum(line.cost_nano for line in cost.lines) == cost.bill_nano == priced(made).total_nano


@pytest.fixture(scope="module")
def corrected(closed_made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(closed_made, tmp_path_factory.mktemp("corrected") / "ledger"))
    write(root, [late_slice()], "late")
    assert restate(Ledger(root), CLOSE_ID, "contract 18", DEARER, now_us=NEXT_DAY_US + 1)
    return root


def test_a_close_sums_to_its_total_by_every_dimension_in_both_views(corrected: Path) -> None:
    billed = of_close(Ledger(corrected), CLOSE_ID)
    for view in ("amortized", "fully-loaded"):
        for names in batched(NAMES if view == "amortized" else BY, 6):
            made = asked(billed, *names, view=view)
            assert made.total.closed_nano == BILL_NANO
            assert made.total.corrections_nano == 360_000_000
            assert made.total.cost_nano == sum(line.cost_nano for line in made.lines) == made.bill_nano
            assert made.view == view.replace("-", " ")


def test_a_close_as_of_a_time_is_what_it_was(corrected: Path) -> None:
    closed = Question(period=HOUR, by=("bucket",), close_id=CLOSE_ID, as_of_ns=NEXT_DAY_US * 1000)
    assert {line.values[0]: line.cost_nano for line in ask(Ledger(corrected), closed).lines} == {
        "serving": 1_800_000_000,
        "rollout": 900_000_000,
        "idle": 600_000_000,
        "unaccounted": 300_000_000,
        "transfer": 200_000_000,
        "energy": 68_750_000,
    }
    loaded = ask(Ledger(corrected), replace(closed, by=("work",), view="fully-loaded"))
    # Idle and energy, $0.66875, go two to one to what serving and rollout time cost; the sync to rollout.
    assert {line.values[0]: line.cost_nano for line in loaded.lines} == {
        "serving": 2_245_833_333,
        "rollout": 1_322_916_667,
        "unaccounted": 300_000_000,
    }
    with pytest.raises(PricingError, match="which is after"):
        ask(Ledger(corrected), replace(closed, as_of_ns=NEXT_DAY_US * 1000 - 1))


def test_an_archived_period_is_refused_and_not_called_free(sample: Path, tmp_path: Path) -> None:
    before = bill(Ledger(sample), DAY, OURS).frame
    assert before["cost_nano"].sum() > 0
    for writer in layout.writers(sample):
        if (tail := segments.recover(sample, writer)) is not None:
            segments.begin_epoch(sample, tail)
    compaction.compact(Ledger(sample))
    rollup.roll_up(Ledger(sample))
    archive.archive(Ledger(sample), older_than_days=0, to=str(tmp_path / "away"), delete=True, grace_s=0)
    for price in (bill, saved):
        with pytest.raises(PricingError, match=r"were archived, so .* only be priced in part.*rose ledger restore"):
            price(Ledger(sample), DAY, OURS)
    archive.restore(Ledger(sample), str(tmp_path / "away"))
    assert bill(Ledger(sample), DAY, OURS).frame.equals(before)


@pytest.fixture(scope="module")
def eight_days(half_closed_kept: Path) -> Cost:
    question = Question(period=Period(T0_NS, T0_NS + 8 * DAY_NS), by=("team", "bucket"), only={"team": "research"})
    return ask(Ledger(half_closed_kept / "ledger"), question, BOOK)


def test_a_table_says_what_is_closed_and_what_is_open(eight_days: Cost) -> None:
    text = printed(spend_tables.terminal(eight_days))
    assert "2026-06-01 through 2026-06-08, UTC [amortized; USD, live]" in text
    assert "closed: 2026-06-01-to-2026-06-08-live-1 with 1 correction; open, priced now: 2026-06-08T00" in text
    # An hour a day of rollouts: seven at $3.60 + 10% and one at $3.60.
    assert "team research only: $31.32 of the period's bill of $751.68" in text
    assert "research rollout $31.32 100.0% $2.52 $3.60" in text


def test_csv_has_every_line_to_the_nano_and_no_formula(eight_days: Cost) -> None:
    (row,) = csv.DictReader(io.StringIO(spend_tables.csv_text(eight_days)))
    assert Decimal(row["cost"]) == Decimal(row["closed"]) + Decimal(row["corrections"]) + Decimal(row["open"])
    assert (row["cost"], row["device_hours"], row["bucket"]) == ("31.320000000", "8.000000000", "rollout")
    (line,) = eight_days.lines
    hostile = replace(eight_days, lines=(replace(line, values=("=1+1", "rollout")),))
    assert spend_tables.csv_text(hostile).splitlines()[1].startswith("'=1+1,rollout,")
