import json
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from rose import events
from rose.ledger.files import catalog, layout, segments
from rose.ledger.growth import archive, compaction, rollup
from rose.ledger.ledger import Ledger
from rose.ledger.writer import LedgerWriter
from rose.pricing.answers import run_report
from rose.pricing.answers.run_report import ACCEPTED, HARVEST, HARVEST_OF_UNUSED, UNUSED, WITHHELD, Report
from rose.pricing.borrowing.alternatives import compare
from rose.pricing.borrowing.comparison import (
    ADDED,
    ADDED_THERE,
    CAPACITY,
    CASH,
    IDLE,
    NEEDED,
    WOULD,
    WOULD_NOT,
    savings_table,
)
from rose.pricing.console import WIDTH
from rose.pricing.money import PricingError
from rose.pricing.run import priced
from rose.pricing.table import Section
from tests.pricing import any_event
from tests.pricing.conftest import T0_NS, S, joined, printed, shown, us, work
from tests.pricing.marginal_cost.lending_books import book_with


def figures(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        own = [node] if {"value", "unit"} <= set(node) else []
        return own + [figure for child in node.values() for figure in figures(child)]
    return [figure for child in node for figure in figures(child)] if isinstance(node, list) else []


def values(section: Section, table: str, column: str = "value") -> dict[str, Any]:
    name = section.table(table).columns[0].name
    return {row[name]: getattr(row[column], "value", None) for row in section.table(table).records()}


def test_the_report_of_the_sample(sample_report: Report) -> None:
    made = sample_report.section
    assert json.loads(json.dumps(sample_report.to_json()))["run"]["status"] == "running"
    time = {view: values(made, "time", view) for view in ("amortized", "fully loaded", "marginal")}
    assert time["amortized"]["fleet"] == time["fully loaded"]["fleet"] == 4_740_000_000
    assert time["marginal"]["rollout"] == made.figure("borrow", "m", "in all").value == 62_715_000
    assert made.figure("borrow", "m", "per device-hour").value == 156_787_500
    glance = values(made, "glance")
    assert glance[HARVEST] == glance[HARVEST_OF_UNUSED] == pytest.approx(720 / (720 + 108 + 180))
    assert not any("longer than alone" in note for note in made.table("latency").notes)
    assert (glance[UNUSED], glance[ACCEPTED]) == (0, 0.5)
    assert [glance[f"{ACCEPTED}, {name} step"] for name in ("first", "last")] == [1 / 3, 2 / 3]
    borrowed, dedicated = (made.table("tokens").row(f"{place} devices") for place in ("borrowed", "dedicated"))
    assert (borrowed["marginal"].value, dedicated["amortized"].value) == (44_796_428_571, 251_785_714_286)
    # 1400 useful borrowed tokens at the dedicated price of 1.41 / 5600 each: 540 s of a device, of which dedicated ones
    # sat idle for 288 s. The other 252 s would have been bought.
    saved = values(made, "savings")
    assert saved[CAPACITY] == 352_500_000
    assert [made.figure("savings", name).view for name in (CAPACITY, CASH)] == ["amortized", "marginal"]
    assert (saved[NEEDED], saved[IDLE]) == (540 * S, 288 * S)
    assert (saved[ADDED_THERE], saved[ADDED]) == (164_500_000, 62_715_000)
    assert saved[CASH] == 164_500_000 - 62_715_000
    assert "; hypothetical: nobody" in made.table("savings").row(CAPACITY)["rests on"]
    assert "the other 4 min 12.0 s would have been" in made.table("savings").row(ADDED_THERE)["rests on"]
    # In one view each: the borrowed tokens' own device time, and what theirs would have added on dedicated devices.
    assert borrowed["amortized"].value == round(940_000_000 * 10**6 / 1400)
    assert dedicated["marginal"].value == 164_500_000 * 10**6 // 1400
    counts = values(made, "events", "how many")
    assert [counts[f"leases {name}"] for name in ("granted", *run_report.CLOSINGS)] == [4, 1, 1, 1, 1]
    assert counts["dense over sent"] == pytest.approx(32 / 18)
    taken = {name: made.table("preemptions").row(name) for name in ("yield", "cut", "revoke")}
    assert (taken["revoke"]["tokens lost"].value, taken["yield"]["waited"].value) == (100, 5_000_000)
    # Tokens that a yield did not record are unknown, not none; there was no cut, so none were lost to one.
    assert (taken["yield"]["tokens kept"].value, taken["yield"]["tokens kept"].text) == (None, "not recorded")
    assert taken["cut"]["tokens kept"].value == 0
    lent, apart, every = (made.table("latency").row(name) for name in ("lent", "not lent", "all"))
    assert (lent["TTFT p50"].value, lent["TTFT p99"].value) == (200_000_000, 2_500_000_000)
    assert lent["missed budget"].value == pytest.approx(1 / 3)
    assert (apart["requests"].value, every["requests"].value) == (2, 5)
    assert made.figure("latency", "budget", "TTFT p99").value == 2_000_000_000
    blended = made.table("lines").row("blended")
    assert (blended["1,000 accepted"].value, blended["1,000 correct"].value) == (490_905_000_000, 2 * 490_905_000_000)
    assert made.figure("lines", "serving", "list price").value == 36_000_000_000


def test_the_same_ledger_and_book_give_the_same_bytes(
    sample_report: Report, sample_made: list[events.Event], write_ledger: Any, tmp_path: Path
) -> None:
    once = json.dumps(sample_report.to_json())
    # Written again in another order, through two writers: the same facts.
    again = write_ledger(sample_made[::2], root=tmp_path / "again", writer="z")
    write_ledger(sample_made[1::2][::-1], root=again, writer="a")
    assert json.dumps(run_report.build(Ledger(again)).to_json()) == once


def test_every_figure_says_what_it_is(sample_report: Report) -> None:
    every_figure = figures(sample_report.to_json())
    assert len(every_figure) > 100
    for figure in every_figure:
        assert figure["unit"]
        assert figure["view"]
        assert figure["provenance"] == "replay"
        assert figure["value"] is not None or figure["why"]
    stamp = sample_report.to_json()["stamp"]
    assert (stamp["currency"], stamp["verified"]) == ("USD", True)
    assert stamp["period"]["from"] < stamp["period"]["to"]


def test_sums_are_exact(sample_report: Report) -> None:
    for view in ("time", "amortized", "fully loaded"):
        parts = values(sample_report.section, "time", view)
        assert parts.pop("fleet") == sum(value or 0 for value in parts.values())
    amounts = [figure for figure in figures(sample_report.to_json()) if figure["unit"].startswith("nano_usd")]
    assert {type(figure["value"]) for figure in amounts} == {int, type(None)}


def test_a_run_that_has_only_device_time_gives_not_enough_data_and_no_zero_rates(write_ledger: Any) -> None:
    root = write_ledger([events.Run(action="started", name="bare", at_us=1), joined("a"), work("a", 0, serving=1)])
    built = run_report.build(Ledger(root))
    made, c3 = built.section, built.section.table("c3").records()
    for figure in (
        made.figure("glance", HARVEST),
        made.figure("glance", HARVEST_OF_UNUSED),
        made.figure("savings", CASH),
        *(row["value"] for row in c3 if "CPM" not in row["what"] and "useful" not in row["what"]),
        made.figure("tokens", "borrowed devices", "marginal"),
        made.figure("tokens", "dedicated devices", "amortized"),
        made.figure("tokens", "borrowed devices", "tokens wasted"),
        made.figure("lines", "blended", "1,000 accepted"),
        made.figure("lines", "serving", "list price"),
        made.figure("borrow", "m", "per device-hour"),
        made.figure("latency", "all", "TTFT p99"),
        made.figure("events", "dense over sent", "how many"),
    ):
        assert figure.value is None
        assert "not enough data" in str(figure.why)
    assert "not enough data" in printed(built.elements())


@pytest.mark.parametrize(
    ("config", "allowed"), [({"coserving": {"stretch": 1.25}}, "; 25.0% is allowed."), ({}, " of requests.")]
)
def test_a_report_tells_what_serving_lost_beside_rollouts_and_harvest_of_what_serving_alone_leaves(
    write_ledger: Any, config: Any, allowed: str
) -> None:
    """Of 100 s serving has 60 s. It was delayed by 20 s beside 10 s of work, so alone it would have taken 50 s."""
    beside = work("s0", 0, "L1", serving=60, rollout=20, headroom=5, idle=15)
    times = {"at_us": us(50), "ttft_ns": 10 * S, "e2e_ns": 30 * S, "tpot_mean_ns": S}
    root = write_ledger(
        [
            events.Run(action="started", name="beside", config_json=json.dumps(config), at_us=us(0)),
            joined("s0"),
            replace(beside, beside_ns=40 * S, beside_work_ns=10 * S, delayed_ns=20 * S),
            any_event.request(device_id="s0", request_id="q", output_tokens=21, **times),
        ]
    )
    made = run_report.build(Ledger(root)).section
    assert made.figure("glance", HARVEST).value == pytest.approx(20 / 40)
    assert made.figure("glance", HARVEST_OF_UNUSED).value == pytest.approx(20 / 50)
    # 20 s of tokens, of which a fifth is delay.
    (told,) = [note for note in made.table("latency").notes if "longer than alone" in note]
    assert "25.0% longer than alone on average" in told
    assert told.endswith(allowed)


def test_idle_time_that_the_experiment_withheld_is_apart(write_ledger: Any) -> None:
    """Of 100 s without a lease 40 s are idle, a quarter of them in a withheld window."""
    drawn = {"draw": 0.01, "holdout_share": 0.05, "holdout_seed": 0, "window_ns": 25 * S, "washout_ns": 0}
    windows = [
        events.Holdout(device_id="s0", t0_ns=T0_NS + at * S, t1_ns=T0_NS + (at + 25) * S, withheld=at == 50, **drawn)
        for at in (0, 25, 50, 75)
    ]
    begun = events.Run(action="started", name="drawn", at_us=us(0))
    lent = work("s0", 100, "L1", rollout=10, idle=5)
    root = write_ledger([begun, joined("s0"), work("s0", 0, serving=60, idle=40), lent, *windows])
    made = run_report.build(Ledger(root)).section
    assert made.figure("glance", WITHHELD).value == 10 * S
    assert made.figure("glance", UNUSED).value == 5 * S


def test_where_the_fleet_might_not_exist_without_leases_borrowed_time_costs_its_price(sample_kept: Path) -> None:
    stated, avoidable_nano = "idle_anyway = 0.9\nidle_anyway_low = 0.5\nidle_anyway_high = 1", 94_000_000
    with priced.priced(Ledger(sample_kept), price_book=book_with(("idle_anyway = true", stated))) as run:
        saved = {row["what"]: row["value"].value for row in savings_table(run.make, compare(run), run.borrow).records()}
        assert run.cost.by_line["opportunistic"] == Fraction(avoidable_nano + 62_715_000, 1400 * 10**9)
    assert saved[ADDED] == avoidable_nano + 62_715_000
    assert saved[CASH] == 164_500_000 - avoidable_nano - 62_715_000


def test_where_the_book_is_silent_both_ends_are_shown(sample_kept: Path) -> None:
    built = run_report.build(Ledger(sample_kept), price_book=book_with(("idle_anyway = true", "")))
    saved = values(built.section, "savings")
    assert saved[CASH] is None
    assert "the price book states no idle_anyway" in str(built.section.figure("savings", CASH).why)
    assert [saved[f"{CASH} {end}"] for end in (WOULD, WOULD_NOT)] == [101_785_000, -838_215_000]
    assert "m is valid if the fleet would have existed without the leases, which the" in printed(built.elements())


def test_provenance_is_never_mixed(sample: Path, write_ledger: Any) -> None:
    write_ledger([events.Preemption(action="cut", reason="r")], root=sample, writer="second", provenance="simulated")
    with pytest.raises(PricingError, match=r"mixes .* replay, 1 simulated"):
        run_report.build(Ledger(sample))


def test_an_unknown_run_and_an_empty_ledger_are_refused(sample_kept: Path, write_ledger: Any, tmp_path: Path) -> None:
    with pytest.raises(PricingError, match="no run 'other'"):
        run_report.build(Ledger(sample_kept), "other")
    with pytest.raises(PricingError, match="no run yet"):
        run_report.build(Ledger(write_ledger([], root=tmp_path / "empty")))


def test_the_newest_run_is_reported_by_default(sample: Path, write_ledger: Any) -> None:
    came = joined("s0", device_class="h200")
    made = [events.Run(action="started", name="later"), came, replace(came, action="left", t_ns=T0_NS + 3600 * S)]
    write_ledger(made, root=sample, writer="second", run_id="later", provenance="simulated")
    with priced.priced(Ledger(sample)) as run:
        assert (run.run.run_id, run.stamp.provenance) == ("later", "simulated")
        assert run.allocation.cost_nano_usd == 2_500_000_000


def test_the_tables_fit_and_show_view_currency_and_provenance(sample_report: Report) -> None:
    text = shown(sample_report.elements())
    assert max(len(line) for line in text.splitlines()) <= WIDTH
    assert len([line for line in text.splitlines() if "USD, replay, EXAMPLE PRICES" in line]) > 8
    assert "trace bursty, prompts x0.1, outputs x0.5, gaps x2" in text
    assert "$0.102 (partly assumed)" in text


def test_a_run_that_was_archived_in_part_gives_no_figures_until_it_is_restored(
    sample: Path, sample_report: Report, tmp_path: Path
) -> None:
    writer = next(name for name in layout.writers(sample) if layout.epochs(sample, name))
    tail = segments.recover(sample, writer)
    assert tail is not None
    segments.begin_epoch(sample, tail)
    compaction.compact(Ledger(sample))
    rollup.roll_up(Ledger(sample))
    away = str(tmp_path / "away")
    assert archive.archive(Ledger(sample), older_than_days=0, to=away, delete=True, grace_s=0).left == 1
    with pytest.raises(PricingError, match=r"events of run 'run' were archived.*rose ledger restore"):
        run_report.build(Ledger(sample), "run")
    archive.restore(Ledger(sample), away)
    assert run_report.build(Ledger(sample), "run").to_json() == sample_report.to_json()


def test_a_run_on_stand_ins_for_kernels_says_so_before_any_figure(sample: Path, sample_report: Report) -> None:
    assert run_report.NATIVE_KERNELS[:40] not in shown(sample_report.elements())
    with LedgerWriter.open(sample, "agent-late", "run", provenance="replay") as writer:
        writer.record(events.Engine(action="started", role="serving", model="m", compute_mechanism="native-kernels+x"))
        writer.record(events.Run(action="started", name="of-a-team", run_id="of-a-team", fleet_run_id="run"))
    with closing(catalog.connect(sample)) as connection:
        facts = [priced.run_facts(connection, run_id) for run_id in ("run", "of-a-team")]
    assert [run.native_kernels for run in facts] == [True, True]
    assert shown(replace(sample_report, run=facts[0]).elements()).startswith(run_report.NATIVE_KERNELS[:40])
