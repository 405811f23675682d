from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import amounts, data, link
from dashboard.costs import groups, why
from dashboard.costs.groups import GROUPS, PLACES
from dashboard.spending import ROLLOUT_BUCKETS
from rose import events
from rose.pricing import charges
from rose.pricing.borrowing.report.waterfall import waterfall
from rose.pricing.document import Report
from rose.pricing.money import NS_PER_HOUR
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import priced
from rose.pricing.table import Section


@pytest.fixture(scope="module")
def frame(ended: Path) -> pl.DataFrame:
    return charges.price(ended, pricebook.load("example")).frame


@pytest.fixture(scope="module")
def rollouts(frame: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """By view."""
    loaded = charges.fully_load(frame).filter(pl.col("work") == "rollout").with_columns(amount_nano="loaded_nano")
    amortized = frame.filter(pl.col("bucket").is_in(ROLLOUT_BUCKETS)).with_columns(amount_nano="cost_nano")
    models = {"run": "little-model"}
    return {
        link.AMORTIZED: groups.with_models(amortized, models),
        link.FULLY_LOADED: groups.with_models(loaded, models),
    }


@pytest.fixture(scope="module")
def steps(ended: Path) -> Section:
    with priced(ended) as run:
        return waterfall(run)


def test_the_address_knows_every_way_to_divide() -> None:
    assert tuple(GROUPS) == link.GROUPS


@pytest.mark.parametrize("by", GROUPS)
@pytest.mark.parametrize("view", link.VIEWS)
def test_rows_add_up_to_the_total_to_the_nano_dollar(by: str, view: str, rollouts: dict[str, pl.DataFrame]) -> None:
    frame = rollouts[view]
    rows = groups.grouped(frame, by)
    assert sum(row.nano for row in rows) == frame["amount_nano"].sum() == groups.total(rows).nano
    assert [row.nano for row in rows] == sorted((row.nano for row in rows), reverse=True)
    for row in rows:
        assert sum(row.places.values()) == row.nano
        assert set(row.places) <= set(PLACES)
        assert groups.in_row(frame, by, row.key)["amount_nano"].sum() == row.nano


def test_device_time_and_tokens_are_alike_in_both_views(rollouts: dict[str, pl.DataFrame], built: Report) -> None:
    whole = {view: groups.total(groups.grouped(frame, "team")) for view, frame in rollouts.items()}
    amortized = whole[link.AMORTIZED]
    time = ("rollout", "sync", "activation")
    assert amortized.ns == sum(int(built.device_time[bucket].value or 0) for bucket in time)
    assert amortized.tokens == sum(int(made["useful"].value or 0) for made in built.tokens.values())
    assert (whole[link.FULLY_LOADED].ns, whole[link.FULLY_LOADED].tokens) == (amortized.ns, amortized.tokens)
    time_nano = amortized.nano - amortized.places["weight transfer"]
    assert amortized.per_device_hour == Fraction(time_nano * NS_PER_HOUR, amortized.ns)
    assert dataclasses.replace(amortized, ns=0, tokens=0).per_device_hour is None
    assert dataclasses.replace(amortized, ns=0, tokens=0).per_million is None


def test_the_model_is_the_one_of_the_engines(tmp_path: Path, kit: Any) -> None:
    engines: Any = (("rollout", "little"), ("serving", "large"), ("rollout", "little"))
    made = [
        events.Engine(
            action="started",
            engine_id=f"{role}-{n}",
            device_id="s0",
            role=role,
            model=model,
            at_us=kit.us(n),
            kv_bytes=1,
            duration_ns=1,
        )
        for n, (role, model) in enumerate(engines)
    ]
    assert data.models(kit.write(tmp_path / "ledger", [kit.started(), *made])) == {"run": "little"}


def test_bars_of_the_waterfall_begin_where_the_one_before_ends(steps: Section) -> None:
    rows = why.rows(steps).to_dicts()
    assert rows[0]["from"] == 0
    for before, row in itertools.pairwise(rows):
        whole = row["kind"] == "sum so far"
        assert row["from"] == (0 if whole else before["to"])
        if whole:
            assert row["to"] == pytest.approx(before["to"])
        assert (row["nano"] is None) == (row["text"] == "not known")


def test_the_page_is_of_rollouts_first_and_opens_down_to_a_lease(
    ended: Path, rollouts: dict[str, pl.DataFrame], open_page: Any, values: Any, page_text: Any
) -> None:
    nano = int(rollouts[link.AMORTIZED]["amount_nano"].sum())
    app = open_page(ended, "cost", by="run", row="run")
    assert not app.exception
    assert values(app)["Rollout cost"] == amounts.amount(nano)
    assert f"Rollouts cost **{amounts.amount(nano)}** in 2026-06" in page_text(app)
    table, runs = app.dataframe[0].value, app.dataframe[1].value
    assert [round(cost * 1e9) for cost in table["cost"]] == [nano] == [round(cost * 1e9) for cost in runs["cost"]]
    assert "Fully loaded, a useful token cost" in page_text(app)
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert len(app.get("vega_lite_chart")) == 2
    app = open_page(ended, "cost", run="run", lease="L1", view="fully-loaded")
    assert not app.exception
    assert values(app)["Rollout cost"] == amounts.amount(int(rollouts[link.FULLY_LOADED]["amount_nano"].sum()))
    leases = next(frame.value for frame in app.dataframe if "lease id" in frame.value)
    assert list(leases["lease id"]) == [f"L{step}" for step in reversed(range(8))]
    assert "Lease L1" in [header.value for header in app.header]


def test_leases_of_two_fleets_that_are_called_alike_have_each_its_own_cost(
    tmp_path: Path, open_page: Any, kit: Any
) -> None:
    root = tmp_path / "ledger"
    for fleet_run_id, after_s, seconds in (("f1", 0, 10), ("f2", 20, 30)):
        lease: dict[str, Any] = {"lease_id": "L", "device_id": "s0", "at_us": kit.us(after_s)}
        granted = events.Lease(
            action="granted", kv_budget_bytes=1, compute_share=1.0, rl_run_id="a", expires_at_us=kit.us(60), **lease
        )
        t0_ns, zeros = 1000 * kit.us(after_s), dict.fromkeys((f"{bucket}_ns" for bucket in events.BUCKETS), 0)
        spent: Any = zeros | {"rollout_ns": seconds * kit.S}
        own = events.DeviceSlice(rollout_run_id="a", t0_ns=t0_ns, t1_ns=t0_ns + seconds * kit.S, **lease, **spent)
        began = events.Run(action="started", name="grpo", run_id="a", at_us=kit.us(after_s))
        made = [kit.started(), *kit.joined(), began, granted, own]
        kit.write(root, made, run_id=fleet_run_id, writer=fleet_run_id)
    app = open_page(root, "cost", run="a")
    assert not app.exception
    leases = next(frame.value for frame in app.dataframe if "lease id" in frame.value)
    assert list(leases["device id"]) == ["f2/s0", "f1/s0"]
    assert list(leases["device-hours"]) == pytest.approx([30 / 3600, 10 / 3600])


@pytest.mark.long
def test_a_ledger_without_devices_and_a_row_that_is_not_there(
    ended: Path, tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    app = open_page(kit.write(tmp_path / "ledger", [kit.started()]), "cost")
    assert not app.exception
    assert "nothing is charged" in page_text(app)
    assert not app.metric
    app = open_page(ended, "cost", row="nobody")
    assert not app.exception
    assert "Nothing of this period is in that row" in page_text(app)


@pytest.mark.long
def test_another_way_to_divide_is_in_the_address(
    ended: Path, rollouts: dict[str, pl.DataFrame], open_page: Any
) -> None:
    app = open_page(ended, "cost", row="research")
    (close,) = [button for button in app.button if button.label == "Close the row"]
    app = close.click().run()
    (divided,) = [radio for radio in app.radio if radio.label == "Divided by"]
    app = divided.set_value("device-class").run()
    assert not app.exception
    assert app.query_params["by"] in ("device-class", ["device-class"])
    assert "row" not in app.query_params
    nano = int(rollouts[link.AMORTIZED]["amount_nano"].sum())
    assert app.dataframe[0].value["cost"].sum() == pytest.approx(nano / 1e9, abs=1e-9)
