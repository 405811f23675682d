"""A device is a device: whichever runs hold it, under whichever name, and however often it comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from benchmarks import price_book
from rose import events
from rose.pricing import charges
from rose.pricing.charges import state
from rose.pricing.export import focus
from rose.pricing.money import PricingError
from rose.pricing.price_books.pricebook import parse
from rose.pricing.run.priced import priced
from tests.pricing.charges.test_pricing import HOUR, T0_NS, S, by, slice_, turn, us
from tests.pricing.export.conftest import whole_bill

GPU = "GPU-5c1e"
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


def run(name: str = "n", **fields: Any) -> events.Run:
    return events.Run(**({"action": "started", "name": name, "at_us": us(0)} | fields))


def device(action: Any, at_s: float, device_id: str = "d", **fields: Any) -> events.Device:
    given = {"pool": "serving", "device_class": "h100-sxm", "hardware_id": GPU, "at_us": us(at_s)} | fields
    return events.Device(action=action, device_id=device_id, t_ns=T0_NS + int(at_s * S), **given)


def power(t0_s: int, t1_s: int, power_mw: int = 1_000_000) -> events.Power:
    return events.Power(
        device_id="d", t0_ns=T0_NS + t0_s * S, t1_ns=T0_NS + t1_s * S, power_mw=power_mw, source="rapl", at_us=us(t1_s)
    )


def tenures(result: charges.Charges) -> list[tuple[Any, ...]]:
    return [
        (stay.run_id, stay.pool, stay.device_class, (stay.t0_ns - T0_NS) / HOUR, (stay.t1_ns - T0_NS) / HOUR)
        for stay in result.stays
    ]


def test_time_away_is_not_billed(write_ledger: Any) -> None:
    """Three hours of a device that was away for the second of four: $7.05, not $9.40."""
    made = [
        run(),
        device("joined", 0),
        slice_(0, serving=3600),
        device("left", 3600),
        device("joined", 7200),
        slice_(7200, serving=3600, idle=3600),
        device("left", 14400),
    ]
    result = charges.price(write_ledger(made), BOOK)
    assert result.total_nano == 7_050_000_000
    assert by(result.frame, "bucket")["serving"] == (7200 * S, 0, 4_700_000_000)
    assert tenures(result) == [("run", "serving", "h100-sxm", 0, 1), ("run", "serving", "h100-sxm", 2, 4)]


def test_a_device_that_joins_again_while_it_is_there_goes_on(write_ledger: Any) -> None:
    """An agent that died and was started again: nobody said that the device was gone meanwhile."""
    made = [run(), device("joined", 0), slice_(0, serving=900), device("joined", 1800), slice_(1800, serving=1800)]
    result = charges.price(write_ledger(made), BOOK)
    assert by(result.frame, "bucket") == {
        "serving": (2700 * S, 0, 1_762_500_000),
        "unaccounted": (900 * S, 0, 587_500_000),
    }
    assert tenures(result) == [("run", "serving", "h100-sxm", 0, 1)]


@pytest.mark.parametrize(
    ("changed", "total_nano", "leaves"),
    # Half an hour at 2.35, then one at what it came back as.
    [
        ({"device_class": "l4"}, 1_175_000_000 + 500_000_000, True),
        ({"pool": "rollout"}, 1_175_000_000 + 1_000_000_000, False),
    ],
)
def test_another_class_or_pool_changes_the_price_from_then_on(
    write_ledger: Any, changed: dict[str, Any], total_nano: int, leaves: bool
) -> None:
    made = [
        run(),
        device("joined", 0),
        slice_(0, serving=1800),
        power(0, 1800),
        *([device("left", 1800)] if leaves else []),
        device("joined", 1800, **changed),
        slice_(1800, rollout=1800),
        slice_(3600, idle=1800),
    ]
    result = charges.price(write_ledger(made), BOOK)
    capacity = result.frame.filter(kind="capacity")
    assert capacity["cost_nano"].sum() == total_nano
    assert result.frame.filter(kind="energy").select("device_class", "pool", "cost_nano").rows() == [
        ("h100-sxm", "serving", 50_000_000)
    ]
    assert by(capacity.filter(bucket="serving"), "device_class", "pool") == {
        ("h100-sxm", "serving"): (1800 * S, 0, 1_175_000_000)
    }
    later = {"device_class": "h100-sxm", "pool": "serving"} | changed
    assert by(capacity.filter(pl.col("bucket") != "serving"), "device_class", "pool") == {
        (later["device_class"], later["pool"]): (3600 * S, 0, total_nano - 1_175_000_000)
    }
    assert [row[3:] for row in tenures(result)] == [(0, 0.5), (0.5, 1.5)]


def test_tokens_are_of_the_pool_that_the_device_was_in(write_ledger: Any) -> None:
    made = [
        run(),
        device("joined", 0),
        slice_(0, rollout=1800),
        turn("a", 900, 70),
        device("joined", 1800, pool="rollout"),
        slice_(1800, rollout=1800),
        turn("b", 2700, 30),
    ]
    root = write_ledger(made)
    with priced(root, "run", BOOK) as result:
        assert [result.tokens[name].useful for name in ("borrowed", "dedicated")] == [70, 30]
        assert [device.cost_nano_usd for device in result.allocation.devices] == [500_000_000, 1_175_000_000]


def test_an_export_names_the_device_and_counts_it_once(write_ledger: Any, tmp_path: Path) -> None:
    root = None
    for name in ("a", "b"):
        made = [run(), device("joined", 0, name), slice_(0, name, serving=3600), device("left", 3600, name)]
        root = write_ledger(made, root=root, writer=name, run_id=name)
    assert root is not None
    exported = whole_bill(root, BOOK)
    focus.write(exported, tmp_path / "focus.parquet")
    used = pl.read_parquet(tmp_path / "focus.parquet").filter(ChargeCategory="Usage")
    assert used.select("ResourceId", "ResourceName").rows() == [(GPU, "a"), (GPU, "b")]


def test_two_runs_on_one_device_at_a_time_are_billed_once(write_ledger: Any) -> None:
    """Two hours, the second of them with another run: $4.70, not $7.05. Each has half of what both hold."""
    made = [slice_(0, serving=3600), slice_(3600, serving=1800, idle=1800)]
    root = write_ledger([run(), device("joined", 0), *made, device("left", 7200)])
    other = [run("o"), device("joined", 3600, "x"), slice_(3600, "x", rollout=900), device("left", 7200, "x")]
    write_ledger(other, root=root, writer="other", run_id="other")
    result = charges.price(root, BOOK)
    assert result.total_nano == 4_700_000_000
    assert by(result.frame, "run_id", "bucket") == {
        ("run", "serving"): (4500 * S, 0, 2_937_500_000),
        ("run", "idle"): (900 * S, 0, 587_500_000),
        ("other", "rollout"): (450 * S, 0, 293_750_000),
        ("other", "unaccounted"): (1350 * S, 0, 881_250_000),
    }
    assert set(result.frame["hardware_id"]) == {GPU}
    for run_id in ("run", "other"):
        alone = charges.price(root, BOOK, run_id=run_id)
        assert alone.frame.equals(result.frame.filter(run_id=run_id))
        assert {stay.run_id for stay in alone.stays} == {run_id}


def test_other_hardware_under_the_same_name_is_another_device_from_then_on(write_ledger: Any) -> None:
    """An hour of one GPU, an hour away, an hour of another one; the other run has the second GPU in the first hour."""
    other_gpu = "GPU-77aa"
    root = write_ledger(
        [
            run(),
            device("joined", 0),
            slice_(0, serving=3600),
            device("left", 3600),
            device("joined", 7200, hardware_id=other_gpu),
            slice_(7200, serving=3600),
            device("left", 10800, hardware_id=None),
        ]
    )
    other = [run(), device("joined", 0, hardware_id=other_gpu), slice_(0, serving=3600), device("left", 3600)]
    write_ledger(other, root=root, writer="other", run_id="other")
    result = charges.price(root, BOOK)
    assert result.total_nano == 7_050_000_000
    assert by(result.frame, "run_id", "hardware_id") == {
        ("run", GPU): (3600 * S, 0, 2_350_000_000),
        ("run", other_gpu): (3600 * S, 0, 2_350_000_000),
        ("other", other_gpu): (3600 * S, 0, 2_350_000_000),
    }


def test_hardware_that_changes_while_the_device_is_there_changes_at_that_time(write_ledger: Any) -> None:
    """Hardware is told again only where it changed: a join that does not say goes on with what was said before."""
    made = [run(), device("joined", 0, hardware_id=None), device("joined", 600), slice_(0, idle=1800)]
    made += [device("joined", 1800, hardware_id="GPU-77aa"), device("joined", 2400, hardware_id=None)]
    result = charges.price(write_ledger([*made, slice_(1800, idle=1800)]), BOOK)
    assert by(result.frame, "hardware_id") == {
        GPU: (1800 * S, 0, 1_175_000_000),
        "GPU-77aa": (1800 * S, 0, 1_175_000_000),
    }


def test_what_does_not_divide_goes_to_the_first_run_by_name(write_ledger: Any) -> None:
    """Three runs share 10,000 ns and the 7 nano-dollars that they cost."""
    root = None
    for name in ("c", "a", "b"):
        joined = [run(), device("joined", 0), slice_(0, idle=1e-5), device("left", 1e-5)]
        root = write_ledger(joined, root=root, writer=name, run_id=name)
    assert root is not None
    result = charges.price(root, BOOK)
    assert by(result.frame, "run_id") == {"a": (3334, 0, 3), "b": (3333, 0, 2), "c": (3333, 0, 2)}


def test_each_of_two_runs_pays_its_part_at_the_price_of_what_it_has_the_device_as(write_ledger: Any) -> None:
    root = write_ledger([run(), device("joined", 0), slice_(0, serving=3600), device("left", 3600)])
    other = [run(), device("joined", 0, pool="rollout"), slice_(0, rollout=3600), device("left", 3600, pool="rollout")]
    write_ledger(other, root=root, writer="other", run_id="other")
    assert by(charges.price(root, BOOK).frame, "run_id") == {
        "run": (1800 * S, 0, 1_175_000_000),
        "other": (1800 * S, 0, 500_000_000),
    }


def test_one_device_cannot_be_of_two_classes_at_once(write_ledger: Any) -> None:
    """A run with a cheaper class on the same hardware would cut the bill; one that comes after the other may be."""
    root = write_ledger([run(), device("joined", 0), slice_(0, serving=3600), device("left", 3600)])
    other = [run(), device("joined", 1800, "x", device_class="l4"), device("left", 7200, "x", device_class="l4")]
    write_ledger(other, root=root, writer="other", run_id="other")
    with pytest.raises(PricingError) as caught:
        charges.price(root, BOOK, run_id="run")
    for name in (GPU, "run other, x: l4", "run run, d: h100-sxm", str(T0_NS + 1800 * S), str(T0_NS + 3600 * S)):
        assert name in str(caught.value)
    later = charges.price(root, BOOK, from_ns=T0_NS + HOUR)
    assert by(later.frame, "run_id", "device_class") == {("other", "l4"): (3600 * S, 0, 500_000_000)}


def test_power_that_two_runs_read_of_one_device_is_billed_once(write_ledger: Any) -> None:
    root = write_ledger([run(), device("joined", 0), slice_(0, idle=3600), power(0, 3600)])
    other = [run(), device("joined", 0), slice_(0, idle=3600), power(1800, 3600)]
    write_ledger(other, root=root, writer="other", run_id="other")
    energy = charges.price(root, BOOK).frame.filter(kind="energy")
    # One kilowatt-hour, of which the second half was read by both.
    assert energy.select("run_id", "cost_nano").rows() == [("other", 25_000_000), ("run", 75_000_000)]


def test_devices_of_one_name_are_one_only_where_the_ledger_says_so(write_ledger: Any) -> None:
    """Other hosts, and ledgers from before devices said what they are: each run has its own."""
    root = None
    for name, hardware_id in (("a", "node-1/cores-0"), ("b", "node-2/cores-0"), ("c", None), ("d", None)):
        made = [run(), device("joined", 0, hardware_id=hardware_id), slice_(0, idle=3600)]
        root = write_ledger(made, root=root, writer=name, run_id=name)
    assert root is not None
    result = charges.price(root, BOOK)
    assert result.total_nano == 4 * 2_350_000_000
    assert result.frame["hardware_id"].to_list() == ["node-1/cores-0", "node-2/cores-0", "c/d", "d/d"]


def test_two_names_in_one_run_share_their_device(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), device("joined", 0, "e"), slice_(0, serving=3600), slice_(0, "e", rollout=3600)]
    result = charges.price(write_ledger(made), BOOK)
    assert by(result.frame, "device_id") == {"d": (1800 * S, 0, 1_175_000_000), "e": (1800 * S, 0, 1_175_000_000)}


def test_simulated_time_never_shares_with_live_time(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), slice_(0, idle=3600)]
    root = write_ledger(made, provenance="live")
    write_ledger(made, root=root, writer="other", run_id="other", provenance="simulated")
    assert charges.price(root, BOOK, provenance="live").total_nano == 2_350_000_000


def test_time_between_two_tenures_is_nobodys(write_ledger: Any) -> None:
    made = [run(), device("joined", 0), device("left", 600), device("joined", 1200), slice_(0, idle=1800)]
    with pytest.raises(PricingError, match="outside"):
        charges.price(write_ledger(made), BOOK)


def test_what_arrives_later_of_another_run_divides_what_was_charged_before(
    write_ledger: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kept charges give way: to a run that begins, that reports again after hours, that has left before, and to a
    device that says later what it came back as."""
    monkeypatch.setattr(state, "KEPT_EVENTS", 0)
    root: Path = write_ledger([run(), device("joined", 0), slice_(0, serving=3600, idle=5 * 3600)])

    def bill() -> dict[Any, Any]:
        frame = charges.price(root, BOOK).frame
        return {name: amounts[2] / 2_350_000_000 for name, amounts in by(frame, "run_id").items()}

    def add(*made: events.Event) -> None:
        write_ledger(made, root=root, writer="other", run_id="other")

    assert bill() == {"run": 6}
    add(run(), device("joined", 3600), slice_(7200, rollout=1800))
    assert bill() == {"run": 5.25, "other": 0.75}
    add(slice_(14400, rollout=3600))
    assert bill() == {"run": 4, "other": 2}
    add(device("left", 18000))
    assert bill() == {"run": 4, "other": 2}
    add(device("joined", 18000, pool="rollout"), slice_(18000, rollout=3600))
    assert bill() == {"run": 3.5, "other": pytest.approx(2 + 0.5 / 2.35)}
    # From here on it is known to have been away from 9000 s on.
    add(device("left", 9000), device("joined", 14400))
    assert bill() == {"run": 4.25, "other": pytest.approx(1.25 + 0.5 / 2.35)}
