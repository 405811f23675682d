from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger import catalog, layout, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.writer import LedgerWriter
from rose.pricing.console import WIDTH
from rose.pricing.document import Report
from rose.pricing.money import PricingError
from rose.pricing.price_books import pricebook
from rose.pricing.run import priced, report, tables
from tests.pricing.conftest import OURS, printed, shown

T0_NS = 1_780_272_000 * 10**9  # 2026-06-01 UTC
EXAMPLE = resources.files("rose.pricing.price_books").joinpath("example.toml").read_text("utf-8")


def figures(node: Any) -> list[dict[str, Any]]:
    """Every figure of a report's JSON."""
    if isinstance(node, dict):
        own = [node] if {"value", "unit"} <= set(node) else []
        return own + [figure for child in node.values() for figure in figures(child)]
    return [figure for child in node for figure in figures(child)] if isinstance(node, list) else []


def test_the_report_of_the_sample(sample_report: Report) -> None:
    out = json.loads(json.dumps(sample_report.to_json()))
    assert out["run"]["status"] == "running"
    assert out["stamp"]["period"] == {"from": "2026-06-01T00:00:00.000000Z", "to": "2026-06-01T01:00:00.000000Z"}
    assert out["amortized"]["total"]["value"] == out["fully_loaded"]["total"]["value"] == 4_740_000_000
    assert out["marginal"]["total"]["value"] == 62_715_000
    assert out["borrow"]["per_device_hour"]["total"]["value"] == 156_787_500
    assert out["harvest_share"]["value"] == pytest.approx(720 / (720 + 108 + 180))
    assert out["token_cost"]["borrowed"]["marginal"]["value"] == 44_796_428_571
    assert out["token_cost"]["dedicated"]["amortized"]["value"] == 251_785_714_286
    # 1400 useful borrowed tokens at the dedicated price of 1.41 / 5600 each: 540 s of a device, of which dedicated ones
    # sat idle for 288 s. The other 252 s would have been bought.
    savings = out["savings"]
    assert savings["capacity_avoided"]["value"] == 352_500_000
    assert (savings["capacity_avoided"]["view"], savings["cash_saved"]["view"]) == ("amortized", "marginal")
    assert (savings["needed"]["value"], savings["idle"]["value"]) == (540 * 10**9, 288 * 10**9)
    assert (savings["added_there"]["value"], savings["added"]["value"]) == (164_500_000, 62_715_000)
    assert savings["cash_saved"]["value"] == 164_500_000 - 62_715_000
    assert "; hypothetical: nobody" in savings["rests_on"]["capacity_avoided"]
    assert "the other 4 min 12.0 s would have been" in savings["rests_on"]["cash_saved"]
    # In one view each: the borrowed tokens' own device time, and what theirs would have added on dedicated devices.
    assert out["token_cost"]["borrowed"]["amortized"]["value"] == round(940_000_000 * 10**6 / 1400)
    assert out["token_cost"]["dedicated"]["marginal"]["value"] == 164_500_000 * 10**6 // 1400
    assert out["factors"]["r"]["value"] == 4
    assert {step: figure["value"] for step, figure in out["accept_by_step"].items()} == {"1": 1 / 3, "2": 2 / 3}
    assert [out["leases"][key]["value"] for key in ("granted", "released", "preempted", "expired", "open")] == [
        4,
        1,
        1,
        1,
        1,
    ]
    assert out["preemptions"]["revoke"]["tokens_lost"]["value"] == 100
    assert out["preemptions"]["yield"]["waited"]["value"] == 5_000_000
    # Tokens that a yield did not record are unknown, not none; there was no cut, so none were lost to one.
    assert out["preemptions"]["yield"]["tokens_kept"]["value"] is None
    assert out["preemptions"]["yield"]["tokens_kept"]["text"] == "not recorded"
    assert out["preemptions"]["cut"]["tokens_kept"]["value"] == 0
    assert out["leased_unused"]["value"] == 0
    assert out["syncs"]["dense_over_wire"]["value"] == pytest.approx(32 / 18)
    assert out["latency"]["lent"]["ttft_p50"]["value"] == 200_000_000
    assert out["latency"]["lent"]["ttft_p99"]["value"] == 2_500_000_000
    assert out["latency"]["lent"]["missed_budget"]["value"] == pytest.approx(1 / 3)
    assert out["latency"]["not lent"]["requests"]["value"] == 2
    assert out["latency"]["all"]["ttft_budget"]["value"] == 2_000_000_000
    assert out["cost_per_correct"]["blended"]["measured"]["value"] == 490_905_000
    assert out["cost_per_correct"]["blended"]["per_correct"]["value"] == 2 * 490_905_000
    assert out["cost_per_correct"]["serving"]["formula"]["value"] == 36_000_000_000


def test_the_same_ledger_and_book_give_the_same_bytes(
    sample_report: Report, sample_made: list[events.Event], write_ledger: Any, tmp_path: Path
) -> None:
    once = json.dumps(sample_report.to_json())
    # Written again in another order, through two writers: the same facts.
    again = write_ledger(sample_made[::2], root=tmp_path / "again", writer="z")
    write_ledger(sample_made[1::2][::-1], root=again, writer="a")
    assert json.dumps(report.build(again).to_json()) == once


def test_every_figure_says_what_it_is(sample_report: Report) -> None:
    every_figure = figures(sample_report.to_json())
    assert len(every_figure) > 100
    for figure in every_figure:
        assert figure["unit"]
        assert figure["view"]
        assert (figure["currency"], figure["provenance"], figure["verified"]) == ("USD", "replay", True)
        assert figure["period"]["from"] < figure["period"]["to"]
        assert figure["value"] is not None or figure["why"]


def test_sums_of_the_json_are_exact(sample_report: Report) -> None:
    out = sample_report.to_json()
    for view in ("amortized", "fully_loaded"):
        parts = {name: figure["value"] for name, figure in out[view].items()}
        assert parts.pop("total") == sum(parts.values()) == sum(row["cost"]["value"] for row in out["devices"])
    assert sum(figure["value"] for figure in out["device_time"].values()) == out["provisioned"]["value"]
    assert all(
        isinstance(f["value"], int) for f in figures(out) if f["unit"].startswith("nano_usd") and f["value"] is not None
    )


def test_a_run_that_has_only_device_time_gives_not_enough_data_and_no_zero_rates(write_ledger: Any) -> None:
    root = write_ledger(
        [
            events.Run(action="started", name="bare", at_us=1),
            events.Device(action="joined", device_id="a", t_ns=T0_NS, pool="serving", device_class="h200"),
            events.DeviceSlice(
                device_id="a",
                t0_ns=T0_NS,
                t1_ns=T0_NS + 10**9,
                serving_ns=10**9,
                rollout_ns=0,
                train_ns=0,
                sync_ns=0,
                activation_ns=0,
                headroom_ns=0,
                idle_ns=0,
            ),
        ]
    )
    built = report.build(root)
    out = built.to_json()
    for figure in (
        out["harvest_share"],
        out["savings"]["cash_saved"],
        out["factors"]["rho"],
        out["factors"]["alpha"],
        out["factors"]["r"],
        out["factors"]["ppv"],
        out["token_cost"]["borrowed"]["marginal"],
        out["token_cost"]["dedicated"]["amortized"],
        out["cost_per_correct"]["blended"]["measured"],
        out["cost_per_correct"]["serving"]["formula"],
        out["borrow"]["per_device_hour"]["total"],
        out["latency"]["all"]["ttft_p99"],
        out["syncs"]["dense_over_wire"],
        out["tokens"]["borrowed"]["wasted_share"],
        out["partials"]["alpha"],
    ):
        assert figure["value"] is None
        assert "not enough data" in figure["why"]
    assert "not enough data" in printed(tables.tables(built))


def test_where_the_fleet_would_not_exist_without_leases_borrowed_time_costs_its_full_price(sample_kept: Path) -> None:
    book = pricebook.parse(EXAMPLE.replace("idle_anyway = true", "idle_anyway = false"), "book.toml")
    out = report.build(sample_kept, price_book=book).to_json()
    lines = out["cost_per_correct"]
    # The device time that could have been avoided, and the terms of the borrow on top.
    assert lines["opportunistic"]["token_cost"]["value"] == round((940_000_000 + 62_715_000) / 1400 * 10**6)
    assert out["borrow"]["idle_anyway"] == 0
    assert out["savings"]["cash_saved"]["value"] == 164_500_000 - 940_000_000 - 62_715_000


def test_a_stated_probability_charges_in_proportion_and_silence_shows_both_ends(sample_kept: Path) -> None:
    likely = EXAMPLE.replace("idle_anyway = true", "idle_anyway = 0.9\nidle_anyway_low = 0.5\nidle_anyway_high = 1")
    out = report.build(sample_kept, price_book=pricebook.parse(likely, "book.toml")).to_json()
    assert out["borrow"]["idle_anyway"] == 0.9
    assert out["savings"]["added"]["value"] == 94_000_000 + 62_715_000
    assert out["savings"]["cash_saved"]["value"] == 164_500_000 - 94_000_000 - 62_715_000
    silent = pricebook.parse(EXAMPLE.replace("idle_anyway = true", ""), "book.toml")
    built = report.build(sample_kept, price_book=silent)
    out = built.to_json()["savings"]
    assert out["cash_saved"]["value"] is None
    assert "the price book states no idle_anyway" in out["cash_saved"]["why"]
    assert [figure["value"] for figure in out["cash_saved_if"].values()] == [101_785_000, -838_215_000]
    text = printed(tables.tables(built))
    assert "It holds if the fleet would have existed without the leases, which the price book does not say" in text
    assert "cash saved if it would not" in text


def test_engines_that_died_are_named_and_counted_where_they_came_back(sample: Path, write_ledger: Any) -> None:
    assert report.build(sample).to_json()["engines"]["ends"] == []
    lives: Any = [
        ("s0-rollout", ["started", "died", "started", "activated", "started", "stopped"]),
        ("s0-serving", ["attached", "detached", "attached", "attached", "died"]),
        ("r0-rollout", ["started", "stopped", "started"]),
    ]
    made = [
        events.Engine(
            engine_id=engine_id,
            action=action,
            role="rollout",
            model="m",
            at_us=T0_NS // 1000 + 1_000_000 * n,
            reason="the process [ended]" if action == "died" else None,
        )
        for engine_id, actions in lives
        for n, action in enumerate(actions)
    ]
    built = report.build(write_ledger(made, root=sample, writer="agents"))
    out = built.to_json()["engines"]
    assert out["restarts"]["value"] == 2
    assert [tuple(end.values()) for end in out["ends"]] == [
        ("s0-rollout", "2026-06-01T00:00:01.000000Z", "2026-06-01T00:00:02.000000Z", "the process [ended]"),
        ("s0-rollout", None, "2026-06-01T00:00:04.000000Z", "its agent died"),
        ("s0-serving", "2026-06-01T00:00:04.000000Z", None, "the process [ended]"),
    ]
    text = printed(tables.tables(built))
    assert "engine restarts 2 s0-rollout died at 2026-06-01T00:00:01.000000Z (the process [ended])" in text
    assert "s0-serving died at 2026-06-01T00:00:04.000000Z (the process [ended]), not started again" in text


def test_provenance_is_never_mixed(sample: Path, write_ledger: Any) -> None:
    write_ledger([events.Preemption(action="cut", reason="r")], root=sample, writer="second", provenance="simulated")
    with pytest.raises(PricingError, match=r"mixes .* replay, 1 simulated"):
        report.build(sample)


def test_an_unknown_run_and_an_empty_ledger_are_refused(sample_kept: Path, write_ledger: Any, tmp_path: Path) -> None:
    with pytest.raises(PricingError, match="no run 'other'"):
        report.build(sample_kept, "other")
    with pytest.raises(PricingError, match="no run yet"):
        report.build(write_ledger([], root=tmp_path / "empty"))


def test_the_newest_run_is_reported_by_default(sample: Path, write_ledger: Any) -> None:
    made = [
        events.Run(action="started", name="later"),
        events.Device(action="joined", device_id="s0", t_ns=T0_NS, pool="serving", device_class="h200"),
        events.Device(action="left", device_id="s0", t_ns=T0_NS + 3600 * 10**9, pool="serving", device_class="h200"),
    ]
    write_ledger(made, root=sample, writer="second", run_id="later", provenance="simulated")
    built = report.build(sample)
    assert (built.run.run_id, built.stamp.provenance, built.amortized["total"].value) == (
        "later",
        "simulated",
        2_500_000_000,
    )
    assert report.build(sample, "run").amortized["total"].value == 4_740_000_000


def test_a_changed_ledger_is_refused_unless_its_figures_are_marked(sample: Path) -> None:
    segment = sorted((sample / "live").rglob("*.parquet"))[-1]
    content = bytearray(segment.read_bytes())
    # A byte that no reader of Parquet minds: it is in the name of the software that wrote the file.
    at = content.rindex(b"parquet-cpp")
    content[at] = ord("q")
    segment.write_bytes(content)
    with pytest.raises(PricingError, match="does not verify"):
        report.build(sample)
    built = report.build(sample, allow_unverified=True)
    assert {figure["verified"] for figure in figures(built.to_json())} == {False}
    assert "UNVERIFIED LEDGER" in printed(tables.tables(built))


def test_the_tables_fit_and_show_view_currency_and_provenance(sample_kept: Path) -> None:
    text = shown(tables.tables(report.build(sample_kept, price_book=OURS)))
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    titles = [line for line in text.splitlines() if "USD, replay]" in line]
    assert len(titles) == 8
    assert "trace bursty, prompts x0.1, outputs x0.5, gaps x2" in text
    assert "$0.102 (partly assumed)" in text


def test_a_run_that_was_archived_in_part_gives_no_figures_until_it_is_restored(
    sample: Path, sample_report: Report, tmp_path: Path
) -> None:
    writer = next(name for name in layout.writers(sample) if layout.epochs(sample, name))
    tail = segments.recover(sample, writer)
    assert tail is not None
    segments.begin_epoch(sample, tail)
    compaction.compact(sample)
    rollup.roll_up(sample)
    away = str(tmp_path / "away")
    done = archive.archive(sample, older_than_days=0, to=away, delete=True, grace_s=0)
    assert done.left == 1
    with pytest.raises(PricingError, match=r"events of run 'run' were archived.*rose ledger restore"):
        report.build(sample, "run")
    archive.restore(sample, away)
    assert report.build(sample, "run").to_json() == sample_report.to_json()


def test_a_run_on_stand_ins_for_kernels_says_so_before_any_figure(sample: Path, sample_report: Report) -> None:
    """Engines are the fleet's: those of an RL run on it are too."""
    assert tables.NATIVE_KERNELS[:40] not in shown(tables.tables(sample_report))
    with LedgerWriter.open(sample, "agent-late", "run", provenance="replay") as writer:
        writer.record(events.Engine(action="started", role="serving", model="m", compute_mechanism="native-kernels+x"))
        writer.record(events.Run(action="started", name="of-a-team", run_id="of-a-team", fleet_run_id="run"))
    with closing(catalog.connect(sample)) as connection:
        facts = [priced.run_facts(connection, run_id)[0] for run_id in ("run", "of-a-team")]
    assert [run.native_kernels for run in facts] == [True, True]
    assert shown(tables.tables(replace(sample_report, run=facts[0]))).startswith(tables.NATIVE_KERNELS[:40])
