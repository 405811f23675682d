from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.ledger import Ledger
from rose.ledger.verify import faulty_events
from rose.pricing import charges
from rose.pricing.charges import state
from rose.pricing.charges.allocation import Allocation, allocate
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from tests.ledger.conftest import ask
from tests.pricing import any_event

T0_NS = 1_780_272_000 * 10**9  # 2026-06-01 UTC
MARCH_NS = 1_772_323_200 * 10**9  # 2026-03-01 UTC: the example's H100 goes from 1.70 to 2.35
S = 10**9
BOOK = pricebook.load("example")


def run_events(*more: events.Event) -> list[events.Event]:
    return [events.Run(action="started", name="n", at_us=1), *more]


def device(
    device_id: str, t0_ns: int, t1_ns: int | None, pool: Any = "serving", cls: str = "h100-sxm"
) -> list[events.Event]:
    joined = any_event.device(device_id=device_id, t_ns=t0_ns, pool=pool, device_class=cls, at_us=2)
    return [joined] if t1_ns is None else [joined, replace(joined, action="left", t_ns=t1_ns, at_us=3)]


def slice_(device_id: str, t0_ns: int, **ns: int) -> events.DeviceSlice:
    return any_event.slice_(t0_ns, device_id, **ns)


def allocated(root: Path) -> Allocation:
    return allocate(charges.price(Ledger(root), BOOK, run_id="run"))


def test_time_and_dollars_of_the_sample(sample_kept: Path) -> None:
    allocation = allocated(sample_kept)
    # Two hours at 2.35, and 2 GB of weights between regions at 0.02.
    assert allocation.cost_nano_usd == 4_740_000_000
    work = {"serving": 940_000_000, "rollout": 2_350_000_000, "train": 705_000_000, "sync": 94_000_000}
    rest = {"activation": 47_000_000, "headroom": 141_000_000, "idle": 423_000_000, "transfer": 40_000_000}
    assert allocation.amortized_nano_usd() == work | rest | {"unaccounted": 0, "energy": 0}
    # s0: serving 0.94 + headroom 0.141 = 1.081 and rollout 0.94 + 0.047 + 0.047 = 1.034 share 0.235 of idle.
    loaded = allocation.in_pools("serving").fully_loaded_nano_usd()
    # Shared out row by row, so that a row may have a nano-dollar more than its bucket would.
    assert loaded["serving"] == 1_081_000_000 + 235_000_000 * 1081 // 2115 + 1
    assert loaded["serving"] + loaded["rollout"] == 2_350_000_000 + 40_000_000


def test_time_that_no_slice_reports_is_shown_and_paid_for(write_ledger: Any) -> None:
    hour = 3600 * 10**9
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + hour), slice_("a", T0_NS + 10 * S, idle=hour - 15 * S)))
    allocation = allocated(root)
    assert allocation.bucket_ns()["unaccounted"] == 15 * S
    assert sum(allocation.bucket_ns().values()) == hour
    assert allocation.cost_nano_usd == 2_350_000_000
    assert allocation.amortized_nano_usd()["unaccounted"] == 9_791_667  # 15 s at 2.35 $/h
    assert allocation.fully_loaded_nano_usd()["unaccounted"] == 9_791_667


def test_a_device_that_has_not_left_counts_to_its_last_slice_and_to_the_end_of_an_ended_run(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, None), slice_("a", T0_NS, serving=5_000_000)))
    assert allocated(root).bucket_ns()["unaccounted"] == 0
    write_ledger([events.Run(action="failed", name="n", at_us=T0_NS // 1000 + 7_000)], root=root, writer="second")
    assert allocated(root).bucket_ns()["unaccounted"] == 2_000_000


@pytest.mark.parametrize("strange", [slice_("a", T0_NS - 1, idle=10), slice_("a", T0_NS + 95, idle=10)])
def test_time_outside_of_its_device_counts_nowhere_and_is_named(write_ledger: Any, strange: events.Event) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + 100), slice_("a", T0_NS + 10, serving=5)))
    (root / state.STATE).touch()
    before = allocated(root).bucket_ns()
    write_ledger([strange], root=root, writer="strange")
    for _ in range(2):
        assert allocated(root).bucket_ns() == before
        (root / state.STATE).unlink(missing_ok=True)
    assert [(fault.writer, fault.seq) for fault in faulty_events(root)[1]] == [("strange", 0)]
    assert ask(root, "SELECT serving_ns FROM device_slice") == [(5,)]


def test_a_slice_counts_once_its_device_joined_and_no_more_once_it_had_left(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + 50), slice_("a", T0_NS + 50, idle=10)))
    (root / state.STATE).touch()
    joined, left = (replace(made, at_us=4 + made.at_us) for made in device("a", T0_NS + 50, T0_NS + 55))
    for made, idle_ns, unaccounted_ns in (([], 0, 50), ([joined], 10, 50), ([left], 0, 55)):
        write_ledger(made, root=root)
        buckets = allocated(root).bucket_ns()
        assert (buckets["idle"], buckets["unaccounted"]) == (idle_ns, unaccounted_ns)


def test_time_of_a_device_that_never_joined_is_not_charged(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + 100), slice_("b", T0_NS, idle=10)))
    assert allocated(root).bucket_ns()["unaccounted"] == 100


@pytest.mark.parametrize(
    ("slices", "serving_ns", "idle_ns"),
    [
        ([slice_("a", T0_NS, idle=10), slice_("a", T0_NS + 9, serving=10)], 0, 10),
        ([slice_("a", T0_NS, idle=90), slice_("a", T0_NS + 5, serving=5), slice_("a", T0_NS + 20, serving=5)], 0, 90),
    ],
)
def test_time_that_is_accounted_for_already_counts_once(
    write_ledger: Any, slices: list[events.Event], serving_ns: int, idle_ns: int
) -> None:
    buckets = allocated(write_ledger(run_events(*device("a", T0_NS, T0_NS + 100), *slices))).bucket_ns()
    assert (buckets["serving"], buckets["idle"], buckets["unaccounted"]) == (serving_ns, idle_ns, 100 - idle_ns)


def test_the_writer_that_came_first_accounts_for_time_whenever_its_slice_comes(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + 100), slice_("a", T0_NS, idle=10)), writer="z")
    (root / state.STATE).touch()
    for writer, made, idle_ns in (
        ("b", slice_("a", T0_NS + 50, idle=10), 20),
        ("z", slice_("a", T0_NS + 55, serving=10), 10),
        ("b", slice_("a", T0_NS + 64, idle=1), 10),
        ("b", slice_("a", T0_NS + 65, idle=1), 11),
    ):
        write_ledger([made], root=root, writer=writer)
        assert allocated(root).bucket_ns()["idle"] == idle_ns
    kept = allocated(root).bucket_ns()
    (root / state.STATE).unlink()
    assert allocated(root).bucket_ns() == kept


def test_a_slice_over_a_price_change_is_split_by_time(write_ledger: Any) -> None:
    hour = 3600 * 10**9
    begun = MARCH_NS - hour
    made = run_events(*device("a", begun, begun + 4 * hour), slice_("a", begun, serving=2 * hour, rollout=2 * hour))
    allocation = allocated(write_ledger(made))
    # An hour at 1.70 and three at 2.35, each half serving and half rollout.
    assert allocation.cost_nano_usd == 1_700_000_000 + 3 * 2_350_000_000
    assert allocation.amortized_nano_usd()["serving"] == allocation.amortized_nano_usd()["rollout"] == 4_375_000_000


def test_a_run_without_device_time_or_without_a_price_is_refused(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, None)))
    with pytest.raises(PricingError, match="no provisioned device time"):
        allocated(root)
    root = write_ledger(run_events(*device("b", T0_NS, T0_NS + 1, cls="abacus")), writer="b", root=root)
    with pytest.raises(PricingError, match="'abacus'"):
        allocated(root)
