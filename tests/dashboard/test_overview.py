from __future__ import annotations

import dataclasses
import json
import re
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import drivers
from dashboard.cards import Money
from dashboard.spending import ROLLOUT_BUCKETS
from rose import events
from rose.ledger import layout
from rose.pricing import charges
from rose.pricing.answers.report import changes
from rose.pricing.borrowing.report import alternatives
from rose.pricing.closing import period
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook
from rose.pricing.watch import budget
from tests.dashboard.conftest import unescaped

BOOK = pricebook.load("example")
HOSTILE = "![x](http://evil.example/p.png) $a$ <b>=1+1"


@pytest.fixture(scope="module")
def frame(ended: Path) -> pl.DataFrame:
    return charges.price(ended, BOOK).frame


def rollout_nano(frame: pl.DataFrame) -> int:
    return int(frame.filter(pl.col("bucket").is_in(ROLLOUT_BUCKETS))["cost_nano"].sum())


def test_the_cards_are_pricing_s_figures(
    ended: Path, frame: pl.DataFrame, open_page: Any, values: Any, page_text: Any
) -> None:
    app = open_page(ended, "overview")
    assert not app.exception
    assert not app.error
    saved = alternatives.build(ended, "run", BOOK).cash_saved
    time = frame.filter(pl.col("bucket") == "rollout")
    lent = time.filter((pl.col("pool") == "serving") & pl.col("lease_id").is_not_null())
    accepted = sum(1 + step * 6 // 8 for step in range(8))
    assert values(app) == {
        "Rollout cost": format_usd(rollout_nano(frame)),
        "Borrowing saved": saved.text,
        "Cost per 1,000 correct": format_usd(round(Fraction(1000 * rollout_nano(frame), accepted))),
        "Share borrowed": f"{lent['ns'].sum() / time['ns'].sum():.1%}",
        "Serving within its latency budgets": f"{1 - 8 / 240:.1%}",
        "Trust in the ledger": "0 problems",
    }
    assert f"95% {saved.interval_text}" in page_text(app)
    assert f"Rollouts cost **{format_usd(rollout_nano(frame))}** in 2026-06" in page_text(app)
    assert "target missed" in page_text(app)
    assert any("SIMULATED" in warning.value for warning in app.warning)
    assert len(app.get("vega_lite_chart")) == 2


def test_teams_sum_to_the_bill_and_the_filters_choose(ended: Path, open_page: Any, values: Any) -> None:
    bill = charges.price(ended, BOOK).frame
    app = open_page(ended, "overview")
    teams = app.dataframe[0].value
    assert sum(round(cost * 1e9) for cost in teams["cost"]) == bill["cost_nano"].sum()
    assert sum(round(cost * 1e9) for cost in teams["for rollouts"]) == rollout_nano(bill)
    app = open_page(ended, "overview", team="research")
    assert values(app)["Rollout cost"] == format_usd(rollout_nano(bill.filter(pl.col("team") == "research")))
    app = open_page(ended, "overview", tag="team:research")
    assert values(app)["Rollout cost"] == format_usd(rollout_nano(bill))
    app = open_page(ended, "overview", view="fully-loaded")
    loaded = charges.fully_load(bill).filter(pl.col("work") == "rollout")
    assert values(app)["Rollout cost"] == format_usd(int(loaded["loaded_nano"].sum()))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cost", "sum of all charges"),
        ("saved", "the bill without borrowing"),
        ("correct", "1,000 x rollout cost"),
        ("borrowed", "under a lease"),
        ("slo", "all requests"),
        ("trust", "own verification"),
    ],
)
def test_a_figure_opens_and_stays_open_in_the_address(
    name: str, words: str, ended: Path, open_page: Any, page_text: Any
) -> None:
    app = open_page(ended, "overview")
    (button,) = [button for button in app.button if button.key == f"figure-{name}"]
    app = button.click().run()
    assert not app.exception
    assert app.query_params["figure"] in (name, [name])
    assert words in page_text(app)
    again = open_page(ended, "overview", figure=name)
    assert not again.exception
    assert words in page_text(again)


def test_a_period_is_compared_with_the_one_before(
    ended: Path,
    frame: pl.DataFrame,
    tmp_path: Path,
    open_page: Any,
    page_text: Any,
    kit: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "nothing is charged in 2026-05" in page_text(open_page(ended, "overview"))
    root = shutil.copytree(ended, tmp_path / "ledger")
    monkeypatch.setattr(kit, "T0_NS", kit.T0_NS - 10 * 86_400 * kit.S)
    earlier = [kit.started("earlier"), *kit.joined(), *kit.slices(0), *kit.left(30)]
    kit.write(root, earlier, writer="earlier", run_id="earlier")
    before = charges.price(root, BOOK, run_id="earlier").frame
    more = Fraction(rollout_nano(frame), rollout_nano(before)) - 1
    app = open_page(root, "overview")
    assert not app.exception
    assert f"({float(more):.1%} more than in 2026-05)" in page_text(app)
    (card,) = [metric for metric in app.metric if metric.label == "Rollout cost"]
    assert card.delta == f"{float(more):+.1%} on 2026-05"
    made = changes.build(root, period.of_month("2026-06"), period.of_month("2026-05"), price_book=BOOK)
    assert f"2026-06, compared with 2026-05: {changes.sentence(made)}" in page_text(app)
    assert len(app.get("vega_lite_chart")) == 3
    nothing = page_text(open_page(root, "overview", compare="none"))
    assert "it is compared with nothing" in nothing
    assert "compared with 2026-05" not in nothing
    for money in (Money(),):
        steps = drivers.waterfall(made, money)
        first, *effects, last = steps.to_dicts()
        assert (first["name"], last["name"]) == ("2026-05", "2026-06")
        assert first["amount"] + sum(step["amount"] for step in effects) == pytest.approx(last["amount"], abs=1e-12)
        assert [step["from"] for step in effects[1:]] == [step["to"] for step in effects[:-1]]
        assert last["text"] == money.text(made.total.cost_nano)


def test_a_budget_is_a_line_and_being_over_it_is_said(
    ended: Path, tmp_path: Path, open_page: Any, page_text: Any
) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    assert "No budget is set" in page_text(open_page(root, "overview"))
    budget.set_budget(root, "research", "0.01", period.of_month("2026-06"))
    frame = charges.price(root, BOOK).frame
    spent = int(frame.filter(pl.col("team") == "research")["cost_nano"].sum())
    app = open_page(root, "overview")
    assert not app.exception
    assert f"{format_usd(spent - 10**7)} **over** budget" in page_text(app)
    assert f"**Over budget**: research, by {format_usd(spent - 10**7)} in 2026-06" in page_text(app)


def test_each_team_is_held_against_its_own_budget_and_none_hides_the_days(
    ended: Path, tmp_path: Path, open_page: Any, page_text: Any
) -> None:
    root = shutil.copytree(ended, tmp_path / "ledger")
    budget.set_budget(root, "of-next-quarter", "1000", period.of_month("2026-06"))
    app = open_page(root, "overview")
    assert "Nothing is charged" not in page_text(app)
    assert "Over budget" not in page_text(app)
    budget.set_budget(root, "research", "0.01", period.of_month("2026-06"))
    budget.set_budget(root, "chat", "1000", period.of_month("2026-06"))
    (line,) = [text for text in page_text(open_page(root, "overview")).splitlines() if "Over budget" in text]
    assert "research" in line
    assert "chat" not in line


def test_days_are_named_as_they_were_chosen(ended: Path, open_page: Any, page_text: Any) -> None:
    assert "in 2026-05-31 to 2026-06-02" in page_text(open_page(ended, "overview", period="2026-05-31..2026-06-02"))


def test_the_address_follows_the_bar_and_what_it_does_not_know_is_said(
    ended: Path, open_page: Any, page_text: Any, choose: Any
) -> None:
    app = choose(open_page(ended, "overview"), "Team", "research")
    assert app.query_params["team"] in ("research", ["research"])
    app = choose(app, "View", "fully-loaded")
    assert app.query_params["view"] in ("fully-loaded", ["fully-loaded"])
    app = open_page(ended, "overview", team="nobody", view="x", odd=HOSTILE)
    assert not app.exception
    assert "no team “nobody” in this ledger" in page_text(app)
    assert "not one of amortized" in page_text(app)
    assert "nothing that can be chosen" in page_text(app)
    assert "view" not in app.query_params


@pytest.mark.parametrize("page", ["overview", "fleet", "cost", "cost_per_correct", "bill", "books"])
def test_text_of_a_ledger_stays_text(page: str, tmp_path: Path, open_page: Any, kit: Any) -> None:
    text = f"{HOSTILE} \u202egnp\u200f\x1b[2J"
    tags = json.dumps({"team": text, "serving_team": text, "p": text})
    texts = {"tags_json": tags, "name": text, "trace": text, "reason": text, "task": text}
    ids = dict.fromkeys(("device_id", "engine_id"), text)

    def hostile(event: events.Event) -> events.Event:
        named = {name for name in texts if isinstance(getattr(event, name, None), str)}
        own = {name: f"{text}{getattr(event, name)}" for name in ids if getattr(event, name, None)}
        return dataclasses.replace(event, **{name: texts[name] for name in named}, **own)

    app = open_page(kit.write(tmp_path / "ledger", map(hostile, kit.a_run()), run_id=text), page)
    assert not app.exception
    kinds = ("markdown", "caption", "info", "warning", "error", "success", "title", "header")
    shown = "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind))
    assert not re.search(r"(?<!\\)!\[|(?<!\\)\$a|(?<!\\)<b>|://evil", shown)
    charts = [element.proto for element in app.get("vega_lite_chart")]
    rows = b"".join(data.data.data for chart in charts for data in chart.datasets)
    tables = "\n".join(frame.value.to_csv() for frame in app.dataframe)
    options = "\n".join(option for box in app.selectbox for option in box.options)
    specs = json.dumps([json.loads(chart.spec) for chart in charts], ensure_ascii=False)
    everything = "\n".join([shown, rows.decode(errors="replace"), tables, options, specs])
    assert not [char for char in ("\u202e", "\u200f", "\x1b[") if char in everything]
    assert r"\u202egnp\u200f\x1b[2J" in unescaped(everything)


def test_an_empty_ledger_and_a_run_that_has_only_begun(
    tmp_path: Path, open_page: Any, kit: Any, page_text: Any
) -> None:
    root = layout.create(tmp_path / "ledger")
    app = open_page(root, "overview")
    assert not app.exception
    assert "holds no run yet" in app.info[0].value
    kit.write(root, [kit.started()])
    app.run()
    assert not app.exception
    assert "nothing is charged" in page_text(app)
    assert not app.metric


def test_what_is_not_known_is_called_unknown(
    tmp_path: Path, open_page: Any, kit: Any, values: Any, page_text: Any
) -> None:
    made = [kit.started(), *kit.joined(), *kit.slices(0), *kit.left(30)]
    untagged = [dataclasses.replace(made[0], tags_json="{}"), *made[1:]]
    app = open_page(kit.write(tmp_path / "ledger", untagged), "overview")
    assert not app.exception
    assert values(app)["Cost per 1,000 accepted"] == "unknown"
    assert values(app)["Serving within its latency budgets"] == "unknown"
    assert "No serving request was recorded" in page_text(app)
    assert "No run says who pays" in page_text(app)
