from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.audit.explain import ChargeQuestion, Explanation, elements, explain, explain_closed
from rose.pricing.audit.steps import Held, held
from rose.pricing.charges import Stay, pricing
from rose.pricing.charges.pricing import DIMENSIONS
from rose.pricing.closing import close
from rose.pricing.closing.close import restate
from rose.pricing.money import NS_PER_HOUR as H
from rose.pricing.money import PricingError, QuestionError
from rose.pricing.period import Period, nanoseconds
from tests.pricing.any_ledger import BOOK as ANY_BOOK
from tests.pricing.any_ledger import on_any_ledger, priced, root_of
from tests.pricing.charges import test_tenures
from tests.pricing.charges.test_pricing import S, power, slice_, turn, us
from tests.pricing.charges.test_tenures import GPU, KILOWATT_MW, device, run
from tests.pricing.closing.conftest import (
    BILL_NANO,
    BOOK,
    CLOSE_ID,
    DAY_NS,
    DEARER,
    NEXT_DAY_US,
    T0_NS,
    late_slice,
    write,
)
from tests.pricing.conftest import shown
from tests.pricing.recorded import Made

HOUR = ChargeQuestion(hour_ns=T0_NS)


def sums(explained: Explanation) -> list[str]:
    return [total.text for step in explained.steps for total in step.sums]


def test_a_whole_device_hour_goes_back_to_its_events(fleet_kept: Path) -> None:
    made = explain(Ledger(fleet_kept), ChargeQuestion(), BOOK)
    assert (made.amount.value, made.faults, made.notes) == (BILL_NANO, [], ())
    assert len(made.rows) == 8
    titles = [step.title for step in made.steps]
    assert titles[:5] == ["price", "device-hour", "by time", "rollout, lease L1", "slices"]
    assert titles[5:] == ["price", "syncs", "price", "readings"]
    price, hour, *_ = made.steps
    assert price.says == (
        "$3.60 for each hour of h100-sxm (1-year reserved), from 2026-01-01 on; source: contract 17 (2026-01-01); "
        f"price book by hand 1 ({BOOK.sha256[:12]}), line 5"
    )
    assert hour.sums[0].text == "$3.60 x 3,600,000,000,000 ns / 3,600,000,000,000 ns = 3,600,000,000 nano-dollars"
    assert set(sums(made)) >= {
        "3,600,000,000 x 900,000,000,000 / 3,600,000,000,000 ns (rollout, lease L1) = 900,000,000 nano-dollars",
        # 300 tokens at $3 and 40 again at $1: 600 of 940 to the accepted ones.
        "900,000,000 x 63.8298% (accepted, version 3, task maze, 200 tokens) = 574,468,085 nano-dollars",
        "900,000,000 x 4.2553% (recomputed, version 3, task maze, 40 tokens) = 38,297,872 nano-dollars",
        "10,000,000,000 bytes at that price, rounded once = 200,000,000 nano-dollars",
    }
    assert [(span.writer, span.events, span.holds) for span in made.spans] == [("test", 8, True)]


def test_what_was_asked_for_is_told_from_what_must_re_add_too(fleet_kept: Path) -> None:
    made = explain(Ledger(fleet_kept), ChargeQuestion(bucket="rollout", fate="rejected"), BOOK)
    assert made.amount.value == 287_234_043
    asked = [total.text for step in made.steps for total in step.sums if total.asked]
    assert any("rejected" in text for text in asked)
    assert not any("accepted, version" in text or "idle" in text for text in asked)
    assert {kind for kind, rows in made.events.items() if rows} == {"slices", "tokens"}
    idle = explain(Ledger(fleet_kept), ChargeQuestion(bucket="idle"), BOOK)
    assert (idle.amount.value, {kind for kind, rows in idle.events.items() if rows}) == (600_000_000, {"slices"})


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (ChargeQuestion(bucket="idel"), "no charge has bucket 'idel'; did you mean 'idle'"),
        (ChargeQuestion(device_id="x", bucket="idle"), "no charge has device 'x'; there is "),
        (ChargeQuestion(policy_version=99), "no charge has version 99; there is "),
        (ChargeQuestion(bucket="idle", fate="accepted"), "no charge has all these values"),
    ],
)
def test_a_value_that_no_charge_has_is_named(fleet_kept: Path, question: ChargeQuestion, says: str) -> None:
    with pytest.raises(QuestionError, match=says):
        explain(Ledger(fleet_kept), question, BOOK)


def test_a_broken_chain_is_a_fault(fleet: Path) -> None:
    (fleet / "live" / "test" / "000000" / "foreign").write_text("")
    made = explain(Ledger(fleet, allow_unverified=True), HOUR, BOOK)
    assert made.faults == ["the hash chain of writer 'test' is broken: run `rose ledger verify`"]
    assert "UNVERIFIED LEDGER" in str(made.amount.stamp)


def test_a_question_that_means_several_hours_names_them(weeks_kept: Path) -> None:
    with pytest.raises(
        PricingError, match=r"480 device-hours match; choose one of them. The largest:\n  --run run --device"
    ):
        explain(Ledger(weeks_kept), ChargeQuestion(run_id="run"), BOOK)
    with pytest.raises(PricingError, match="no charge has bucket 'train'"):
        explain(Ledger(weeks_kept), ChargeQuestion(hour_ns=T0_NS + DAY_NS, bucket="train"), BOOK)


def test_a_booked_figure_is_explained_as_closed_and_as_restated(closed: Path) -> None:
    note = explain(Ledger(closed), HOUR, BOOK).notes[0]
    assert note == f"this hour is closed in {CLOSE_ID}; `--close {CLOSE_ID}` explains the booked figure"
    (only,) = explain_closed(Ledger(closed), ChargeQuestion(bucket="idle"), CLOSE_ID)
    assert (only.amount.value, only.faults) == (600_000_000, [])
    write(closed, [late_slice()], "late")
    restate(Ledger(closed), CLOSE_ID, "cut off", DEARER, now_us=NEXT_DAY_US + 1)
    before, after = explain_closed(Ledger(closed), ChargeQuestion(bucket="idle"), CLOSE_ID)
    # Each re-adds with the events and prices of its own time.
    assert (before.amount.value, before.faults) == (600_000_000, [])
    assert before.notes == ("1 events of the hour were recorded later and are not in this figure",)
    assert (after.amount.value, after.faults) == (990_000_000, [])
    assert after.notes == ("closed $0.600; correction 1: $0.390 (cut off); restated $0.990",)
    assert "$3.96 for each hour" in after.steps[0].says
    # What is only in the corrections, or only in the close, can be asked for too.
    gone, zero = explain_closed(Ledger(closed), ChargeQuestion(bucket="unaccounted"), CLOSE_ID)
    assert (gone.amount.value, zero.amount.value) == (300_000_000, 0)
    assert zero.notes[0].startswith("closed $0.300; correction 1: -$0.300 (cut off); restated $0.00")


def test_what_a_device_did_before_it_changed_within_the_hour_is_not_of_what_it_became(write_ledger: Any) -> None:
    """Tokens made in no rollout time of the one pool, and power read in both, of which each is rounded by itself."""
    made = [
        run(),
        device("joined", 0, pool="rollout"),
        slice_(0, idle=600),
        turn("a", 60, 1207),
        power(0, 600, 682),
        device("joined", 600),
        slice_(600, rollout=600, idle=60),
        turn("b", 700, 30),
        power(600, 1260, 777),
    ]
    made_of = explain(
        Ledger(write_ledger(made)), ChargeQuestion(run_id="run", device_id="d", hour_ns=T0_NS), test_tenures.BOOK
    )
    assert made_of.faults == []
    assert sum("tokens of the hour's turns" in text for text in sums(made_of)) == 2


def test_time_that_counts_nowhere_is_in_no_explanation(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), slice_(0, serving=1800), power(0, 1800, KILOWATT_MW), device("left", 1800)]
    root = write_ledger(made)
    before = explain(Ledger(root), HOUR, test_tenures.BOOK)
    again = [slice_(60, idle=60), slice_(1800, idle=60), power(60, 120, KILOWATT_MW)]
    write_ledger(again, root=root, writer="late")
    explained = explain(Ledger(root), HOUR, test_tenures.BOOK)
    assert (explained.amount, explained.faults) == (before.amount, before.faults) == (before.amount, [])
    assert explained.rows == before.rows


def test_what_a_device_was_twice_within_the_hour_is_one_charge(write_ledger: Any) -> None:
    """Serving, rollout, and serving again: its time as serving is divided once, and its energy rounded once."""
    made = [
        run(),
        device("joined", 0),
        slice_(0, serving=3.1, headroom=1.7, idle=7.3),
        slice_(12.1, lease_id="L", rollout=2.9),
        turn("a", 13, 1207, lease_id="L"),
        power(0, 15, 613),
        device("joined", 15, pool="rollout"),
        slice_(15, rollout=5),
        turn("b", 16, 31),
        power(15, 20, 777),
        device("joined", 20),
        slice_(20, serving=2.3, headroom=0.7, idle=9.9),
        slice_(32.9, lease_id="L", rollout=4.1),
        turn("c", 34, 411, lease_id="L"),
        power(20, 37, 911),
    ]
    root = write_ledger(made)
    assert not charges.price(Ledger(root), test_tenures.BOOK).frame.select(DIMENSIONS).is_duplicated().any()
    made_of = explain(Ledger(root), ChargeQuestion(run_id="run", device_id="d", hour_ns=T0_NS), test_tenures.BOOK)
    assert made_of.faults == []
    assert sum("headroom, not lent" in text for text in sums(made_of)) == 2
    later = [device("left", 37), device("joined", 40, pool="rollout"), slice_(40, rollout=2), device("left", 42)]
    write_ledger([*later, device("joined", 50), slice_(50, idle=1.3), device("left", 51.3)], root=root)
    again = charges.price(Ledger(root), test_tenures.BOOK).frame
    (root / "pricing.duckdb").unlink(missing_ok=True)
    assert again.equals(charges.price(Ledger(root), test_tenures.BOOK).frame)


@pytest.mark.usefixtures("ledgers_folder")
@on_any_ledger
def test_every_charge_of_any_ledger_re_adds(made: Made) -> None:
    root, frame = root_of(made), priced(made).frame
    runs = frame.select("run_id", "fleet_run_id", "device_id", "hour").unique(maintain_order=True)
    shared = runs.filter(pl.col("run_id") != pl.col("fleet_run_id"))
    # What an RL run has of a shared device, by itself, and with all that others have of it.
    for run_id, fleet, device_id, hour in shared.head(1).iter_rows():
        asked = ChargeQuestion(run_id=run_id, device_id=device_id, hour_ns=nanoseconds(hour))
        explained = explain(Ledger(root), asked, ANY_BOOK)
        assert (explained.faults, explained.device_hour.run_id) == ([], fleet)
        own = frame.filter(run_id=run_id, device_id=device_id, hour=hour)
        assert explained.amount.value == pricing.total(own)
    hours = frame.select("fleet_run_id", "device_id", "hour").unique(maintain_order=True).head(1)
    total = 0
    for run_id, device_id, hour in hours.iter_rows():
        asked = ChargeQuestion(run_id=run_id, device_id=device_id, hour_ns=nanoseconds(hour))
        explained = explain(Ledger(root), asked, ANY_BOOK)
        assert explained.faults == []
        total += int(explained.amount.value or 0)
    assert total == pricing.total(frame.join(hours, on=["fleet_run_id", "device_id", "hour"]))


def test_an_explanation_is_a_chain_of_lines(fleet_kept: Path) -> None:
    made = explain(Ledger(fleet_kept), ChargeQuestion(bucket="rollout"), BOOK)
    text = shown(elements(made, with_events=True))
    assert "$0.900, as the ledger is now  [amortized; USD, live]" in text
    assert "run run, device s0, hour 2026-06-01; 3 charges" in text
    assert "<- price: $3.60 for each hour of h100-sxm" in text
    assert "   re-adds     900,000,000 x 63.8298% (accepted" in text
    assert "and 3 more sums that re-add" in text
    assert "writer test, 6 events, seq 3 to 10, in live/test/000000/" in text
    assert "its hash chain holds" in text
    assert "slices: 3 events" in text
    assert "slices: 3 events" not in shown(elements(made, with_events=False))


def stay(run_id: str, t0_ns: int, t1_ns: int) -> Stay:
    return Stay(run_id, "d", "G0", "serving", "h100", t0_ns, t1_ns)


def test_time_is_cut_equally_where_it_is_shared_and_the_first_by_name_has_what_is_left() -> None:
    a, b, c = ((name, "d", "serving", "h100") for name in "abc")
    parts = held([stay("b", 0, H + 5), stay("c", H - 10, H), stay("a", H - 10, 2 * H)], 0)
    assert parts == {a: Held(10, 4, (b, c)), b: Held(H, H - 7, (a, c)), c: Held(10, 3, (a, b))}
    assert held([stay("b", 0, H + 5), stay("a", H - 10, 2 * H)], H)[b] == Held(5, 2, (a,))
    assert held([stay("b", 0, H)], H) == {}


def test_the_charge_of_a_shared_hour_says_with_whom_and_re_adds(write_ledger: Any) -> None:
    made = [slice_(0, serving=3600), slice_(3600, serving=1801, idle=1799)]
    root: Path = write_ledger([run(), device("joined", 0), *made, power(3600, 7200, KILOWATT_MW), device("left", 7200)])
    other = [run(at_us=us(9)), device("joined", 5000, "x"), slice_(6000, "x", rollout=900), device("left", 7200, "x")]
    write_ledger(other, root=root, writer="other", run_id="other")
    asked = ChargeQuestion(run_id="run", hour_ns=T0_NS + H)
    explained = explain(Ledger(root), asked, test_tenures.BOOK)
    assert explained.faults == []
    (shared,) = [step for step in explained.steps if step.title == "shared"]
    assert "1 h 00 min 00 s of the hour, some of it together with x of run other" in shared.says
    assert shared.sums[0].charged == 2500 * S
    assert any("the run's part, 2,500,000,000,000 of 3,600,000,000,000 ns" in step.says for step in explained.steps)
    closed = close.close(Ledger(root), Period(T0_NS, T0_NS + 2 * H), test_tenures.BOOK, with_open_runs=True)
    (booked,) = explain_closed(Ledger(root), asked, closed.close_id)
    assert (booked.faults, booked.amount.value) == ([], explained.amount.value)


def test_devices_that_change_places_within_an_hour_share_nothing(write_ledger: Any) -> None:
    """Two runs swap two GPUs at the half hour: neither ever holds what the other does."""
    root = None
    for run_id, *gpus in (("run", GPU, "GPU-77aa"), ("other", "GPU-77aa", GPU)):
        made = [run(), device("joined", 0, hardware_id=gpus[0]), slice_(0, serving=1800)]
        made += [device("joined", 1800, hardware_id=gpus[1]), slice_(1800, idle=1800), device("left", 3600)]
        root = write_ledger(made, root=root, writer=run_id, run_id=run_id)
    assert root is not None
    explained = explain(Ledger(root), ChargeQuestion(run_id="run", hour_ns=T0_NS), test_tenures.BOOK)
    assert (explained.faults, explained.amount.value) == ([], 2_350_000_000)
    assert not [step for step in explained.steps if step.title == "shared"]
    closed = close.close(Ledger(root), Period(T0_NS, T0_NS + H), test_tenures.BOOK, with_open_runs=True)
    (booked,) = explain_closed(Ledger(root), ChargeQuestion(run_id="run", hour_ns=T0_NS), closed.close_id)
    assert (booked.faults, booked.amount.value) == ([], 2_350_000_000)
