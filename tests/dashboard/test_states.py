"""Pages of ledgers that are empty, just begun, being written, mixed, archived, damaged or missing."""

import dataclasses
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from dashboard import bar, data, frame
from dashboard.link import Link
from rose import events
from rose.ledger.files import layout, segments
from rose.ledger.growth import compaction, rollup
from rose.ledger.growth.archive import archive
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing import period
from rose.pricing.closing import close
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook
from tests.dashboard.conftest import OpenPage, choose, page_text, values
from tests.ledger.conftest import flip


@pytest.fixture
def damaged(ended: Path, tmp_path: Path) -> Path:
    root = shutil.copytree(ended, tmp_path / "ledger")
    segment = max(root.glob("live/**/*.parquet"), key=lambda path: path.stat().st_size)
    flip(segment, segment.stat().st_size // 2)
    return root


def test_an_empty_ledger_is_waited_for_and_a_run_that_has_only_begun_gets_words(
    tmp_path: Path, open_page: OpenPage, kit: Any
) -> None:
    root = layout.create(tmp_path / "ledger")
    app = open_page(root, "overview")
    assert "has no run yet" in app.info[0].value
    kit.write(root, [kit.started()])
    app.run()
    assert not app.exception
    assert "nothing is charged" in page_text(app)
    assert not app.metric
    for page in ("borrowing", "books"):
        app = open_page(root, page)
        assert app.info or app.error
        assert not app.metric


def test_no_figure_is_made_of_events_of_different_provenance(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    root = kit.write(tmp_path / "ledger", kit.a_run())
    kit.write(root, kit.slices(3), writer="other", provenance="live")
    for page in ("borrowing", "fleet"):
        app = open_page(root, page)
        assert "live and simulated" in app.error[0].value
        assert not app.metric
        assert not app.get("vega_lite_chart")


def test_the_newest_run_comes_first_and_another_can_be_chosen(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    root = kit.write(tmp_path / "ledger", kit.a_run(), run_id="old")
    kit.write(root, [kit.started("measured", after_s=500)], run_id="new", provenance="live")
    app = open_page(root, "serving")
    assert "measured" in page_text(app)
    assert "no event since **2026-06-01 00:08:20 UTC**" in page_text(app)
    assert not any("SIMULATED" in warning.value for warning in app.warning)
    app = choose(app, "Run", "old")
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert "old" in page_text(app)


def test_what_is_not_known_is_called_unknown(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    rows = [kit.started(), *kit.joined(), *kit.slices(0), *kit.left(30)]
    untagged = [dataclasses.replace(rows[0], tags_json="{}"), *rows[1:]]
    app = open_page(kit.write(tmp_path / "ledger", untagged), "overview")
    assert values(app)["Within latency budgets"] == "unknown"
    assert "No serving request was recorded" in page_text(app)
    assert "No run has a team tag" in page_text(app)


@pytest.mark.parametrize("goes_on", [True, False])
def test_serving_is_judged_only_by_enough_requests(
    goes_on: bool, tmp_path: Path, open_page: OpenPage, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if goes_on:
        monkeypatch.setattr(kit, "T0_NS", (int(time.time()) - 300) * kit.S)
    in_time = [one for step in range(4) for one in kit.requests(step) if one.ttft_ns < one.ttft_budget_ns][:83]
    requests = [dataclasses.replace(in_time[0], ttft_ns=3 * kit.S), *in_time[1:]]
    end = [] if goes_on else [events.Run(action="ended", name="little fleet", at_us=kit.us(120))]
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *kit.slices(0), *requests, *end])
    fleet = open_page(root, "fleet")
    assert "too few requests to tell: 1 of 83 late" in page_text(fleet)
    assert bool([warning for warning in fleet.warning if "1 of 83" in warning.value]) == goes_on
    assert ("No fleet is running" in page_text(fleet)) != goes_on
    assert not [*fleet.error, *fleet.success]
    overview = open_page(root, "overview")
    assert "too few to tell" in page_text(overview)
    assert "Serving missed its target" not in page_text(overview)


def test_a_fleet_whose_devices_were_archived_shows_its_closed_figures(
    tmp_path: Path, open_page: OpenPage, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "SEGMENTS_PER_EPOCH", 1)
    rows = kit.a_run()
    root = kit.write(tmp_path / "ledger", [one for one in rows if not isinstance(one, events.Run)], writer="agent")
    kit.write(root, [one for one in rows if isinstance(one, events.Run)])
    ours = pricebook.load("example").text.replace('name = "example"', 'name = "ours"')
    close.close(Ledger(root), period.of_month("2026-06"), pricebook.parse(ours, "ours.toml"), by="finance")
    scope = data.Scope(
        ledger=Ledger(root), period=period.of_month("2026-06"), book=pricebook.load("example"), provenance="simulated"
    )
    billed = data.bill(scope)
    later = kit.started("later", after_s=time.time() - kit.us(0) / 1e6)
    kit.write(root, [later], run_id="later")
    compaction.compact(Ledger(root), grace_s=0)
    rollup.roll_up(Ledger(root))
    assert archive(Ledger(root), older_than_days=1, to=str(tmp_path / "away"), delete=True, grace_s=0).parts
    assert data.rows(Ledger(root), "dashboard/devices", run_id="run", from_ns=0).is_empty()
    app = open_page(root, "overview")
    assert values(app)["Rollout cost"] == format_usd(data.spent(scope, billed, scope.period, Link()).rollout_nano)
    assert values(app)["Harvest share"] != "unknown"
    assert "unknown, since events of this period were archived" in page_text(app)


def test_what_is_lent_beside_live_requests_is_said_with_what_it_costs_serving(
    tmp_path: Path, open_page: OpenPage, kit: Any
) -> None:
    parts: Any = {f"{bucket}_ns": 0 for bucket in events.BUCKETS}
    parts |= {"serving_ns": 7 * kit.S // 10, "rollout_ns": 3 * kit.S // 10}
    parts |= {"beside_ns": kit.S, "beside_work_ns": 3 * kit.S // 10, "delayed_ns": 4 * kit.S // 10}
    shared = [dataclasses.replace(one, **parts) for one in kit.slices(0) if one.device_id == "s0"]
    app = open_page(kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *shared]), "fleet")
    # Serving had 0.7 s of a second and was delayed by 0.4 s, 0.3 s of it by rollouts' work: it takes 0.6 s alone.
    assert "(serving devices: 1), rollouts had 30.0% of the device, and serving's steps took 66.7%" in page_text(app)
    alone = open_page(kit.write(tmp_path / "other", [kit.started(), *kit.joined(), *kit.slices(0)]), "fleet")
    assert "beside live requests" not in page_text(alone)


def test_idle_time_that_the_experiment_withheld_is_apart(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    parts: Any = {f"{bucket}_ns": 0 for bucket in events.BUCKETS} | {"idle_ns": kit.S, "lease_id": None}
    idle = [dataclasses.replace(one, **parts) for one in kit.slices(0) if one.device_id == "s0"]
    drawn: Any = {"draw": 0.01, "holdout_share": 0.05, "holdout_seed": 0, "window_ns": 4 * kit.S, "washout_ns": 0}
    begin_ns = idle[0].t0_ns
    windows = [
        events.Holdout(device_id="s0", t0_ns=begin_ns + at, t1_ns=begin_ns + at + 4 * kit.S, withheld=not at, **drawn)
        for at in (0, 4 * kit.S)
    ]
    root = kit.write(tmp_path / "ledger", [kit.started(), *kit.joined(), *idle, *windows])
    assert "Idle because the experiment withheld leases: 4 s." in page_text(open_page(root, "overview"))
    cost = open_page(root, "cost", by="bucket", work="everything")
    assert "Idle because the experiment withheld leases: 4 s." in page_text(cost)
    none = kit.write(tmp_path / "other", [kit.started(), *kit.joined(), *idle])
    assert "withheld" not in page_text(open_page(none, "overview"))


def test_a_damaged_ledger_is_named_on_every_page_and_has_no_figures(damaged: Path, open_page: OpenPage) -> None:
    app = open_page(damaged, "fleet")
    assert "not to be trusted" in page_text(app)
    assert "by a ledger that does not verify" in page_text(app)
    assert "0 problems" not in page_text(app)
    app = open_page(damaged, "overview")
    assert len([error for error in app.error if "This ledger does not verify" in error.value]) == 1
    assert "Rollout cost" not in values(app)
    assert "problem" in open_page(damaged, "trust").dataframe[0].value


def test_a_file_that_was_cut_short_is_told_in_words_with_the_way_out(damaged: Path, open_page: OpenPage) -> None:
    segment = max(damaged.glob("live/**/*.parquet"), key=lambda path: path.stat().st_size)
    segment.write_bytes(segment.read_bytes()[:-100])
    (damaged / layout.CATALOG).unlink()
    for page in ("overview", "cost", "fleet", "trust"):
        text = page_text(open_page(damaged, page))
        assert segment.name in text
        assert "put it back from a copy" in text
        assert "read_parquet" not in text


def test_without_prices_the_overview_has_what_takes_none(
    ended: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    app = open_page(ended, "overview")
    assert "No price book" in page_text(app)
    assert values(app) == {"Within latency budgets": "96.7%", "Trust in the ledger": "0 problems"}


def test_what_was_never_verified_is_not_called_sound(ended: Path, tmp_path: Path) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    shutil.rmtree(root / "verified", ignore_errors=True)
    assert frame.Trust(until=None, problems=None).text == "never verified"
    Ledger(root).verify()
    looked = frame.look(Ledger(root))
    assert looked.problems == ()
    assert looked.text.endswith("0 problems")
    gone = Ledger(root)
    root.rename(tmp_path / "elsewhere")
    nothing = frame.look(gone)
    assert nothing.problems is None
    assert "is not a ledger" in nothing.why


def test_a_missing_view_and_a_missing_ledger_are_messages(
    ended: Path, tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rose.ledger.files import catalog

    app = open_page(tmp_path / "nothing", "overview")
    assert "is not a ledger" in app.error[0].value
    root = shutil.copytree(ended, tmp_path / "ledger")
    connect = catalog.connect

    def without_views(path: Any) -> Any:
        connection = connect(path)
        connection.execute("CREATE SCHEMA memory.bare; USE memory.bare")
        return connection

    monkeypatch.setattr(catalog, "connect", without_views)
    app = open_page(root, "fleet")
    assert "view of the ledger is missing" in app.error[0].value


def test_the_price_of_an_answer_is_shown_for_the_newest_run_that_has_judged_answers(
    tmp_path: Path, open_page: OpenPage
) -> None:
    root = tmp_path / "ledger"
    judged: Any = {"run_id": "first", "trajectory_id": "t", "verifier": "maze", "at_us": 10**15 + 1}
    judged |= {"group_id": "g", "step": 0, "reward": 1.0, "threshold": 1.0}
    with LedgerWriter.open(root, "w", "fleet", "live") as ledger:
        starts = (("first", 10**15), ("second", 10**15 + 2))
        ledger.record_all([events.Run(action="started", name=name, run_id=name, at_us=at_us) for name, at_us in starts])
        ledger.record(events.Verdict(accepted=True, correct=True, **judged))
    assert "(first)" in page_text(open_page(root, "cost_per_correct"))
    chosen = open_page(root, "cost_per_correct", run="second")
    assert "(second)" in page_text(chosen)
    assert any("No answer of this run was judged" in box.value for box in chosen.info)


def test_a_run_has_the_traffic_of_its_fleet(tmp_path: Path) -> None:
    root = tmp_path / "ledger"
    with LedgerWriter.open(root, "w", "fleet", "live") as ledger:
        ledger.record(events.Run(action="started", name="fleet", trace="bursty", trace_keep_share=0.5))
        ledger.record(events.Run(action="started", name="rl", run_id="rl"))
    traffic = {run.run_id: (run.fleet_run_id, run.trace, run.trace_keep_share) for run in data.runs(Ledger(root))}
    assert traffic == dict.fromkeys(("fleet", "rl"), ("fleet", "bursty", 0.5))


def test_a_run_that_is_too_old_to_be_listed_opens_by_its_id(tmp_path: Path, open_page: OpenPage) -> None:
    root, count = tmp_path / "ledger", bar.RUNS_MAX + 3
    names = [f"run-{number}" for number in range(count)]
    with LedgerWriter.open(root, "w", "fleet", "live") as ledger:
        starts = ((name, 10**15 + number) for number, name in enumerate(names))
        ledger.record_all([events.Run(action="started", name=name, run_id=name, at_us=at_us) for name, at_us in starts])
    assert (len(data.runs(Ledger(root))), data.runs(Ledger(root))[0].runs) == (bar.RUNS_MAX, count)
    app = open_page(root, "fleet", run="run-1")
    assert "left out" not in page_text(app)
    assert "(run-1)" in page_text(app)
    assert f"Run, newest {bar.RUNS_MAX} of {count}" in [box.label for box in app.selectbox]
