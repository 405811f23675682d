from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import charts, data, fleet, link, timeline, window
from dashboard.data import Window
from rose import events
from rose.events import BUCKETS
from rose.pricing import charges
from rose.pricing.document import Report
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook

DRAWN = ("dashboard/fleet_states", "dashboard/fleet_latency", "dashboard/fleet_preemptions")
OF_DEVICES = (
    "fleet_now",
    "fleet_states",
    "fleet_states_daily",
    "time_totals",
    "time_totals_daily",
    "fleet_leases",
    "fleet_latency",
    "fleet_latency_daily",
)


@pytest.fixture
def run(ended: Path) -> data.Run:
    (run,) = data.runs(ended)
    return run


def test_bins_of_states_lose_nothing_and_are_few(ended: Path, built: Report, run: data.Run) -> None:
    states = data.in_window(ended, "dashboard/fleet_states", run, window.whole(run))
    for bucket in BUCKETS:
        assert states[bucket].sum() == built.device_time[bucket].value
    assert states.group_by("lane").agg(pl.col("bin").n_unique())["bin"].max() <= 200
    assert states["lent"].sum() == 8 * 23 * 10**9
    drawn = timeline.states(states)
    shares = drawn.select(pl.sum_horizontal(f"{bucket}_share" for bucket in BUCKETS)).to_series()
    assert shares.to_list() == pytest.approx([1.0] * len(shares))
    assert set(drawn.filter(lane="t0")["state"]) == {"idle", "train"}


@pytest.mark.long
def test_what_is_pointed_at_is_marked_in_every_lane(
    ended: Path, run: data.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(charts, "is_dark", lambda: False)
    lanes = timeline.chart(fleet.lanes(ended, run, window.whole(run))).to_dict()["vconcat"]
    lines = [lane["layer"][-1] for lane in lanes]
    assert {line["data"]["name"] for line in lines} == {lines[0]["data"]["name"]}
    assert len(lanes) == 5
    for line in lines:
        pointed = [{"param": f"in_{name}", "empty": False} for name in ("states", "ttft", "tpot")]
        assert line["transform"] == [{"filter": {"or": pointed}}]


def test_latency_bins_count_every_request(ended: Path, built: Report, run: data.Run) -> None:
    bins = data.in_window(ended, "dashboard/fleet_latency", run, window.whole(run), blocks=120)
    assert bins["requests"].sum() == built.latency["all"].requests.value
    kept = bins["kept"].sum() / bins["requests"].sum()
    assert kept == pytest.approx(1 - (built.latency["all"].missed_budget.value or 0))
    assert bins.height <= 121


def test_two_windows_are_the_whole(ended: Path, run: data.Run) -> None:
    whole = window.whole(run)
    middle_ns = (whole.from_ns + whole.to_ns) // 2
    parts = (Window(whole.from_ns, middle_ns), Window(middle_ns, whole.to_ns))
    for query, amount in zip(DRAWN, ("idle", "requests", "preemptions"), strict=True):
        summed = sum(int(data.in_window(ended, query, run, part)[amount].sum()) for part in parts)
        assert summed == data.in_window(ended, query, run, whole)[amount].sum() > 0


def test_a_long_time_is_drawn_by_the_day_with_the_same_sums(
    ended: Path, run: data.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = window.whole(run)
    short = {query: data.in_window(ended, query, run, whole) for query in DRAWN}
    monkeypatch.setattr(data, "LONG", timedelta(0))
    for query, amounts in zip(DRAWN, ((*BUCKETS, "lent"), ("requests", "kept"), ("preemptions",)), strict=True):
        by_day = data.in_window(ended, query, run, whole)
        assert by_day.columns == short[query].columns
        for amount in amounts:
            assert by_day[amount].sum() == short[query][amount].sum(), (query, amount)


def test_a_bin_without_requests_is_a_gap(tmp_path: Path, kit: Any) -> None:
    made = [kit.started(), *kit.joined(), *kit.slices(0), *kit.requests(0), *kit.requests(7), *kit.left(240)]
    root = kit.write(tmp_path / "ledger", made)
    (run,) = data.runs(root)
    latency = fleet.lanes(root, run, window.whole(run)).latency
    assert latency["requests"].null_count() > 50
    assert latency.filter(pl.col("requests").is_null())["ttft_p99_ms"].null_count() == latency["requests"].null_count()
    steps = set(latency["t"].diff().drop_nulls())
    assert len(steps) == 1


def test_serving_is_safe_not_safe_or_not_known(ended: Path, run: data.Run, tmp_path: Path, kit: Any) -> None:
    assert fleet.verdict(ended, run, Decimal("96")).safe is True
    late = fleet.verdict(ended, run, Decimal("99"))
    assert late.safe is False
    assert "96.7% of the 240 requests" in late.why
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *kit.slices(0), *kit.requests(0)[:19]])
    (few,) = data.runs(root)
    assert fleet.verdict(root, few, Decimal("99")).safe is None


@pytest.mark.long
def test_the_page_says_how_the_fleet_stands(
    ended: Path, built: Report, open_page: Any, values: Any, page_text: Any
) -> None:
    app = open_page(ended, "fleet")
    assert not app.exception
    assert "Serving is NOT safe" in app.error[0].value
    shown = values(app)
    assert (shown["Serving devices"], shown["Lent"], shown["Silent"]) == ("1", "0", "0")
    assert shown["Provisioned device time"] == "723.000 s"
    assert shown["Unaccounted for"] == "3.000 s"
    assert shown["Leased, not used"] == built.leased_unused.text
    assert "trace bursty, 50.0% of its requests kept, prompt lengths x0.25" in page_text(app)
    assert "No refusal was recorded" in page_text(app)
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert {button.label for button in app.get("download_button")} >= {"States as CSV", "Latency as CSV"}
    times = next(frame.value for frame in app.dataframe if "nanoseconds" in frame.value)
    table = dict(zip(times["bucket"], times["nanoseconds"], strict=True))
    assert table.pop("sum") == f"{built.provisioned.value:,}"
    assert table == {bucket: f"{figure.value:,}" for bucket, figure in built.device_time.items()}


def test_serving_is_safe_by_the_target_of_the_address(ended: Path, open_page: Any) -> None:
    app = open_page(ended, "fleet", target="96")
    assert not app.error
    assert "Serving is safe" in app.success[0].value


def test_a_lease_opens_with_cause_reaction_tokens_price_and_events(
    ended: Path, open_page: Any, values: Any, page_text: Any
) -> None:
    app = open_page(ended, "fleet", lease="L1")
    assert not app.exception
    own = charges.price(ended, pricebook.load("example")).frame.filter(lease_id="L1")
    shown = values(app)
    assert shown["All of its time, amortized"] == format_usd(int(own["cost_nano"].sum()))
    assert (shown["Tokens kept"], shown["Tokens lost"]) == ("50", "5")
    assert (shown["Off the device after"], shown["Lease closed after"]) == ("unknown", "at once")
    assert "It was preempted: serving has work" in page_text(app)
    (button,) = [button for button in app.button if button.label == "Close the lease"]
    assert "All of its time, amortized" not in values(button.click().run())
    assert "This run has no lease" in page_text(open_page(ended, "fleet", lease="nobody"))


@pytest.mark.long
def test_tokens_that_were_not_recorded_are_unknown(tmp_path: Path, open_page: Any, kit: Any, values: Any) -> None:
    def unsaid(event: events.Event) -> events.Event:
        if isinstance(event, events.Preemption):
            return dataclasses.replace(event, tokens_kept=None, tokens_lost=None)
        return event

    root = kit.write(tmp_path / "ledger", map(unsaid, kit.a_run()))
    app = open_page(root, "fleet", lease="L1")
    assert not app.exception
    assert (values(app)["Tokens kept"], values(app)["Tokens lost"]) == ("unknown", "unknown")


def test_of_an_rl_run_the_table_of_leases_says_whose_their_seconds_are(
    tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    own = [
        dataclasses.replace(one, rollout_run_id="a")
        if isinstance(one, events.DeviceSlice)
        else dataclasses.replace(one, rl_run_id="a")
        if isinstance(one, events.Lease)
        else one
        for one in (*kit.slices(0), *kit.leases(0))
    ]
    began = events.Run(action="started", name="grpo", run_id="a", fleet_run_id="run", at_us=kit.us(0))
    ended = dataclasses.replace(began, action="ended", at_us=kit.us(30))
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), began, *own, ended])
    sentence = "Own seconds are those in which this run had the lease"
    for run_id in ("run", "a"):
        app = open_page(root, "fleet", run=run_id)
        assert not app.exception
        assert "Source: `lease`, all of this time" in page_text(app)
        assert (sentence in page_text(app)) == (run_id == "a")
        (table,) = [frame.value for frame in app.dataframe if "lease id" in frame.value.columns]
        assert ("own seconds" in table.columns) == (run_id == "a")


@pytest.mark.long
def test_leases_beyond_the_bound_are_said_and_a_shorter_time_has_them(
    tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    def lease(number: int) -> list[events.Event]:
        return [
            events.Lease(
                action=action,
                lease_id=f"M{number}",
                device_id="s0",
                kv_budget_bytes=1,
                compute_share=1.0,
                expires_at_us=kit.us(10_000),
                at_us=kit.us(number + after),
            )
            for action, after in (("granted", 0.0), ("released", 0.5))
        ]

    many = [event for number in range(600) for event in lease(number)]
    end = [*kit.left(700), events.Run(action="ended", name="x", at_us=kit.us(700))]
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *kit.slices(0), *many, *end])
    app = open_page(root, "fleet")
    assert not app.exception
    assert "The newest 500 of 600 leases are drawn" in page_text(app)
    app = open_page(root, "fleet", window="2026-06-01T00:00..2026-06-01T00:01")
    assert not app.exception
    assert "are drawn; the lent share" not in page_text(app)
    table = next(frame.value for frame in app.dataframe if "lease id" in frame.value)
    assert set(table["lease id"]) == {f"M{number}" for number in range(60)}


@pytest.mark.long
def test_why_more_was_not_lent(tmp_path: Path, open_page: Any, kit: Any, page_text: Any) -> None:
    held = [
        events.Hold(reason=reason, device_id="s0", count=3, duration_ns=10**9, at_us=kit.us(5))
        for reason in ("serving_step", "kv_budget")
    ]
    root = kit.write(tmp_path / "ledger", [*kit.a_run(), *held])
    app = open_page(root, "fleet")
    assert not app.exception
    assert "Time that rollouts with work were refused" in page_text(app)
    (run,) = data.runs(root)
    holds = data.in_window(root, "dashboard/fleet_holds", run, window.whole(run))
    assert dict(holds.select("reason", "seconds").iter_rows()) == {"serving_step": 1.0, "kv_budget": 1.0}
    assert set(holds["reason"]) <= set(fleet.REASONS)


@pytest.mark.long
def test_a_large_fleet_is_drawn_by_pool_and_says_so(tmp_path: Path, open_page: Any, kit: Any, page_text: Any) -> None:
    made: list[events.Event] = [kit.started()]
    for number in range(41):
        name: Any = {"device_id": f"d{number}"}
        made.append(
            events.Device(
                action="joined", t_ns=kit.T0_NS, pool="serving", device_class="h100-sxm", at_us=kit.us(0), **name
            )
        )
        ns: Any = dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 0) | {"idle_ns": 60 * kit.S}
        made.append(events.DeviceSlice(t0_ns=kit.T0_NS, t1_ns=kit.T0_NS + 60 * kit.S, at_us=kit.us(60), **name, **ns))
    app = open_page(kit.write(tmp_path / "ledger", made), "fleet")
    assert not app.exception
    assert "More than 40 devices: they are drawn by pool" in page_text(app)


@pytest.mark.long
def test_a_time_in_which_no_device_did_anything_says_so(tmp_path: Path, open_page: Any, kit: Any) -> None:
    made = [kit.started(), *kit.joined(), *kit.slices(0), *kit.requests(0), *kit.left(1200)]
    root = kit.write(tmp_path / "ledger", made)
    (run,) = data.runs(root)
    at = window.whole(run).to_ns // 10**9
    begin, end = (datetime.fromtimestamp(at - back, UTC).replace(tzinfo=None) for back in (120, 60))
    app = open_page(root, "fleet", window=link.window(begin, end))
    assert not app.exception
    assert [info.value for info in app.info if info.value.startswith("No device reported its time between")]


def test_of_an_rl_run_that_went_on_on_another_fleet_all_of_its_fleets_count(tmp_path: Path, kit: Any) -> None:
    """Each fleet has a device `s0`, of which the run has 10 s under a lease, and serves requests all the time."""
    root = tmp_path / "ledger"
    for fleet_run_id, after_s in (("f1", 0), ("f2", 20)):
        began = events.Run(action="started", name="grpo", run_id="a", at_us=kit.us(after_s))
        t0_ns, zeros = 1000 * kit.us(after_s), dict.fromkeys((f"{bucket}_ns" for bucket in BUCKETS), 0)
        spent: Any = zeros | {"rollout_ns": 10 * kit.S}
        own = events.DeviceSlice(
            device_id="s0",
            lease_id=f"{fleet_run_id}-L",
            rollout_run_id="a",
            t0_ns=t0_ns,
            t1_ns=t0_ns + 10 * kit.S,
            at_us=kit.us(after_s + 10),
            **spent,
        )
        granted, released = (
            events.Lease(
                action=action,
                lease_id=f"{fleet_run_id}-L",
                device_id="s0",
                kv_budget_bytes=1,
                compute_share=1.0,
                rl_run_id="a",
                expires_at_us=kit.us(60),
                at_us=kit.us(at_s),
            )
            for action, at_s in (("granted", after_s), ("released", after_s + 10))
        )
        kit.write(
            root,
            [kit.started(), *kit.joined(), *kit.requests(0), began, granted, own, released],
            run_id=fleet_run_id,
            writer=fleet_run_id,
        )
    run = next(run for run in data.runs(root) if run.run_id == "a")
    shown = Window(1000 * kit.us(0), 1000 * kit.us(60))
    made = {name: data.in_window(root, f"dashboard/{name}", run, shown) for name in OF_DEVICES}
    for name in OF_DEVICES[1:5]:
        lanes = made[name].group_by("lane" if "states" in name else "device_id").agg(pl.col("rollout").sum())
        assert dict(lanes.iter_rows()) == {"f1/s0": 10 * kit.S, "f2/s0": 10 * kit.S}, name
    assert made["fleet_leases"].select("device_id", "own_seconds").rows() == [("f2/s0", 10), ("f1/s0", 10)]
    for name in OF_DEVICES[6:]:
        assert made[name]["requests"].sum() == 2 * len(kit.requests(0)), name
    names = [f"{fleet}/{device}" for fleet in ("f1", "f2") for device in ("r0", "s0", "t0")]
    assert sorted(made["fleet_now"]["device_id"]) == names
    states = dict(made["fleet_now"].select("device_id", "state").filter(pl.col("state").is_not_null()).iter_rows())
    assert states == {"f1/s0": "rollout", "f2/s0": "rollout"}
    assert data.rows(root, "run/lease_totals", run).rows() == [("released", 2)]
