"""A device is a device: whichever runs hold it, under whichever name, and however often it comes and goes."""

import dataclasses
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rose import events
from rose.ledger.files import catalog
from rose.ledger.ledger import Ledger
from rose.pricing import charges
from rose.pricing.charges import state
from rose.pricing.money import PricingError
from rose.pricing.period import Period
from rose.pricing.price_books.pricebook import parse
from rose.pricing.run import tokens
from tests.pricing.charges.test_pricing import HOUR, T0_NS, S, by, power, slice_, turn, us
from tests.pricing.closing.conftest import write
from tests.pricing.price_books import price_book

GPU = "GPU-5c1e"
KILOWATT_MW = 1_000_000
BOOK = parse(
    price_book.toml(
        "b",
        price_book.device("h100-sxm", "2.35"),
        price_book.device("l4", "0.5"),
        price_book.device("h100-sxm", "1.0", pool="rollout"),
        ("power", {"class": "h100-sxm", "idle_w": 267, "load_w": 680}),
        price_book.electricity("0.1"),
        price_book.LENDING,
        price_book.TOKENS,
    ),
    "b.toml",
)


#: Time, tokens and nano-dollars of half an hour at the dearest price.
HALF_AN_HOUR = (1800 * S, 0, 1_175_000_000)


def run(name: str = "n", **fields: Any) -> events.Run:
    return events.Run(**({"action": "started", "name": name, "at_us": us(0)} | fields))


def device(action: Any, at_s: float, device_id: str = "d", **fields: Any) -> events.Device:
    given = {"pool": "serving", "device_class": "h100-sxm", "hardware_id": GPU, "at_us": us(at_s)} | fields
    return events.Device(action=action, device_id=device_id, t_ns=T0_NS + int(at_s * S), **given)


def tenures(result: charges.Charges, run_id: str) -> list[tuple[Any, ...]]:
    return [
        (stay.pool, stay.device_class, (stay.t0_ns - T0_NS) / HOUR, (stay.t1_ns - T0_NS) / HOUR)
        for stay in result.stays
        if stay.run_id == run_id
    ]


def moved(leaves: bool, **changed: Any) -> list[events.Event]:
    return [
        device("joined", 0),
        slice_(0, serving=1800),
        power(0, 1800, KILOWATT_MW),
        *([device("left", 1800)] if leaves else []),
        device("joined", 1800, **changed),
        slice_(1800, rollout=1800),
        slice_(3600, idle=1800),
    ]


#: Runs by name. Each has hardware of its own, but for those that share it: `x` shares what `x+y` holds.
RUNS: dict[str, list[events.Event]] = {
    "away": [
        device("joined", 0),
        slice_(0, serving=3600),
        device("left", 3600),
        device("joined", 7200),
        slice_(7200, serving=3600, idle=3600),
        device("left", 14400),
    ],
    "again": [device("joined", 0), slice_(0, serving=900), device("joined", 1800), slice_(1800, serving=1800)],
    "class": moved(True, device_class="l4"),
    "pool": moved(False, pool="rollout"),
    "tokens": [
        device("joined", 0),
        slice_(0, rollout=1800),
        turn("a", 900, 70),
        device("joined", 1800, pool="rollout"),
        slice_(1800, rollout=1800),
        turn("b", 2700, 30),
    ],
    "two": [device("joined", 0), slice_(0, serving=3600), slice_(3600, serving=1800, idle=1800), device("left", 7200)],
    "two+other": [device("joined", 3600, "x"), slice_(3600, "x", rollout=900), device("left", 7200, "x")],
    "replaced": [
        device("joined", 0),
        slice_(0, serving=3600),
        device("left", 3600),
        device("joined", 7200, hardware_id="B"),
        slice_(7200, serving=3600),
        device("left", 10800, hardware_id=None),
    ],
    "replaced+other": [device("joined", 0, hardware_id="B"), slice_(0, serving=3600), device("left", 3600)],
    "said": [
        device("joined", 0, hardware_id=None),
        device("joined", 600),
        slice_(0, idle=1800),
        device("joined", 1800, hardware_id="B"),
        device("joined", 2400, hardware_id=None),
        slice_(1800, idle=1800),
    ],
    **{f"few+{name}": [device("joined", 0), slice_(0, idle=1e-5), device("left", 1e-5)] for name in ("c", "a", "b")},
    "part": [device("joined", 0), slice_(0, serving=3600), device("left", 3600)],
    "part+other": [device("joined", 0, pool="rollout"), slice_(0, rollout=3600), device("left", 3600, pool="rollout")],
    "power": [device("joined", 0), slice_(0, idle=3600), power(0, 3600, KILOWATT_MW)],
    "power+other": [device("joined", 0), slice_(0, idle=3600), power(1800, 3600, KILOWATT_MW)],
    "apart+a": [device("joined", 0, hardware_id="node-1/cores-0"), slice_(0, idle=3600)],
    "apart+b": [device("joined", 0, hardware_id="node-2/cores-0"), slice_(0, idle=3600)],
    "apart+c": [device("joined", 0, hardware_id=None), slice_(0, idle=3600)],
    "apart+d": [device("joined", 0, hardware_id=None), slice_(0, idle=3600)],
    "names": [device("joined", 0), device("joined", 0, "e"), slice_(0, serving=3600), slice_(0, "e", rollout=3600)],
}


def on_own_hardware(name: str, made: list[events.Event]) -> Iterator[events.Event]:
    yield run()
    for event in made:
        if isinstance(event, events.Device) and event.hardware_id is not None:
            yield dataclasses.replace(event, hardware_id=f"{name.partition('+')[0]}/{event.hardware_id}")
        else:
            yield event


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tenures") / "ledger"
    for name, made in RUNS.items():
        write(root, on_own_hardware(name, made), name.replace("+", "-"), "live", name)
    simulated = [device("joined", 0, hardware_id=f"away/{GPU}"), slice_(0, idle=3600)]
    return write(root, [run(), *simulated], "simulated", "simulated", "simulated")


@pytest.fixture(scope="module")
def priced(root: Path) -> charges.Charges:
    return charges.price(Ledger(root), BOOK, provenance="live")


def of_case(priced: charges.Charges, case: str) -> pl.DataFrame:
    return priced.frame.filter(pl.col("run_id").str.split("+").list.first() == case)


def test_time_away_is_not_billed(priced: charges.Charges) -> None:
    """Three hours of a device that was away for the second of four: $7.05, not $9.40."""
    frame = of_case(priced, "away")
    assert frame["cost_nano"].sum() == 7_050_000_000
    assert by(frame, "bucket")["serving"] == (7200 * S, 0, 4_700_000_000)
    assert tenures(priced, "away") == [("serving", "h100-sxm", 0, 1), ("serving", "h100-sxm", 2, 4)]


def test_a_device_that_joins_again_while_it_is_there_goes_on(priced: charges.Charges) -> None:
    """An agent that died and was started again: nobody said that the device was gone meanwhile."""
    assert by(of_case(priced, "again"), "bucket") == {
        "serving": (2700 * S, 0, 1_762_500_000),
        "unaccounted": (900 * S, 0, 587_500_000),
    }
    assert tenures(priced, "again") == [("serving", "h100-sxm", 0, 1)]


@pytest.mark.parametrize(
    ("case", "later", "later_nano"),
    [("class", ("l4", "serving"), 500_000_000), ("pool", ("h100-sxm", "rollout"), 1_000_000_000)],
)
def test_another_class_or_pool_changes_the_price_from_then_on(
    priced: charges.Charges, case: str, later: tuple[str, str], later_nano: int
) -> None:
    frame = of_case(priced, case)
    energy = frame.filter(kind="energy").select("device_class", "pool", "cost_nano").rows()
    assert energy == [("h100-sxm", "serving", 50_000_000)]
    capacity = by(frame.filter(kind="capacity"), "device_class", "pool")
    assert capacity == {("h100-sxm", "serving"): HALF_AN_HOUR, later: (3600 * S, 0, later_nano)}
    assert [row[2:] for row in tenures(priced, case)] == [(0, 0.5), (0.5, 1.5)]


def test_tokens_are_of_the_pool_that_the_device_was_in(root: Path, priced: charges.Charges) -> None:
    assert by(of_case(priced, "tokens"), "pool") == {
        "serving": (1800 * S, 70, 1_175_000_000),
        "rollout": (1800 * S, 30, 500_000_000),
    }
    with closing(catalog.connect(root)) as connection:
        counts = tokens.count(connection, "tokens")
    assert [counts[name].useful for name in ("borrowed", "dedicated")] == [70, 30]


def test_two_runs_on_one_device_at_a_time_are_billed_once(root: Path, priced: charges.Charges) -> None:
    frame = of_case(priced, "two")
    assert by(frame, "run_id", "bucket") == {
        ("two", "serving"): (4500 * S, 0, 2_937_500_000),
        ("two", "idle"): (900 * S, 0, 587_500_000),
        ("two+other", "rollout"): (450 * S, 0, 293_750_000),
        ("two+other", "unaccounted"): (1350 * S, 0, 881_250_000),
    }
    assert set(frame["hardware_id"]) == {f"two/{GPU}"}
    alone = charges.price(Ledger(root), BOOK, run_id="two")
    assert alone.frame.equals(frame.filter(run_id="two"))
    assert {stay.run_id for stay in alone.stays} == {"two"}


def test_other_hardware_under_the_same_name_is_another_device_from_then_on(priced: charges.Charges) -> None:
    """An hour of one GPU, an hour away, an hour of another one; the other run has the second GPU in the first hour."""
    assert by(of_case(priced, "replaced"), "run_id", "hardware_id") == {
        ("replaced", f"replaced/{GPU}"): (3600 * S, 0, 2_350_000_000),
        ("replaced", "replaced/B"): (3600 * S, 0, 2_350_000_000),
        ("replaced+other", "replaced/B"): (3600 * S, 0, 2_350_000_000),
    }


def test_hardware_that_changes_while_the_device_is_there_changes_at_that_time(priced: charges.Charges) -> None:
    assert by(of_case(priced, "said"), "hardware_id") == {f"said/{GPU}": HALF_AN_HOUR, "said/B": HALF_AN_HOUR}


def test_a_shared_device_is_divided_to_the_nanosecond_at_the_price_of_each_run_s_pool(priced: charges.Charges) -> None:
    """Three runs share 10,000 ns and the 7 nano-dollars that they cost; the first by name has what does not divide."""
    assert by(of_case(priced, "few"), "run_id") == {"few+a": (3334, 0, 3), "few+b": (3333, 0, 2), "few+c": (3333, 0, 2)}
    parts = by(of_case(priced, "part"), "run_id")
    assert parts == {"part": HALF_AN_HOUR, "part+other": (1800 * S, 0, 500_000_000)}


def test_power_that_two_runs_read_of_one_device_is_billed_once(priced: charges.Charges) -> None:
    energy = of_case(priced, "power").filter(kind="energy")
    assert by(energy, "run_id") == {"power": (0, 0, 75_000_000), "power+other": (0, 0, 25_000_000)}


def test_devices_of_one_name_are_one_only_where_the_ledger_says_so(priced: charges.Charges) -> None:
    apart = of_case(priced, "apart").sort("run_id")
    assert apart["cost_nano"].sum() == 4 * 2_350_000_000
    hosts = ["apart/node-1/cores-0", "apart/node-2/cores-0"]
    assert apart["hardware_id"].to_list() == [*hosts, "apart+c/d", "apart+d/d"]
    # Two names of one device within a run share it.
    assert by(of_case(priced, "names"), "device_id") == {"d": HALF_AN_HOUR, "e": HALF_AN_HOUR}


def test_one_device_cannot_be_of_two_classes_at_once(write_ledger: Any) -> None:
    """A run with a cheaper class on the same hardware would cut the bill; one that comes after the other may be."""
    root = write_ledger([run(), device("joined", 0), slice_(0, serving=3600), device("left", 3600)])
    other = [run(), device("joined", 1800, "x", device_class="l4"), device("left", 7200, "x", device_class="l4")]
    write_ledger(other, root=root, writer="other", run_id="other")
    with pytest.raises(PricingError) as caught:
        charges.price(Ledger(root), BOOK, run_id="run")
    for name in (GPU, "run other, x: l4", "run run, d: h100-sxm", str(T0_NS + 1800 * S), str(T0_NS + 3600 * S)):
        assert name in str(caught.value)
    later = charges.price(Ledger(root), BOOK, Period(T0_NS + HOUR, T0_NS + 2 * HOUR))
    assert by(later.frame, "run_id", "device_class") == {("other", "l4"): (3600 * S, 0, 500_000_000)}


def test_time_between_two_tenures_is_nobodys(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), device("left", 600), device("joined", 1200), slice_(0, idle=1800)]
    frame = charges.price(Ledger(write_ledger(made)), BOOK).frame
    assert frame.select("bucket", "ns").rows() == [("unaccounted", 600 * S)]


def test_what_arrives_later_of_another_run_divides_what_was_charged_before(
    write_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept charges give way: to a run that begins, that reports again after hours, that has left before, and to a
    device that says later what it came back as."""
    monkeypatch.setattr(state, "KEPT_EVENTS", 0)
    root: Path = write_ledger([run(), device("joined", 0), slice_(0, serving=3600, idle=5 * 3600)])

    def bill() -> dict[Any, Any]:
        frame = charges.price(Ledger(root), BOOK).frame
        return {name: amounts[2] / 2_350_000_000 for name, amounts in by(frame, "run_id").items()}

    def add(*made: events.Event) -> None:
        write_ledger(made, root=root, writer="other", run_id="other")

    assert bill() == {"run": 6}
    add(run(), device("joined", 3600), slice_(7200, rollout=1800))
    assert bill() == {"run": 5.25, "other": 0.75}
    add(slice_(14400, rollout=3600))
    assert bill() == {"run": 4, "other": 2}
    add(device("left", 18000), device("joined", 18000, pool="rollout"), slice_(18000, rollout=3600))
    assert bill() == {"run": 3.5, "other": pytest.approx(2 + 0.5 / 2.35)}
    # From here on it is known to have been away from 9000 s on.
    add(device("left", 9000), device("joined", 14400))
    assert bill() == {"run": 4.25, "other": pytest.approx(1.25 + 0.5 / 2.35)}
