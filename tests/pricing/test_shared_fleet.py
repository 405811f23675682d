"""Two RL runs of two teams on one fleet: each is charged its own, and with the fleet's own that is the bill."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from typer.testing import CliRunner

import sql
from rose import events
from rose.cli import app
from rose.clock import utc
from rose.ledger import catalog
from rose.ledger.writer import LedgerWriter
from rose.pricing import charges
from rose.pricing.audit.explain import Question, explain
from rose.pricing.borrowing.report import alternatives
from rose.pricing.charges.allocation import allocate
from rose.pricing.closing.period import Period
from rose.pricing.price_books import choice, pricebook
from rose.pricing.query import rows, set_variables, snapshot
from rose.pricing.run import report
from rose.pricing.run.tables import tables
from rose.pricing.spend.saved import LET_GO, RunSaved, saved
from tests.ledger.older import OLDER_LEDGER
from tests.pricing.closing.conftest import BOOK_TOML, HOUR_NS, T0_NS, S

_TOML = f"""{BOOK_TOML}
[[power]]
class = "h100-sxm"
idle_w = 267
load_w = 680
source = "spec sheet"
source_date = 2026-01-01
"""
BOOK = pricebook.parse(_TOML, "book.toml")
RUNS = ("fleet", "red", "blue")


def _us(after_s: float) -> int:
    return T0_NS // 1000 + int(after_s * 1_000_000)


def _slice(from_s: int, device_id: str, run_id: str | None, lease_id: str | None, **seconds: int) -> events.Event:
    buckets: dict[str, Any] = {f"{bucket}_ns": seconds.get(bucket, 0) * S for bucket in events.BUCKETS}
    t0_ns = T0_NS + from_s * S
    return events.DeviceSlice(
        device_id=device_id, lease_id=lease_id, t0_ns=t0_ns, t1_ns=t0_ns + sum(buckets.values()), at_us=_us(from_s),
        rollout_run_id=run_id, train_run_id=run_id, **buckets,
    )  # fmt: skip


def _turn(run_id: str, at_s: int, device_id: str, lease_id: str | None, tokens: int, **more: Any) -> events.Event:
    return events.Turn(
        run_id=run_id, device_id=device_id, lease_id=lease_id, turn=0, outcome="completed",
        placement="lease", prompt_tokens=10, cached_tokens=0, output_tokens=tokens, queue_ns=0, duration_ns=S,
        policy_version=1, at_us=_us(at_s), **{"trajectory_id": "t", "attempt": 0, **more},
    )  # fmt: skip


def _events() -> Iterator[events.Event]:
    """An hour of a serving device, lent to red, then under the same lease to blue, and of a training device of both."""
    yield events.Run(
        action="started", name="lab", at_us=_us(0), tags_json='{"team": "infra", "serving_team": "chat"}'
    )  # fmt: skip
    for run_id in RUNS[1:]:
        yield events.Run(
            action="started", name="grpo", run_id=run_id, at_us=_us(1), tags_json=json.dumps({"team": f"team {run_id}"})
        )
    for device_id, pool in (("s0", "serving"), ("t0", "train")):
        yield events.Device(
            action="joined",
            device_id=device_id,
            t_ns=T0_NS,
            pool=pool,
            device_class="h100-sxm",
            at_us=_us(0),  # type: ignore[arg-type]
        )
    lease: dict[str, Any] = {"lease_id": "L", "device_id": "s0", "kv_budget_bytes": 1, "compute_share": 1.0}
    yield events.Lease(action="granted", expires_at_us=_us(3600), at_us=_us(600), rl_run_id="red", **lease)
    yield _slice(0, "s0", None, None, serving=500, idle=100)
    yield _slice(600, "s0", "red", "L", serving=200, rollout=700, sync=50, headroom=50)
    yield _slice(1600, "s0", "blue", "L", serving=100, rollout=600, activation=100, idle=200)
    yield _slice(2600, "s0", None, None, serving=600, idle=400)
    yield _slice(0, "t0", "red", None, train=1000, idle=800)
    yield _slice(1800, "t0", "blue", None, train=300, idle=1500)
    for run_id, at_s, tokens in (("red", 1500, 300), ("blue", 2500, 100)):
        yield _turn(run_id, at_s, "s0", "L", tokens)
        yield events.Verdict(
            run_id=run_id, trajectory_id="t", group_id="g", step=0, verifier="v", reward=1.0, threshold=0.5,
            accepted=run_id == "red", at_us=_us(at_s),
        )  # fmt: skip
        yield events.Sync(
            device_id="s0", lease_id="L", rl_run_id=run_id, ok=True, base_version=None, encoding="dense",
            wire_bytes=10**9, dense_bytes=10**9, total_ns=S, source="relay", route="inter-region", policy_version=1,
            at_us=_us(at_s),
        )  # fmt: skip
    yield events.Lease(action="released", expires_at_us=_us(3600), at_us=_us(2600), **lease)
    for run_id in RUNS[1:]:
        yield events.Run(action="ended", name="grpo", run_id=run_id, at_us=_us(3000))
    yield events.Run(action="ended", name="lab", at_us=_us(3600))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("shared") / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in _events():
            writer.record(event, durable=False)
    (root.parent / "book.toml").write_text(_TOML)
    return root


def _sums(frame: pl.DataFrame, *by: str) -> dict[Any, int]:
    """Seconds by `by`."""
    summed = frame.filter(kind="capacity").group_by(*by).agg(pl.col("ns").sum())
    return {key[0] if len(by) == 1 else (*key,): ns // S for *key, ns in summed.iter_rows()}


def test_each_run_has_its_own_time_and_the_fleet_the_rest(root: Path) -> None:
    frame = charges.price(root, BOOK).frame
    assert set(frame["fleet_run_id"]) == {"fleet"}
    assert _sums(frame, "run_id", "bucket") == {
        ("red", "rollout"): 700, ("red", "sync"): 50, ("red", "headroom"): 50, ("red", "train"): 1000,
        ("blue", "rollout"): 600, ("blue", "activation"): 100, ("blue", "train"): 300,
        ("fleet", "serving"): 1400, ("fleet", "idle"): 3000,
    }  # fmt: skip
    # Whose demand was refused is known, but it is for serving's sake that the device was kept free.
    assert _sums(frame, "team") == {"team red": 1750, "team blue": 1000, "chat": 2150, "infra": 2300}
    fates = frame.filter(bucket="rollout").select("run_id", "fate", "tokens").rows()
    assert sorted(fates) == [("blue", "rejected", 100), ("red", "accepted", 300)]
    assert _cost(frame.filter(kind="transfer"), "run_id") == {"red": 20_000_000, "blue": 20_000_000}


def _cost(frame: pl.DataFrame, by: str) -> dict[str, int]:
    return dict(frame.group_by(by).agg(pl.col("cost_nano").sum()).iter_rows())


@pytest.mark.long
def test_the_bills_of_the_runs_sum_to_the_fleets(root: Path) -> None:
    bill = charges.price(root, BOOK).total_nano
    assert bill == charges.price(root, BOOK, run_id="fleet").total_nano == 2 * 3_600_000_000 + 40_000_000
    own = {run_id: charges.price(root, BOOK, run_id=run_id) for run_id in RUNS[1:]}
    assert [own[run_id].total_nano for run_id in RUNS[1:]] == [1_820_000_000, 1_020_000_000]
    # An RL run is told what it had within its own hours, of devices that are the fleet's.
    assert {(stay.run_id, stay.device_id) for stay in own["red"].stays} == {("fleet", "s0"), ("fleet", "t0")}


@pytest.mark.long
def test_where_no_run_is_named_it_is_the_newest_fleets_own_or_for_answers_the_newest(root: Path) -> None:
    assert report.build(root, None, BOOK).run.run_id == "fleet"
    book = ("--price-book", str(root.parent / "book.toml"))
    shown = CliRunner().invoke(app, ["correct", "show", "--ledger", str(root), *book, "--json"])
    assert json.loads(shown.stdout)["run"]["run_id"] == "red", shown.output


def test_a_report_of_the_fleet_lists_what_each_run_has_of_it(root: Path) -> None:
    made = report.build(root, "fleet", BOOK)
    shares = {row.run_id: (row.team, row.amortized.value) for row in made.runs}
    assert shares == {
        "fleet": ("infra", 4_400_000_000), "red": ("team red", 1_820_000_000), "blue": ("team blue", 1_020_000_000)
    }  # fmt: skip
    assert [row.run_id for row in made.runs] == list(RUNS)
    for view in ("amortized", "fully_loaded"):
        total = getattr(made, view)["total"].value
        assert sum(getattr(row, view).value for row in made.runs) == total == 7_240_000_000
    assert made.tokens["borrowed"]["generated"].value == 400
    assert "Who shared the fleet" in [getattr(element, "title", "") for element in tables(made)]
    assert json.dumps(made.to_json())


@pytest.mark.long
def test_a_fleet_of_one_rl_run_shows_the_steps_of_that_run(root: Path, tmp_path: Path) -> None:
    assert report.build(root, "fleet", BOOK).accept_by_step == {}
    alone = tmp_path / "ledger"
    with LedgerWriter.open(alone, "controller", "fleet") as writer:
        for event in _events():
            if "blue" not in dataclasses.asdict(event).values():
                writer.record(event, durable=False)
        writer.record(_turn("red", 1501, "s0", "L", 100, trajectory_id="next"), durable=False)
        verdict = events.Verdict(
            run_id="red", trajectory_id="next", group_id="h", step=1, verifier="v", reward=0.0, threshold=0.5,
            accepted=False, at_us=_us(1501),
        )  # fmt: skip
        writer.record(verdict, durable=False)
    for run_id in ("fleet", "red"):
        made = report.build(alone, run_id, BOOK)
        assert {step: figure.value for step, figure in made.accept_by_step.items()} == {0: 1.0, 1: 0.0}
        assert [figure.text for figure in made.accept_by_step.values()] == ["100.0%", "0.0%"]


def test_what_reports_of_the_runs_count_sums_to_the_fleets(root: Path) -> None:
    """The lease is granted once, for red, and each run has half of its time."""
    fleet, red, blue = (report.build(root, run_id, BOOK) for run_id in RUNS)
    assert [made.leases["leased"].value for made in (fleet, red, blue)] == [2000 * S, 1000 * S, 1000 * S]
    assert [made.leases["granted"].value for made in (fleet, red, blue)] == [1, 1, 0]
    assert [made.leases["released"].value for made in (fleet, red, blue)] == [1, 1, 0]
    assert [made.leased_unused.value for made in (fleet, red, blue)] == [200 * S, 0, 200 * S]
    assert [made.syncs.count.value for made in (fleet, red, blue)] == [2, 1, 1]


def test_a_lease_that_nothing_closed_ends_with_the_last_slice_that_names_it(tmp_path: Path) -> None:
    """Its agent was killed; the runs ended before it would have expired, and the fleet goes on for hours."""
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in _events():
            if isinstance(event, events.Lease):
                event = dataclasses.replace(event, expires_at_us=_us(5400))  # noqa: PLW2901
            if not isinstance(event, events.Lease) or event.action == "granted":
                writer.record(event, durable=False)
        writer.record(_slice(3600, "t0", None, None, idle=3600), durable=False)
        for t0_s in (600, 2600):
            t0_ns = T0_NS + t0_s * S
            read = events.Power(
                device_id="s0", t0_ns=t0_ns, t1_ns=t0_ns + 1000 * S, power_mw=1, source="rapl", at_us=_us(t0_s + 1000)
            )
            writer.record(read, durable=False)
    fleet, red, blue = (report.build(root, run_id, BOOK) for run_id in RUNS)
    assert [made.leases["leased"].value for made in (fleet, red, blue)] == [2000 * S, 1000 * S, 1000 * S]
    assert [made.leases["open"].value for made in (fleet, red, blue)] == [1, 1, 0]
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, root, "fleet")
        set_variables(connection, run_id="fleet", period_end_ns=T0_NS + 2 * HOUR_NS, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        read_s = {row["lent"]: row["duration_ns"] // S for row in rows(connection, "borrowing/power_by_load")}
    assert read_s == {True: 1000, False: 1000}


def test_an_engine_that_died_died_on_the_run_that_had_its_device_last(tmp_path: Path) -> None:
    """Before red had s0, under red, under blue, as blue's lease had just ended, and after both runs."""
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in _events():
            writer.record(event, durable=False)
        for died_s in (300, 1000, 2000, 2601, 3500):
            for action, at_s in (("started", died_s - 9), ("died", died_s)):
                engine = events.Engine(
                    action=action, engine_id="r0", device_id="s0", role="rollout", model="m", at_us=_us(at_s)  # type: ignore[arg-type]
                )  # fmt: skip
                writer.record(engine, durable=False)
    ended = {
        run_id: [end.ended for end in report.build(root, run_id, BOOK).engines.ends if end.ended] for run_id in RUNS
    }
    times = [utc(T0_NS + died_s * S) for died_s in (300, 1000, 2000, 2601, 3500)]
    assert ended == {"fleet": times, "red": times[1:2], "blue": times[2:4]}


@pytest.mark.parametrize(("run_id", "accepted", "borrowed_s"), [("red", 300, 700), ("blue", 0, 600)])
def test_a_report_of_an_rl_run_is_of_its_own_part(root: Path, run_id: str, accepted: int, borrowed_s: int) -> None:
    made = report.build(root, run_id, BOOK)
    assert made.runs == ()
    assert made.run.run_id == run_id
    assert made.tokens["borrowed"]["accepted"].value == accepted
    assert made.borrow.borrowed.value == borrowed_s * S
    # Fully loaded it bears its part of the idle time of the devices.
    assert made.fully_loaded["total"].value > made.amortized["total"].value  # type: ignore[operator]
    assert made.harvest_share.value is None
    assert "the fleet's run" in str(made.harvest_share.why)


@pytest.mark.long
@pytest.mark.parametrize("run_id", RUNS)
def test_every_charge_of_a_shared_device_re_adds_to_its_events(root: Path, run_id: str) -> None:
    for device_id in ("s0", "t0"):
        told = explain(root, Question(hour_ns=T0_NS, run_id=run_id, device_id=device_id), BOOK)
        assert told.faults == []
        own = charges.price(root, BOOK, run_id=run_id).frame.filter(device_id=device_id)
        assert told.amount.value == own["cost_nano"].sum()


@pytest.mark.parametrize(
    ("by", "dollars"),
    [
        ("run", {"fleet": 4.40, "red": 1.82, "blue": 1.02}),
        ("team", {"chat": 2.15, "infra": 2.30, "team red": 1.77, "team blue": 1.02}),
    ],
)
def test_rose_cost_shows_each_its_own(root: Path, by: str, dollars: dict[str, float]) -> None:
    command = ["cost", "--by", by, "--json", "--ledger", str(root), "--price-book", str(root.parent / "book.toml")]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    assert {line[by]: line["cost_nano"] / 10**9 for line in lines} == dollars


def test_the_next_hour_of_the_same_lease_may_be_of_another_run(tmp_path: Path) -> None:
    """A slice that crosses the hour is cut, and what is left of each side is still the RL run's."""
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", at_us=_us(0)))
        writer.record(
            events.Device(
                action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h100-sxm", at_us=_us(0)
            )
        )
        writer.record(_slice(3500, "s0", "red", "L", rollout=101, serving=99), durable=True)
    frame = charges.price(root, BOOK).frame.filter(pl.col("bucket") != "unaccounted")
    sums = frame.group_by("run_id", "bucket").agg(pl.col("ns").sum()).sort("bucket").rows()
    assert sums == [("red", "rollout", 101 * S), ("fleet", "serving", 99 * S)]
    assert frame["hour"].n_unique() == 2
    assert frame.filter(run_id="red").height == 2
    assert charges.price(root, BOOK, run_id="red").stays[0].t1_ns <= T0_NS + 2 * HOUR_NS


@pytest.mark.long
def test_what_was_saved_counts_once_and_for_the_run_whose_borrow_it_was(root: Path) -> None:
    command = ["saved", "--json", "--ledger", str(root), "--price-book", str(root.parent / "book.toml")]
    done = CliRunner().invoke(app, [*command, "--period", "2026-06"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {run["run"] for run in json.loads(done.stdout)["runs"]} == {"red", "blue"}


@pytest.mark.parametrize("decided_for", ["fleet", "red"])
def test_what_was_let_go_of_a_fleet_is_in_its_report_and_in_the_sum_of_what_was_saved(
    tmp_path: Path, decided_for: str
) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "controller", "fleet") as writer:
        for event in _events():
            writer.record(event, durable=False)
        for action, at_s in (("joined", -7200), ("left", -3600)):
            writer.record(
                events.Device(
                    action=action, device_id="r1", t_ns=T0_NS + at_s * S, pool="rollout", device_class="h100-sxm",  # type: ignore[arg-type]
                    at_us=_us(at_s),
                )
            )  # fmt: skip
        decided = events.ScaleDown(
            device_id="r1", device_class="h100-sxm", decision="let_go", t0_ns=T0_NS, t1_ns=T0_NS + HOUR_NS,
            decided_by="Kim", run_id=decided_for, at_us=_us(1),
        )  # fmt: skip
        writer.record(decided)
    made = {run_id: alternatives.build(root, run_id, BOOK).savings for run_id in RUNS}
    whole, red, blue = (one.cash_saved.value or 0 for one in made.values())
    assert "$3.60 of dedicated devices that recorded decisions let go" in made["fleet"].rests_on["cash_saved"]
    counted = "dedicated devices that recorded decisions let go count for the fleet, not for a run on it"
    assert all(counted in made[run_id].rests_on["cash_saved"] for run_id in RUNS[1:])
    book, kept = tmp_path / "book.toml", dict[str, RunSaved]()
    book.write_text(_TOML)
    runs = {run.run_id: run for run in saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), kept=kept).runs}
    assert {run_id: run.cash_nano for run_id, run in runs.items()} == {
        "fleet": (3_600_000_000, 3_600_000_000), "red": (red, red), "blue": (blue, blue)
    }  # fmt: skip
    assert (runs["fleet"].capacity_nano, runs["fleet"].added_nano, runs["fleet"].why) == (0, 0, LET_GO)
    assert 3_600_000_000 + red + blue == pytest.approx(whole, abs=2)
    # Asked for by name, it counts itself.
    (fleet,) = saved(root, Period(T0_NS, T0_NS + 24 * HOUR_NS), str(book), run_id="fleet", kept=kept).runs
    assert fleet.cash_nano == (whole, whole)


def test_an_rl_run_is_priced_by_the_book_that_its_fleet_names(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    (tmp_path / "book.toml").write_text(_TOML)
    named = {"price_book": str(tmp_path / "book.toml"), "price_book_sha256": BOOK.sha256}
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", config_json=json.dumps(named)))
        writer.record(events.Run(action="started", name="grpo", run_id="red"))
    for run_id in ("fleet", "red"):
        assert choice.choose(root, None, run_id=run_id).sha256 == BOOK.sha256


@pytest.mark.long
def test_a_ledger_from_before_rl_runs_shared_fleets_is_charged_to_the_runs_of_its_devices(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    shutil.copytree(OLDER_LEDGER, root)
    frame = charges.price(root, choice.choose(root, None)).frame
    assert frame["cost_nano"].sum() > 0
    assert (frame["run_id"] == frame["fleet_run_id"]).all()
    run_id = frame["run_id"][0]
    assert charges.price(root, choice.choose(root, None), run_id=run_id).frame.equals(frame.filter(run_id=run_id))


def test_what_a_fleet_leaves_idle_in_hours_without_a_run_is_none_of_that_run_s(tmp_path: Path) -> None:
    """Red has the first hour of a dedicated device, nobody the second, and both runs a part of the third."""
    slices = [
        _slice(0, "r0", "red", None, rollout=1800, idle=1800),
        _slice(3600, "r0", None, None, idle=3600),
        _slice(7200, "r0", "red", None, rollout=300, idle=1500),
        _slice(9000, "r0", "blue", None, rollout=600, idle=1200),
    ]
    assert _shared_idle_ns(tmp_path / "ledger", slices) == {"fleet": 0, "red": (1800 + 900) * S, "blue": 1800 * S}


def test_the_idle_time_that_runs_have_sums_to_what_the_devices_left(tmp_path: Path) -> None:
    """A second that is left idle in an hour of which red worked a third and blue the rest has no whole parts."""
    slices = [_slice(0, "r0", "red", None, rollout=10, idle=1), _slice(11, "r0", "blue", None, rollout=20)]
    parts = {"fleet": 0, "red": 333_333_333, "blue": 666_666_667}
    assert _shared_idle_ns(tmp_path / "ledger", slices) == parts


def _shared_idle_ns(root: Path, slices: list[events.DeviceSlice]) -> dict[str, int]:
    """Each run's part of what a dedicated device with these slices left idle."""
    joined = events.Device(
        action="joined", device_id="r0", t_ns=T0_NS, pool="rollout", device_class="h100-sxm", at_us=_us(0)
    )
    with LedgerWriter.open(root, "w", "fleet") as writer:
        writer.record(events.Run(action="started", name="lab", at_us=_us(0)))
        for run_id in RUNS[1:]:
            writer.record(events.Run(action="started", name="grpo", run_id=run_id, at_us=_us(1)))
        for event in (joined, *slices):
            writer.record(event)
    return {
        run_id: sum(device.shared_idle_ns for device in allocate(charges.price(root, BOOK, run_id=run_id)).devices)
        for run_id in RUNS
    }


def test_engines_of_two_fleets_that_are_called_alike_are_two_engines(tmp_path: Path) -> None:
    """Red goes on on another fleet, whose device and engine are called as those of the first, which blue has then.

    The engines hold KV memory in all of red's time but for the 100 s between each death and start.
    """
    root = tmp_path / "ledger"
    engine: dict[str, Any] = {"engine_id": "r0", "device_id": "s0", "role": "rollout", "model": "m"}
    of_start: dict[str, Any] = {"kv_bytes": 1 << 30, "memory_mechanism": "budget"}
    for fleet, begin_s, deaths_s in (("f1", 0, (500, 1500)), ("f2", 1000, (1400,))):
        with LedgerWriter.open(root, fleet, fleet) as writer:
            writer.record(events.Run(action="started", name="lab", at_us=_us(0)))
            writer.record(events.Run(action="started", name="grpo", run_id="red", at_us=_us(begin_s)), durable=True)
            writer.record(
                events.Device(
                    action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h100-sxm", at_us=_us(0)
                )
            )
            writer.record(events.Engine(action="started", at_us=_us(begin_s), **engine, **of_start))
            for died_s in deaths_s:
                writer.record(events.Engine(action="died", at_us=_us(died_s), **engine))
                writer.record(events.Engine(action="started", at_us=_us(died_s + 100), **engine, **of_start))
            writer.record(_slice(begin_s, "s0", "red", None, rollout=450))
            writer.record(_slice(begin_s + 450, "s0", "red", None, rollout=550))
            if fleet == "f1":
                writer.record(_slice(1000, "s0", "blue", "L", rollout=1000))
    ends = report.build(root, "red", BOOK).engines.ends
    assert [(end.ended, end.restarted) for end in ends] == [
        (utc(T0_NS + died_s * S), utc(T0_NS + (died_s + 100) * S)) for died_s in (500, 1400)
    ]
    with closing(catalog.connect(root)) as connection:
        snapshot(connection, root, "red")
        set_variables(connection, run_id="red", period_end_ns=T0_NS + HOUR_NS, price_changes=[])
        connection.execute(sql.read("borrowing/lease_spans.sql"))
        assert [row["byte_ns"] for row in rows(connection, "borrowing/held_memory")] == [(1 << 30) * 1800 * S]


def test_devices_of_two_fleets_that_are_called_alike_are_two_devices(tmp_path: Path) -> None:
    """Red goes on on another fleet; the first gives its device back while red works on the other's of that name."""
    root = tmp_path / "ledger"
    device: dict[str, Any] = {"device_id": "s0", "device_class": "h100-sxm"}
    for fleet, begin_s in (("f1", 0), ("f2", 1000)):
        with LedgerWriter.open(root, fleet, fleet) as writer:
            writer.record(events.Run(action="started", name="lab", at_us=_us(0)))
            writer.record(events.Run(action="started", name="grpo", run_id="red", at_us=_us(begin_s)))
            if fleet == "f2":
                writer.record(events.Device(action="joined", t_ns=T0_NS, pool="train", at_us=_us(0), **device))
            joined = events.Device(
                action="joined", t_ns=T0_NS + begin_s * S, pool="serving", at_us=_us(begin_s), **device
            )
            writer.record(joined)
            for part_s, seconds in ((0, 600), (600, 400)):
                writer.record(_slice(begin_s + part_s, "s0", "red", f"{fleet}-L", rollout=seconds))
            if fleet == "f1":
                left_s = 1500
                writer.record(dataclasses.replace(joined, action="left", t_ns=T0_NS + left_s * S, at_us=_us(left_s)))
    made = report.build(root, "red", BOOK)
    assert made.borrow.borrowed.value == 2000 * S
    assert {row.device_id: row.time["rollout"].value for row in made.devices} == {
        "f1/s0": 1000 * S, "f2/s0": 1000 * S
    }  # fmt: skip
