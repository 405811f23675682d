import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from rose import events
from rose.pricing.borrowing.report import CAPACITY, CASH, WOULD, saved_in_run
from rose.pricing.closing.period import Period
from rose.pricing.money import PricingError
from rose.pricing.price_books.choice import NoPriceBookError
from rose.pricing.spend import tables
from rose.pricing.spend.calendar import Calendar
from rose.pricing.spend.saved import ENDS, Saved, saved, summed
from tests.pricing.closing.conftest import DAY_NS, T0_NS, write
from tests.pricing.conftest import OURS, WriteLedger, printed, us

DAY, NEXT = Period(T0_NS, T0_NS + DAY_NS), Period(T0_NS + DAY_NS, T0_NS + 2 * DAY_NS)


@pytest.fixture(scope="module")
def ended(sample_written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = Path(shutil.copytree(sample_written, tmp_path_factory.mktemp("ended") / "ledger"))
    write(root, [events.Run(action="ended", name="by hand", at_us=us(3600))], "end", "replay")
    started = events.Run(action="started", name="new", at_us=us(7200), tags_json='{"team": "research"}')
    return write(root, [started], "other", "replay", "new")


@pytest.fixture(scope="module")
def fleet_saved(ended: Path) -> Saved:
    return saved(ended, DAY, "example", now_ns=T0_NS + 1)


def test_a_run_counts_in_the_period_in_which_it_ended(ended: Path) -> None:
    assert [run.run_id for run in saved(ended, DAY, "example", now_ns=T0_NS + 2 * DAY_NS, run_id="run").runs] == ["run"]
    with pytest.raises(PricingError, match=r"has ended in it or goes on now|no run lies in"):
        saved(ended, NEXT, "example", now_ns=T0_NS + 3 * DAY_NS)
    with pytest.raises(PricingError, match="has team 'reserch'; did you mean 'research'"):
        saved(ended, DAY, "example", now_ns=T0_NS + 1, team="reserch")


def test_a_live_run_that_fell_silent_counts_when_it_was_last_heard_of(write_ledger: WriteLedger) -> None:
    begun = events.Run(action="started", name="lost", at_us=us(0), config_json='{"expires_s": 900}')
    device = events.Device(
        action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h100-sxm", at_us=us(0)
    )
    root = write_ledger([begun, device], run_id="lost", provenance="live")
    for now_ns, status in ((T0_NS + 800 * 10**9, "running"), (T0_NS + DAY_NS, "silent")):
        assert [run.status for run in saved(root, DAY, "example", now_ns=now_ns).runs] == [status]
    with pytest.raises(PricingError, match=r"has ended in it or goes on now|no run lies in"):
        saved(root, NEXT, "example", now_ns=T0_NS + DAY_NS + 1)


def test_without_a_price_book_it_is_said_once(ended: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK", raising=False)
    with pytest.raises(NoPriceBookError):
        saved(ended, DAY, now_ns=T0_NS + 1)


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
        saved(root, DAY)
    (run,) = saved(root, DAY, run_id="two").runs
    assert run.book is not None
    assert run.book.name == "two"


def test_two_figures_of_a_run_are_those_of_its_comparison_and_what_is_not_known_is_counted_apart(
    ended: Path, fleet_saved: Saved
) -> None:
    figures = {name: figure.value for name, figure, _ in saved_in_run(ended, "run", "example").rows}
    run, new = fleet_saved.runs
    assert run.capacity_nano == figures[CAPACITY]
    assert run.cash_nano is not None
    assert run.cash_nano[0] == figures.get(f"{CASH} {WOULD}", figures[CASH])
    assert (new.capacity_nano, new.cash_nano, new.team) == (None, None, "research")
    assert new.why
    assert summed(fleet_saved.runs) == {
        "capacity_avoided_nano": run.capacity_nano,
        "cash_saved_nano": dict(zip(ENDS, run.cash_nano, strict=True)),
        "runs": 2,
        "runs_unknown": 1,
    }
    assert summed(fleet_saved.of_team("research"))["cash_saved_nano"] is None, "not known is not 0"


def test_as_a_table(fleet_saved: Saved) -> None:
    text = printed(tables.saved_terminal(fleet_saved, Calendar()))
    assert "never added" in text
    assert "2, 1 not known" in text
    assert "goes on" in text


def test_both_ends_of_cash_stand_in_one_order_and_are_named_where_there_are_two(fleet_saved: Saved) -> None:
    run = dataclasses.replace(fleet_saved.runs[0], cash_nano=(-3 * 10**9, 10**9))
    two = dataclasses.replace(fleet_saved, runs=(run,))
    text = printed(tables.saved_terminal(two, Calendar()))
    assert "-$3.00 or $1.00" in text
    assert "Two amounts of cash: if the fleet would have been there anyway, or if it would not." in text
    ends = {"if_there_anyway": -3 * 10**9, "if_not": 10**9}
    assert two.to_json()["fleet"]["cash_saved_nano"] == two.to_json()["runs"][0]["cash_saved_nano"] == ends
    one = dataclasses.replace(two, runs=(dataclasses.replace(run, cash_nano=(10**9, 10**9)),))
    assert "Two amounts" not in printed(tables.saved_terminal(one, Calendar()))
    # One run is no sum.
    assert "No interval" not in text
    assert (one.to_json()["no_interval"], "do not add up" in str(fleet_saved.to_json()["no_interval"])) == (None, True)
