from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import data, window
from dashboard.data import Window
from dashboard.preemptions import totals
from dashboard.syncs import section
from rose import events
from rose.pricing.document import Report

MS = 10**6


def recorded(event: events.Event) -> events.Event:
    """The small run with a reaction for each yield but those of L0, phases of syncs, and a hostile reason."""
    if isinstance(event, events.Preemption) and event.action == "yield":
        number = event.at_us // 10**6 % 7
        latency_ns = None if event.lease_id == "L0" else (1 + number) * MS
        return dataclasses.replace(event, count=3, latency_ns=latency_ns)
    if isinstance(event, events.Preemption) and event.action == "cut":
        return dataclasses.replace(event, duration_ns=30 * MS, reason="![x](http://evil.example/p.png)")
    if isinstance(event, events.Sync):
        return dataclasses.replace(
            event, fetch_ns=100 * MS, stage_ns=200 * MS, reason=None if event.ok else "the base is another"
        )
    return event


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    kit: Any = request.config.pluginmanager.get_plugin(str(Path(__file__).with_name("conftest.py")))
    root: Path = kit.write(tmp_path_factory.mktemp("taken") / "ledger", map(recorded, kit.a_run()))
    return root


@pytest.fixture
def run(made: Path) -> data.Run:
    (run,) = data.runs(made)
    return run


def test_every_preemption_is_in_one_bin_or_did_not_record_its_reaction(
    made: Path, run: data.Run, built: Report
) -> None:
    taken = totals.read(made, run, window.whole(run))
    assert taken.count("yield") == 3 * int(built.preemptions["yield"].count.value or 0)
    row = taken.by_action["yield"]
    assert (row["recorded"], row["measured"]) == (48, 42)
    bins = taken.reactions.filter(action="yield")
    assert bins["measured"].sum() == 42
    assert bins.filter(pl.col("from_ms") > row["longest_ms"]).is_empty()
    assert bins.filter(pl.col("to_ms") < 1).is_empty()
    assert taken.by_action["cut"]["p99_ms"] == 30
    assert taken.budgets == {"first token": 2000, "further token": 250}
    assert taken.total("yield", "tokens_lost") is None
    assert taken.total("revoke", "tokens_lost") == 15


def test_in_words_with_what_is_not_known() -> None:
    row = {"preemptions": 2, "recorded": 2, "measured": 0, "tokens_lost": None}
    empty = pl.DataFrame()
    taken = totals.Taken(
        by_action={"revoke": row},
        reactions=empty,
        causes=empty,
        over_time=empty,
        ttft_budget_ms=None,
        tpot_budget_ms=None,
    )
    assert totals.in_words(taken) == (
        "Serving took something back by 2 revocations. How fast rollouts gave way to revocations was not recorded. "
        "How many tokens were lost is not known: some did not record it."
    )
    assert totals.in_words(dataclasses.replace(taken, by_action={})) == "Serving took nothing back in this time."
    assert [totals.duration(ms) for ms in (0, 0.0912, 13.2, 2100)] == [
        "no time (already off the device)",
        "0.0912 ms",
        "13.2 ms",
        "2.1 s",
    ]


def test_causes_and_the_list_are_of_the_window_and_of_one_action(made: Path, run: data.Run) -> None:
    whole = window.whole(run)
    half = Window(whole.from_ns, (whole.from_ns + whole.to_ns) // 2)
    causes = data.in_window(made, "dashboard/preemptions/causes", run, whole)
    assert dict(causes.select("action", "tokens_lost").iter_rows()) == {"cut": 0, "revoke": 15, "yield": None}
    cuts = data.in_window(made, "dashboard/preemptions/newest", run, half, part="cut")
    assert set(cuts["action"]) == {"cut"}
    assert cuts.height == cuts["preemptions"][0] == 4
    assert cuts["event_time"].is_sorted(descending=True)


def test_syncs_add_up_by_version_and_by_route(made: Path, run: data.Run) -> None:
    whole = window.whole(run)
    versions = data.in_window(made, "dashboard/syncs/versions", run, whole)
    routes = data.in_window(made, "dashboard/syncs/routes", run, whole)
    assert versions["wire_bytes"].sum() == routes["wire_bytes"].sum() == 8 * 2_000_000
    assert (versions["reached"].sum(), versions["failed"].sum()) == (routes["reached"].sum(), 1) == (7, 1)
    first = versions.filter(policy_version=1).to_dicts()[0]
    assert (first["fetch_ms"], first["verify_ms"], first["total_ms"]) == (100, None, 400)
    assert versions.filter(policy_version=6)["fetch_ms"].to_list() == [None]
    failed = data.in_window(made, "dashboard/syncs/failed", run, whole).to_dicts()
    assert [(row["policy_version"], row["reason"]) for row in failed] == [(6, "the base is another")]
    assert failed[0]["made_good_at"] > failed[0]["event_time"]


def test_an_engine_that_missed_a_version_is_behind_until_it_reaches_a_newer_one(
    made: Path, run: data.Run, kit: Any
) -> None:
    whole = window.whole(run)
    missed = Window(whole.from_ns, 1000 * kit.us(185))
    engines = data.in_window(made, "dashboard/syncs/engines", run, missed)
    assert engines.select("policy_version", "behind", "gone").rows() == [(5, 1, False)]
    assert section.in_words(engines, 5, 1) == (
        "Of 1 engines 1 are behind the newest version, by up to 1. 6 syncs ended in this time, 1 of them failed."
    )
    at_end = data.in_window(made, "dashboard/syncs/engines", run, whole)
    assert section.in_words(at_end, 7, 1).startswith("The one engine holds the newest version.")
    gone = at_end.with_columns(gone=pl.lit(True))
    assert section.in_words(gone, 0, 0) == (
        "The one engine held the newest version, and none is there any more. No sync ended in this time."
    )
    held = data.in_window(made, "dashboard/syncs/held", run, missed)
    by_line = {line: group["policy_version"].to_list() for (line,), group in held.group_by("line", maintain_order=True)}
    assert by_line == {"s0/rollout": [1, 2, 3, 4, 5], None: [1, 2, 3, 4, 5, 6]}


def test_an_engine_that_went_over_to_another_rl_run_is_gone(tmp_path: Path, kit: Any) -> None:
    def sync(rl_run_id: str, version: int, after_s: int) -> events.Sync:
        return events.Sync(
            ok=True,
            base_version=None,
            encoding="dense",
            wire_bytes=1,
            dense_bytes=1,
            total_ns=1,
            source="trainer",
            route="loopback",
            engine_id="e",
            rl_run_id=rl_run_id,
            policy_version=version,
            at_us=kit.us(after_s),
        )

    root = kit.write(tmp_path / "ledger", [kit.started(), sync("a", 1, 10), sync("b", 7, 20), sync("b", 8, 30)])
    (run,) = data.runs(root)
    shown = Window(1000 * kit.us(0), 1000 * kit.us(60))
    stand = {}
    for name in ("run", "a", "b"):
        asked = dataclasses.replace(run, run_id=name)
        engines = data.in_window(root, "dashboard/syncs/engines", asked, shown)
        held = data.in_window(root, "dashboard/syncs/held", asked, shown)
        stand[name] = engines.select("policy_version", "behind", "gone").rows(), held["policy_version"].to_list()
    assert stand["a"] == ([(1, 0, True)], [1, None, None])
    assert stand["b"] == ([(8, 0, False)], [None, 7, 8])
    assert stand["run"] == ([(8, 0, False)], [1, 7, 8])


def test_engines_of_two_fleets_that_are_called_alike_are_two(tmp_path: Path, kit: Any) -> None:
    root = tmp_path / "ledger"
    for fleet, after_s in (("f1", 10), ("f2", 20)):
        sync = events.Sync(
            ok=True,
            base_version=None,
            encoding="dense",
            wire_bytes=1,
            dense_bytes=1,
            total_ns=1,
            source="trainer",
            route="loopback",
            engine_id="e",
            rl_run_id="a",
            policy_version=1,
            at_us=kit.us(after_s),
        )
        kit.write(root, [kit.started(), sync], run_id=fleet, writer=fleet)
    run = dataclasses.replace(data.runs(root)[0], run_id="a")
    shown = Window(1000 * kit.us(0), 1000 * kit.us(60))
    assert data.in_window(root, "dashboard/syncs/versions", run, shown)["engines"].to_list() == [2]
    assert data.in_window(root, "dashboard/syncs/held", run, shown)["line"].to_list() == ["f1/e", "f2/e"]


def test_a_lease_that_went_over_to_another_rl_run_is_listed_and_opens_whole_for_both(tmp_path: Path, kit: Any) -> None:
    def change(action: Any, rl_run_id: str, after_s: int, lease_id: str = "L") -> events.Lease:
        return events.Lease(
            action=action,
            lease_id=lease_id,
            device_id="s0",
            kv_budget_bytes=1,
            compute_share=1.0,
            rl_run_id=rl_run_id,
            expires_at_us=kit.us(60),
            at_us=kit.us(after_s),
        )

    made = [change("granted", "a", 10), change("renewed", "b", 20), change("released", "b", 30)]
    root = kit.write(tmp_path / "ledger", [kit.started(), *made, change("granted", "b", 40, "M")])
    (run,) = data.runs(root)
    shown = Window(1000 * kit.us(0), 1000 * kit.us(60))
    for name, listed, granted in (("run", ["M", "L"], 2), ("a", ["L"], 1), ("b", ["M", "L"], 1)):
        asked = dataclasses.replace(run, run_id=name)
        assert data.in_window(root, "dashboard/fleet_leases", asked, shown)["lease_id"].to_list() == listed
        opened = data.of_part(root, "dashboard/lease_events", asked, "L")
        assert opened["action"].to_list() == ["granted", "renewed", "released"]
        assert data.rows(root, "run/lease_totals", asked)["leases"].sum() == granted
    assert data.of_part(root, "dashboard/lease_events", dataclasses.replace(run, run_id="a"), "M").is_empty()


def test_of_a_lease_that_two_runs_had_each_is_told_its_own_seconds(tmp_path: Path, kit: Any) -> None:
    """`L` is a's from its grant on, and b's from the slice of some length that says so; of `M` no slice says whose it
    is, and of `N` nothing says that it ended.
    """

    def change(action: Any, after_s: int, lease_id: str = "L") -> events.Lease:
        return events.Lease(
            action=action,
            lease_id=lease_id,
            device_id="s0",
            kv_budget_bytes=1,
            compute_share=1.0,
            rl_run_id="b",
            expires_at_us=kit.us(60),
            at_us=kit.us(after_s),
        )

    def time(run_id: str, after_s: int, lease_id: str = "L", seconds: int = 5) -> events.DeviceSlice:
        t0_ns, zeros = 1000 * kit.us(after_s), dict.fromkeys((f"{bucket}_ns" for bucket in events.BUCKETS), 0)
        return events.DeviceSlice(
            device_id="s0",
            lease_id=lease_id,
            rollout_run_id=run_id,
            t0_ns=t0_ns,
            t1_ns=t0_ns + seconds * 10**9,
            at_us=kit.us(after_s),
            **zeros | {"rollout_ns": seconds * 10**9},
        )

    granted = dataclasses.replace(change("granted", 10), rl_run_id="a")
    made = [granted, time("b", 11, seconds=0), time("a", 12), change("renewed", 17)]
    made += [time("b", 18), time("b", 23), change("released", 30)]
    made += [change("granted", 40, "M"), change("released", 50, "M"), change("granted", 50, "N"), time("b", 51, "N")]
    ended = events.Run(action="ended", name="n", at_us=kit.us(59))
    root = kit.write(tmp_path / "ledger", [kit.started(), *made, ended, dataclasses.replace(ended, run_id="b")])
    run = next(run for run in data.runs(root) if run.run_id == "run")
    shown = Window(1000 * kit.us(0), 1000 * kit.us(60))
    seconds = {
        name: data.in_window(root, "dashboard/fleet_leases", dataclasses.replace(run, run_id=name), shown)
        .select("lease_id", "seconds", "own_seconds")
        .rows()
        for name in ("run", "a", "b")
    }
    assert seconds == {
        "run": [("N", 6, 6), ("M", 10, 10), ("L", 20, 20)],
        "a": [("L", 20, 8)],
        "b": [("N", 6, 6), ("M", 10, None), ("L", 20, 12)],
    }
    later = Window(1000 * kit.us(57), shown.to_ns)
    assert data.in_window(root, "dashboard/fleet_leases", run, later).is_empty()


def test_leases_that_had_ended_keep_no_older_one_from_the_newest_500(tmp_path: Path, kit: Any) -> None:
    """Of 501 that nothing closed the last slice ends before the time that is asked for, and `L` is in force in it."""

    def change(action: Any, after_s: int, lease_id: str) -> events.Lease:
        return events.Lease(
            action=action,
            lease_id=lease_id,
            device_id="s0",
            kv_budget_bytes=1,
            compute_share=1.0,
            expires_at_us=kit.us(60),
            at_us=kit.us(after_s),
        )

    made: list[events.Event] = [change("granted", 10, "L"), change("released", 50, "L")]
    zeros = dict.fromkeys((f"{bucket}_ns" for bucket in events.BUCKETS), 0)
    t0_ns = 1000 * kit.us(20)
    for name in (f"lost-{number}" for number in range(501)):
        spent: Any = zeros | {"rollout_ns": kit.S}
        made.append(change("granted", 20, name))
        made.append(
            events.DeviceSlice(
                device_id=name, lease_id=name, t0_ns=t0_ns, t1_ns=t0_ns + kit.S, at_us=kit.us(21), **spent
            )
        )
    root = kit.write(tmp_path / "ledger", [kit.started(), *made])
    (run,) = data.runs(root)
    leases = data.in_window(root, "dashboard/fleet_leases", run, Window(1000 * kit.us(30), 1000 * kit.us(60)))
    assert leases.select("lease_id", "leases").rows() == [("L", 1)]
    leases = data.in_window(root, "dashboard/fleet_leases", run, Window(1000 * kit.us(0), 1000 * kit.us(60)))
    assert (leases.height, leases["leases"][0], leases["seconds"].max()) == (500, 502, 1)


def test_a_preemption_opens_with_its_phases_and_its_lease(
    made: Path, run: data.Run, built: Report, open_page: Any, values: Any, page_text: Any
) -> None:
    rows = data.in_window(made, "dashboard/preemptions/newest", run, window.whole(run), part="cut")
    app = open_page(made, "preemptions", preemption=rows["event_id"][0], lease=rows["lease_id"][0], action="cut")
    assert not app.exception
    shown = values(app)
    assert shown["Leases granted"] == built.leases["granted"].text
    assert shown["Leases revoked"] == built.preemptions["revoke"].count.text
    assert (shown["Memory free after"], shown["Requests moved"]) == ("30 ms", "1")
    assert shown["All of its time, amortized"].startswith("$")
    assert "The lease's memory was reduced." in page_text(app)
    assert "![" not in "".join(str(element.value) for element in app.markdown)
    assert "Yields: half within 4 ms, 99% within 7 ms (42 of 48 recorded it)." in page_text(app)
    listed = next(frame.value for frame in app.dataframe if "reaction ms" in frame.value)
    assert set(listed["action"]) == {"cut"}
    (button,) = [button for button in app.button if button.label == "Close the preemption"]
    assert "Memory free after" not in values(button.click().run())


@pytest.mark.long
def test_a_run_in_which_nothing_was_taken_back_says_so(
    tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    app = open_page(kit.write(tmp_path / "ledger", [kit.started()]), "preemptions", preemption="nobody/1")
    assert not app.exception
    assert not app.metric
    for sentence in ("Serving took nothing back", "No weight sync was recorded", "This run has no preemption"):
        assert sentence in page_text(app)
