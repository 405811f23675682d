from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rose import events
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges, pricebook, report
from rose.pricing.allocation import Allocation, allocate
from rose.pricing.money import PricingError, charge_nano_usd

T0_NS = 1_780_272_000 * 10**9  # 2026-06-01 UTC
MARCH_NS = 1_772_323_200 * 10**9  # 2026-03-01 UTC: the example's H100 goes from 1.70 to 2.35
S = 10**9
BOOK = pricebook.load("example")


def run_events(*more: events.Event) -> list[events.Event]:
    return [events.Run(action="started", name="n", at_us=1), *more]


def device(
    device_id: str, t0_ns: int, t1_ns: int | None, pool: Any = "serving", cls: str = "h100-sxm"
) -> list[events.Event]:
    joined = events.Device(action="joined", device_id=device_id, t_ns=t0_ns, pool=pool, device_class=cls, at_us=2)
    return [joined] if t1_ns is None else [joined, replace(joined, action="left", t_ns=t1_ns, at_us=3)]


def slice_(device_id: str, t0_ns: int, **ns: int) -> events.DeviceSlice:
    by: dict[str, Any] = {f"{bucket}_ns": ns.get(bucket, 0) for bucket in events.BUCKETS}
    return events.DeviceSlice(device_id=device_id, t0_ns=t0_ns, t1_ns=t0_ns + sum(ns.values()), **by)


def allocated(root: Path) -> Allocation:
    return allocate(charges.price(root, BOOK, run_id="run"))


def test_time_and_dollars_of_the_sample(sample: Path) -> None:
    found = allocated(sample)
    # Two hours at 2.35, and 2 GB of weights between regions at 0.02.
    assert found.cost_nano_usd == 4_740_000_000
    assert found.amortized_nano_usd() == {
        "serving": 940_000_000, "rollout": 2_350_000_000, "train": 705_000_000, "sync": 94_000_000,
        "activation": 47_000_000, "headroom": 141_000_000, "idle": 423_000_000, "unaccounted": 0,
        "transfer": 40_000_000, "energy": 0,
    }  # fmt: skip
    # s0: serving 0.94 + headroom 0.141 = 1.081 and rollout 0.94 + 0.047 + 0.047 = 1.034 share 0.235 of idle.
    loaded = found.of("serving").fully_loaded_nano_usd()
    # Shared out row by row, so that a row may have a nano-dollar more than its bucket would.
    assert loaded["serving"] == 1_081_000_000 + 235_000_000 * 1081 // 2115 + 1
    assert loaded["serving"] + loaded["rollout"] == 2_350_000_000 + 40_000_000


def test_time_that_no_slice_reports_is_shown_and_paid_for(write_ledger: Any) -> None:
    hour = 3600 * 10**9
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + hour), slice_("a", T0_NS + 10 * S, idle=hour - 15 * S)))
    found = allocated(root)
    assert found.bucket_ns()["unaccounted"] == 15 * S
    assert sum(found.bucket_ns().values()) == hour
    assert found.cost_nano_usd == 2_350_000_000
    assert found.amortized_nano_usd()["unaccounted"] == 9_791_667  # 15 s at 2.35 $/h
    assert found.fully_loaded_nano_usd()["unaccounted"] == 9_791_667


def test_a_device_that_has_not_left_counts_to_its_last_slice_and_to_the_end_of_an_ended_run(write_ledger: Any) -> None:
    made = run_events(*device("a", T0_NS, None), slice_("a", T0_NS, serving=5_000_000))
    root = write_ledger(made)
    assert allocated(root).bucket_ns()["unaccounted"] == 0
    write_ledger([events.Run(action="failed", name="n", at_us=T0_NS // 1000 + 7_000)], root=root, writer="second")
    assert allocated(root).bucket_ns()["unaccounted"] == 2_000_000


@pytest.mark.parametrize(
    ("slices", "fault"),
    [
        ([slice_("a", T0_NS, idle=10), slice_("a", T0_NS + 9, idle=10)], "overlaps a slice that ends at"),
        ([slice_("a", T0_NS, idle=90), slice_("a", T0_NS + 5, idle=5), slice_("a", T0_NS + 20, idle=5)], "overlaps"),
        ([slice_("a", T0_NS - 1, idle=10)], "outside the device's provisioned time"),
        ([slice_("a", T0_NS + 95, idle=10)], "outside the device's provisioned time"),
        ([slice_("b", T0_NS, idle=10)], "b: slice .* outside the device's provisioned time"),
    ],
)
def test_time_that_would_be_paid_twice_is_refused(write_ledger: Any, slices: list[events.Event], fault: str) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, T0_NS + 100), *slices))
    with pytest.raises(PricingError, match=fault):
        allocated(root)


def test_a_slice_over_a_price_change_is_split_by_time(write_ledger: Any) -> None:
    hour = 3600 * 10**9
    begun = MARCH_NS - hour
    made = run_events(*device("a", begun, begun + 4 * hour), slice_("a", begun, serving=2 * hour, rollout=2 * hour))
    found = allocated(write_ledger(made))
    # An hour at 1.70 and three at 2.35, each half serving and half rollout.
    assert found.cost_nano_usd == 1_700_000_000 + 3 * 2_350_000_000
    assert found.amortized_nano_usd()["serving"] == found.amortized_nano_usd()["rollout"] == 4_375_000_000


def test_a_run_without_device_time_or_without_a_price_is_refused(write_ledger: Any) -> None:
    root = write_ledger(run_events(*device("a", T0_NS, None)))
    with pytest.raises(PricingError, match="no provisioned device time"):
        allocated(root)
    root = write_ledger(run_events(*device("b", T0_NS, T0_NS + 1, cls="abacus")), writer="b", root=root)
    with pytest.raises(PricingError, match="'abacus'"):
        allocated(root)


FATES = st.sampled_from(["accepted", "rejected", "stale", "lost", "open"])


@st.composite
def ledgers(draw: st.DrawFn) -> list[events.Event]:
    """A run of up to four devices with gaps between their slices, around a price change, and up to ten trajectories."""
    made = run_events()
    devices = []
    for n in range(draw(st.integers(1, 4))):
        at_ns = joined_ns = MARCH_NS + draw(st.integers(-(10**13), 10**13))
        slices: list[events.Event] = []
        for _ in range(draw(st.integers(0, 4))):
            at_ns += draw(st.sampled_from([0, 0, 1, 10**9]))
            times = draw(st.lists(st.integers(0, 10**13), min_size=7, max_size=7))
            slices.append(slice_(f"d{n}", at_ns, **dict(zip(events.BUCKETS, times, strict=True))))
            at_ns += sum(times)
        left_ns = at_ns + draw(st.integers(1, 10**12))
        devices.append(f"d{n}")
        pool = draw(st.sampled_from(["serving", "rollout", "train"]))
        made += [*device(f"d{n}", joined_ns, left_ns, pool, draw(st.sampled_from(["h100-sxm", "cpu-core"]))), *slices]
    for n in range(draw(st.integers(0, 10))):
        made += trajectory(
            n,
            draw(FATES),
            draw(st.lists(st.tuples(st.sampled_from([*devices, "?"]), st.integers(0, 10**6)), min_size=1, max_size=3)),
        )
    for n in range(draw(st.integers(0, 5))):
        made += closed_lease(n, draw(st.sampled_from([None, "released", "preempted", "expired"])))
        lost = draw(st.integers(0, 1000))
        made.append(events.Preemption(action="cut", reason="r", device_id=devices[0], tokens_lost=lost, at_us=9))
    return made


def trajectory(n: int, fate: str, attempts: list[tuple[str, int]]) -> list[events.Event]:
    ids: dict[str, Any] = {"trajectory_id": f"t{n}", "group_id": f"g{n // 3}", "step": n // 3}
    made: list[events.Event] = [
        events.Turn(
            **ids, turn=0, attempt=k, device_id=device_id, outcome="completed", placement="lease", prompt_tokens=1,
            cached_tokens=0, output_tokens=tokens, answer_tokens=1, queue_ns=0, duration_ns=1, at_us=5,
        )
        for k, (device_id, tokens) in enumerate(attempts)
    ]  # fmt: skip
    if fate != "open":
        made.append(
            events.Trajectory(
                **ids, task="t", outcome="lost" if fate == "lost" else "finished", turns=1, prompt_tokens=1,
                output_tokens=sum(tokens for _, tokens in attempts), answer_tokens=1, staleness=0,
                duration_ns=1, at_us=6,
            )
        )  # fmt: skip
    if fate not in ("open", "lost"):
        accepted = fate != "rejected"
        made.append(
            events.Verdict(
                **ids, verifier="v", reward=1.0, threshold=1.0, accepted=accepted, stale=fate == "stale", at_us=7
            )
        )
    return made


def closed_lease(n: int, by: Any) -> list[events.Event]:
    granted = events.Lease(
        action="granted", lease_id=f"l{n}", device_id="d0", kv_budget_bytes=1, compute_share=1.0,
        expires_at_us=10**7, at_us=10,
    )  # fmt: skip
    return [granted] if by is None else [granted, replace(granted, action=by, at_us=20)]


@settings(max_examples=12, deadline=None)
@given(ledgers())
def test_the_identities_hold_on_any_ledger(made: list[events.Event]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "ledger"
        with LedgerWriter.open(root, "w", "run", "simulated") as writer:
            for event in made:
                writer.record(event, durable=False)
        out = json.loads(json.dumps(report.build(root).to_json()))
    slices = [event for event in made if isinstance(event, events.DeviceSlice)]
    joined = {e.device_id: e for e in made if isinstance(e, events.Device) and e.action == "joined"}
    left = {e.device_id: e for e in made if isinstance(e, events.Device) and e.action == "left"}

    # Bucket nanoseconds sum to provisioned ones, for each device and for the fleet, and are those of the slices.
    for row in out["devices"]:
        own = [s for s in slices if s.device_id == row["device_id"]]
        provisioned = left[row["device_id"]].t_ns - joined[row["device_id"]].t_ns
        assert sum(figure["value"] for figure in row["time"].values()) == row["provisioned"]["value"] == provisioned
        for bucket in events.BUCKETS:
            assert row["time"][bucket]["value"] == sum(getattr(s, f"{bucket}_ns") for s in own)
    time = [figure["value"] for figure in out["device_time"].values()]
    assert sum(time) == out["provisioned"]["value"] == sum(row["provisioned"]["value"] for row in out["devices"])

    # Bucket dollars sum to the fleet's dollars in both views that sum to the bill: each stretch between price changes,
    # of any class, is rounded to the nano-dollar once.
    fleet = 0
    for device_id, stay in joined.items():
        changes_ns = [c for c in BOOK.change_times_ns() if stay.t_ns < c < left[device_id].t_ns]
        for from_ns, to_ns in pairwise([stay.t_ns, *changes_ns, left[device_id].t_ns]):
            ((_, _, price),) = BOOK.device_prices(stay.device_class, from_ns, to_ns)
            fleet += charge_nano_usd(price.usd_per_hour, to_ns - from_ns)
    for view in ("amortized", "fully_loaded"):
        parts = {name: figure["value"] for name, figure in out[view].items()}
        total = parts.pop("total")
        assert sum(parts.values()) == total == fleet == sum(row["cost"]["value"] for row in out["devices"])

    # Tokens: generated = accepted + rejected + stale + lost + open, each counted once, the unknown device's shown.
    turns = sum(e.output_tokens for e in made if isinstance(e, events.Turn))
    thrown = sum(e.tokens_lost or 0 for e in made if isinstance(e, events.Preemption))
    generated = 0
    for tokens in out["tokens"].values():
        fates = sum(tokens[fate]["value"] for fate in ("accepted", "rejected", "stale", "lost", "open"))
        assert fates == tokens["generated"]["value"]
        generated += fates
    assert generated == turns + thrown

    # Leases: granted = released + preempted + expired + open.
    leases = {name: figure["value"] for name, figure in out["leases"].items()}
    granted = sum(isinstance(e, events.Lease) and e.action == "granted" for e in made)
    assert leases["released"] + leases["preempted"] + leases["expired"] + leases["open"] == leases["granted"] == granted
