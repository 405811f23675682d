import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report
from rose.pricing.answers.correct_answer import THOUSAND
from rose.pricing.borrowing.comparison import ADDED_THERE, CAPACITY, CASH
from rose.pricing.closing import close as closing
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books import pricebook
from rose.pricing.price_books.pricebook import NoPriceBookError
from rose.pricing.spend import spend_tables
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.saved import PeriodSaving, Saved, added_up, cash_text, saved
from tests.pricing.closing.conftest import DAY_NS, T0_NS, write
from tests.pricing.conftest import OURS, WriteLedger, printed, saved_in_run, us

DAY, NEXT = Period(T0_NS, T0_NS + DAY_NS), Period(T0_NS + DAY_NS, T0_NS + 2 * DAY_NS)


@pytest.fixture(scope="module")
def ended(sample_written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(sample_written, tmp_path_factory.mktemp("ended") / "ledger"))
    write(root, [events.Run(action="ended", name="by hand", at_us=us(3600))], "end", "replay")
    started = events.Run(action="started", name="new", at_us=us(7200), tags_json='{"team": "research"}')
    return write(root, [started], "other", "replay", "new")


@pytest.fixture(scope="module")
def fleet_saved(ended: Path) -> Saved:
    return saved(Ledger(ended), DAY, "example")


def test_a_period_without_a_run_or_a_name_that_it_lacks_is_refused(ended: Path) -> None:
    with pytest.raises(PricingError, match="no run"):
        saved(Ledger(ended), NEXT, "example")
    with pytest.raises(PricingError, match="has team 'reserch'; did you mean 'research'"):
        saved(Ledger(ended), DAY, "example", team="reserch")


def test_without_a_price_book_it_is_said_once(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    with pytest.raises(NoPriceBookError):
        saved(Ledger(ended), DAY)


def test_runs_of_different_books_are_not_added_up(
    sample_made: list[events.Event], write_ledger: WriteLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    root = None
    for name in ("one", "two"):
        book = tmp_path / f"{name}.toml"
        book.write_text(OURS.text.replace('name = "ours"', f'name = "{name}"'))
        config = {"price_book": str(book), "price_book_sha256": hashlib.sha256(book.read_bytes()).hexdigest()}
        begun = events.Run(action="started", name=name, at_us=us(0), config_json=json.dumps(config))
        ended = events.Run(action="ended", name=name, at_us=us(3600), config_json=json.dumps(config))
        root = write_ledger([begun, *sample_made[1:5], ended], root=root, writer=name, run_id=name)
    assert root is not None
    with pytest.raises(PricingError, match=r"different price books \(one: .*one\.toml; two: .*two\.toml\)"):
        saved(Ledger(root), DAY)
    book = saved(Ledger(root), DAY, run_id="two").book
    assert book is not None
    assert book.name == "two"


def test_the_figures_are_those_of_the_fleet_s_report(ended: Path, fleet_saved: Saved) -> None:
    figures = saved_in_run(ended, "run", "example")
    cash, fleet = figures.row(CASH)["value"], fleet_saved.fleet
    assert fleet.capacity_nano == figures.row(CAPACITY)["value"].value
    assert fleet.bought_nano == figures.row(ADDED_THERE)["value"].value
    assert fleet.cash_nano == (cash.value, cash.value)
    assert (fleet.cash_interval, fleet.no_interval) == (None, cash.no_interval)
    # A run without a device saved nothing.
    (run,) = fleet_saved.runs
    assert (run.run_id, run.saving) == ("run", fleet)


def test_a_closed_period_has_the_book_of_its_close(ended: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(ended, tmp_path / "ledger"))
    closing.close(Ledger(root), DAY, OURS, with_open_runs=True)
    for named in (None, "example"):
        answer = saved(Ledger(root), DAY, named)
        assert answer.book is not None
        assert (answer.book.name, answer.book.example, answer.book.chosen) == ("ours", False, pricebook.FROZEN)


def test_costs_that_are_not_known_make_it_at_most_that(fleet_saved: Saved) -> None:
    assert "provision" in fleet_saved.fleet.left_out
    assert cash_text(fleet_saved.fleet).endswith(" or less")
    known = dataclasses.replace(fleet_saved.fleet, left_out=(), cash_nano=(10**9, 10**9))
    assert cash_text(known) == "$1.00"
    assert cash_text(dataclasses.replace(known, cash_nano=(-3 * 10**9, 10**9))) == "-$3.00 or $1.00"
    assert cash_text(PeriodSaving()) == "not known"


def test_what_is_not_known_is_not_0() -> None:
    known = PeriodSaving(cash_nano=(2, 1), capacity_nano=3, bought_nano=4, added_nano=2)
    assert added_up([PeriodSaving(why="lost")]).cash_nano is None
    both = added_up([known, PeriodSaving(why="lost"), known])
    assert (both.cash_nano, both.capacity_nano, both.why) == ((4, 2), 6, "1 of 3 are not known")


def test_as_a_table(fleet_saved: Saved) -> None:
    text = printed(spend_tables.saved_terminal(fleet_saved, Calendar()))
    assert "never added" in text
    assert "Two savings" not in text
    two = dataclasses.replace(fleet_saved.fleet, cash_nano=(-3 * 10**9, 10**9), left_out=(), cash_interval=(0, None))
    text = printed(spend_tables.saved_terminal(dataclasses.replace(fleet_saved, fleet=two), Calendar()))
    assert "-$3.00 or $1.00" in text
    assert "95%: $0.00 to unbounded: not clearly different from 0." in text
    shown = dataclasses.replace(two, cash_interval=(1, None))
    assert "not clearly" not in printed(
        spend_tables.saved_terminal(dataclasses.replace(fleet_saved, fleet=shown), Calendar())
    )
    assert "Two savings" in text
    assert two.to_json()["cash_saved_nano"] == {"if_there_anyway": -3 * 10**9, "if_not": 10**9}


def test_the_documents_have_the_sample_s_figures(tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    texts = ((root / name).read_text("utf-8") for name in ("README.md", "docs/pricing.md"))
    readme, pricing = (" ".join(text.split()) for text in texts)
    ledger = Path(shutil.copytree(root / "sample_traces" / "ledger", tmp_path / "ledger"))
    section = run_report.build(Ledger(ledger), None, "example").section
    cash = section.figure("savings", CASH)
    assert f"{cash.text} or less (95% {cash.short_interval})" in pricing
    assert f"{section.figure('glance', THOUSAND).text} (amortized)" in pricing
    for place in ("borrowed", "dedicated"):
        usd = section.figure("tokens", f"{place} devices", "amortized").value / 10**9
        assert f"{place} ${usd:.4f}" in readme
