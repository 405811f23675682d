"""The nine screens against pricing's and the ledger's own figures."""

import csv
import json
import re
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from dashboard import format as words
from rose.events import Hold
from rose.ledger.ledger import Ledger
from rose.ledger.reading import named
from rose.pricing import charges, period
from rose.pricing.answers import changes, run_report
from rose.pricing.answers import correct_answer as answers_report
from rose.pricing.answers.correct_answer import THOUSAND
from rose.pricing.borrowing import risk
from rose.pricing.borrowing.comparison import CASH
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.closing import close, store
from rose.pricing.money import format_usd
from rose.pricing.price_books import pricebook
from rose.pricing.run.priced import priced
from rose.pricing.table import Section, Table
from rose.pricing.watch import budget
from tests.dashboard.conftest import HOSTILE, OpenPage, choose, page_text, table, tables, unescaped, values
from tests.long_form import usual
from tests.pricing.conftest import saved_in_run

BOOK = pricebook.load("example")
OURS = pricebook.parse(BOOK.text.replace('name = "example"', 'name = "ours"'), "ours.toml")
JUNE = period.of_month("2026-06")
CLOSE = "2026-06-simulated-1"
#: Charts of each screen on the run that ended.
SCREENS = {"overview": 1, "cost": 1, "cost_per_correct": 1, "serving": 2, "fleet": 3}
SCREENS |= dict.fromkeys(("borrowing", "runs", "books", "trust"), 0)
#: What a screen needs in its address to show all it has.
LINKS = {"runs": {"run": "run"}, "cost": {"by": "lease", "lease": "L1"}}


@pytest.fixture(scope="module")
def frame(ended: Path) -> pl.DataFrame:
    return charges.price(Ledger(ended), BOOK).frame


@pytest.fixture(scope="module")
def closed(ended: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The month, closed and corrected once, with two budgets of which one does not last."""
    root = shutil.copytree(ended, tmp_path_factory.mktemp("closed") / "ledger")
    assert close.close(Ledger(root), JUNE, OURS, by="finance").close_id == CLOSE
    dearer = OURS.text.replace("usd_per_gb = 0.02", "usd_per_gb = 0.03").replace(OURS.version, "dearer")
    close.restate(
        Ledger(root), CLOSE, "the carrier raised its price", pricebook.parse(dearer, "dearer.toml"), by="audit"
    )
    budget.set_budget(Ledger(root), "research", "0.40", JUNE)
    budget.set_budget(Ledger(root), "chat", "0.10", JUNE)
    return root


def rollout_nano(frame: pl.DataFrame) -> int:
    return int(frame.filter(pl.col("bucket").is_in(ROLLOUT_BUCKETS))["cost_nano"].sum())


def shows(app: Any, section: Section) -> None:
    text, frames = page_text(app), tables(app)
    for part in section.parts.values():
        if isinstance(part, Table):
            plain = part.plain()
            names, first = [column.name for column in plain.columns], [row[0] for row in plain.rows]
            fitting = [frame for frame in frames if [*frame.columns] == names]
            assert any([*frame[names[0]]][: len(first)] == first for frame in fitting), part.title
        else:
            assert all(words.plain(line).replace("\\", "") in text.replace("\\", "") for line in part.lines)


@pytest.mark.parametrize("screen", SCREENS)
def test_every_screen_is_drawn_says_what_it_rests_on_and_shows_no_error(
    screen: str, ended: Path, drawn: OpenPage
) -> None:
    app = drawn(ended, screen, **LINKS.get(screen, {}))
    assert not app.error
    assert len(app.get("vega_lite_chart")) == SCREENS[screen]
    assert screen == "trust" or any("SIMULATED" in warning.value for warning in app.warning)
    assert "Source" in page_text(app) or screen == "books"
    assert re.search(r"verified to \d\d:\d\d UTC, 0 problems", page_text(app))


@pytest.mark.parametrize("screen", usual(("overview", "cost", "fleet", "runs"), long=tuple(SCREENS)))
def test_text_of_a_ledger_stays_text(screen: str, tampered: Path, drawn: OpenPage, open_page: OpenPage) -> None:
    # No address has such a name.
    app = choose(open_page(tampered, screen), "Run", HOSTILE) if screen == "runs" else drawn(tampered, screen)
    assert not app.exception
    kinds = ("markdown", "caption", "info", "warning", "error", "success", "title", "header", "subheader")
    shown = "\n".join(str(element.value) for kind in kinds for element in getattr(app, kind))
    shown += "\n".join(static.value.to_csv(quoting=csv.QUOTE_NONE, escapechar="\t") for static in app.table)
    assert not re.search(r"(?<!\\)!\[|(?<!\\)\$a|(?<!\\)<b>|://evil", shown)
    drawings = [element.proto for element in app.get("vega_lite_chart")]
    rows = b"".join(data.data.data for chart in drawings for data in chart.datasets)
    cells = "\n".join(frame.value.to_csv() for frame in app.dataframe)
    options = "\n".join(option for box in app.selectbox for option in box.options)
    specs = json.dumps([json.loads(chart.spec) for chart in drawings], ensure_ascii=False)
    everything = "\n".join([shown, rows.decode(errors="replace"), cells, options, specs])
    assert not [char for char in ("\u202e", "\u200f", "\x1b[") if char in everything]
    if screen != "books":
        assert r"\u202egnp\u200f\x1b[2J" in unescaped(everything)


def test_the_overview_has_pricing_s_figures(ended: Path, frame: pl.DataFrame, drawn: OpenPage) -> None:
    app = drawn(ended, "overview")
    saved = saved_in_run(ended, "run", BOOK).row(CASH)["value"]
    harvest = named.run(Ledger(ended), named.load("harvest_share_by_day"), {})
    (share,) = [row[harvest.columns.index("harvested_share")] for row in harvest.rows]
    assert values(app) == {
        "Rollout cost": format_usd(rollout_nano(frame)),
        "Borrowing saved": f"{saved.text} or less",
        "Harvest share": f"{share:.1%}",
        "Budget": "not set",
        "Within latency budgets": f"{1 - 8 / 240:.1%}",
        "Trust in the ledger": "0 problems",
    }
    text = page_text(app)
    assert f"Of the time that serving alone would leave: {share:.1%}." in text
    assert f"95% {saved.short_interval}" in text
    assert f"Rollouts cost **{format_usd(rollout_nano(frame))}** in 2026-06" in text.replace("\\", "")
    assert "Serving missed its target" in text
    assert "nothing is charged in 2026-05" in text
    teams = table(app, "team", "for rollouts")
    assert sum(round(cost * 1e9) for cost in teams["cost"]) == frame["cost_nano"].sum()
    assert sum(round(cost * 1e9) for cost in teams["for rollouts"]) == rollout_nano(frame)


def test_the_bar_chooses_and_the_address_has_only_what_the_ledger_has(
    ended: Path, frame: pl.DataFrame, open_page: OpenPage
) -> None:
    app = open_page(ended, "cost", team="nobody", view="x", odd=HOSTILE, period="2026-05-31..2026-06-02")
    assert "Unknown in this ledger, and left out: view, odd, team." in page_text(app)
    assert "in 2026-05-31 to 2026-06-02" in page_text(app)
    app = choose(app, "Team", "research")
    cost = format_usd(rollout_nano(frame.filter(pl.col("team") == "research")))
    assert f"Rollouts cost **{cost}**" in page_text(app)
    app = choose(app, "View", "fully-loaded")
    assert app.query_params["view"] in ("fully-loaded", ["fully-loaded"])
    loaded = charges.fully_load(frame).filter(pl.col("work") == "rollout", pl.col("team") == "research")
    assert f"Rollouts cost **{format_usd(int(loaded['loaded_nano'].sum()))}**" in page_text(app)


def test_a_period_is_compared_with_the_one_before(tampered: Path, frame: pl.DataFrame, drawn: OpenPage) -> None:
    before = charges.price(Ledger(tampered), BOOK, run_id="earlier").frame
    more = Fraction(rollout_nano(frame), rollout_nano(before)) - 1
    app = drawn(tampered, "overview")
    (card,) = [metric for metric in app.metric if metric.label == "Rollout cost"]
    assert card.delta == f"{float(more):+.1%} on 2026-05"
    change = changes.build(Ledger(tampered), JUNE, period.of_month("2026-05"), price_book=BOOK)
    text = page_text(app).replace("\\", "")
    assert f"({float(more):.1%} more than in 2026-05)" in text
    assert f"2026-06, compared with 2026-05: {changes.sentence(change)}" in text
    assert len(app.get("vega_lite_chart")) == 2
    assert "2026-05 is not closed" in text


def test_a_saving_that_chance_could_explain_is_no_headline(tmp_path: Path, open_page: OpenPage) -> None:
    sample = Path(__file__).parents[2] / "sample_traces" / "ledger"
    app = open_page(shutil.copytree(sample, tmp_path / "ledger"), "overview", period="2026-11-23")
    assert values(app)["Borrowing saved"] == "not clear"
    assert re.search(r"estimate -?\S+ or less; .*; 95% -\S+ to ", page_text(app))


def test_a_period_before_that_cannot_be_priced_is_said_to_have_no_price(
    tampered: Path, tmp_path: Path, open_page: OpenPage
) -> None:
    ledger = Ledger(shutil.copytree(tampered, tmp_path / "ledger"))
    later = BOOK.text.replace("valid_from = 2026-03-01", "valid_from = 2026-06-01").replace('"example"', '"ours"', 1)
    pricebook.adopt(ledger, pricebook.parse(later, "ours"), by="ann")
    text = page_text(open_page(ledger.folder, "overview"))
    assert "Not compared: price book adopted by ann has no price for device class" in text
    assert "nothing is charged" not in text


def test_cost_sums_to_the_bill_and_opens_down_to_a_lease_and_its_events(
    ended: Path, frame: pl.DataFrame, drawn: OpenPage, open_page: OpenPage
) -> None:
    app = drawn(ended, "cost", **LINKS["cost"])
    rows = table(app, "lease", "nano-dollars")
    assert rows["nano-dollars"].sum() == rollout_nano(frame)
    assert {f"L{step}" for step in range(8)} <= set(rows["lease"])
    lease = frame.filter(pl.col("lease_id") == "L1", pl.col("bucket").is_in(ROLLOUT_BUCKETS))
    assert round(table(app, "first seq", "last seq")["cost"].sum() * 1e9) == lease["cost_nano"].sum() > 0
    assert {"granted", "renewed", "cut", "revoke", "preempted"} <= set(table(app, "kind", "action")["action"])
    app = choose(open_page(ended, "cost", work="everything"), "Divided by", "bucket")
    assert table(app, "bucket", "cost")["nano-dollars"].sum() == frame["cost_nano"].sum()
    assert app.query_params["by"] in ("bucket", ["bucket"])


def test_leases_of_two_fleets_that_are_called_alike_stay_apart(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    root = tmp_path / "ledger"
    for fleet_run_id, after_s, seconds in (("f1", 0, 10), ("f2", 20, 30)):
        rows = [kit.started(after_s=after_s), *kit.joined(), *kit.lease_with_time(after_s, seconds)]
        kit.write(root, rows, run_id=fleet_run_id, writer=fleet_run_id)
    app = open_page(root, "cost", run="f2", by="lease", lease="L")
    assert list(table(app, "lease", "device-hours")["device-hours"]) == pytest.approx([30 / 3600])
    assert len(table(app, "kind", "action")) == 1


def test_where_borrowing_did_not_pay_that_comes_first(
    ended: Path, tmp_path: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    book = tmp_path / "dear.toml"
    book.write_text(BOOK.text.replace("usd_per_gb = 0.02", "usd_per_gb = 900"))
    monkeypatch.setenv("ROSE_PRICE_BOOK", str(book))
    assert "Borrowing was NOT worth it" in open_page(ended, "borrowing").error[0].value


def test_borrowing_and_cost_per_correct_have_every_answer_of_pricing(ended: Path, drawn: OpenPage) -> None:
    borrowing, cost_per_correct = drawn(ended, "borrowing"), drawn(ended, "cost_per_correct")
    with priced(Ledger(ended)) as run:
        sections, answers = risk.sections(run), answers_report.sections(run)
    for name in ("price", "provision", "compare", "spikes", "risk"):
        shows(borrowing, Section({key: part for key, part in sections[name].parts.items() if key != "saves"}))
    assert sections["risk"].paragraph("saves").text in page_text(borrowing)
    headline = answers["cost"].figure("headline", THOUSAND)
    assert values(cost_per_correct) == {THOUSAND: headline.text}
    for section in answers.values():
        shows(cost_per_correct, Section({key: part for key, part in section.parts.items() if key != "headline"}))
    assert "of the judged answers were accepted in the last 2 steps of 8" in page_text(cost_per_correct)


def test_serving_and_fleet_need_no_prices(
    ended: Path, drawn: OpenPage, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving, fleet = drawn(ended, "serving"), drawn(ended, "fleet")
    assert risk.says(risk.without_prices(Ledger(ended), "run")) in page_text(serving)
    assert values(serving)["Missed a latency budget"] == "3.3%"
    assert values(serving)["First token, worst p99"] == "2.6 s"
    assert table(serving, "lent", "requests")["requests"].sum() == 240
    taken = table(serving, "action", "preemptions").groupby("action")["preemptions"].sum()
    assert taken.to_dict() == {"cut": 8, "revoke": 3, "yield": 48}
    assert "**Serving was NOT safe**: in the 15 minutes before the last event, 8 of 240 late" in page_text(fleet)
    assert values(fleet)["Serving devices"] == "1"
    assert [*table(fleet, "lease id", "closed by")["lease id"]] == [f"L{step}" for step in reversed(range(8))]
    assert [*table(fleet, "policy version", "made good at")["policy version"]] == [6]
    assert "$" not in page_text(serving) + page_text(fleet)
    monkeypatch.delenv("ROSE_PRICE_BOOK")
    assert "No price book" in page_text(open_page(ended, "borrowing"))


def test_fleet_says_why_nothing_is_lent_also_without_a_lease(tmp_path: Path, open_page: OpenPage, kit: Any) -> None:
    rows = [kit.started(), *kit.joined(), *kit.lease_with_time(0, 10)]
    why = "serving was at work 96% of the last minute: too little is left to lend"
    named = {"device_id": rows[-1].device_id, "reason": "serving_busy", "count": 1}
    hold = Hold(at_us=rows[-1].at_us, duration_ns=9_000_000_000, explanation=why, **named)
    kit.write(tmp_path / "ledger", [*rows, hold], run_id="f", writer="f")
    shown = table(open_page(tmp_path / "ledger", "fleet"), "leased", "why")
    assert list(shown[~shown["leased"]]["why"]) == [why]


def test_runs_have_their_report(ended: Path, drawn: OpenPage) -> None:
    app = drawn(ended, "runs", **LINKS["runs"])
    assert [*table(app, "run id", "accepted share")["run id"]] == ["run"]
    shows(app, run_report.build(Ledger(ended)).section)
    assert {"Download JSON"} <= {button.proto.label for button in app.get("download_button")}


def test_books_have_a_close_its_correction_and_what_it_was_before(closed: Path, open_page: OpenPage) -> None:
    app = open_page(closed, "books")
    assert not app.error
    posted = store.of_close(Ledger(closed), CLOSE)
    first, second = (posting.cost_nano for posting in posted)
    (row,) = table(app, "close", "corrections").to_dict("records")
    assert (row["close"], row["closed"], row["total"]) == (CLOSE, format_usd(first), format_usd(first + second))
    assert "the carrier raised its price (audit)" in list(table(app, "why, and by whom")["why, and by whom"])
    shown = budget.show(Ledger(closed), JUNE, OURS)
    budgets = table(app, "team", "chance of going over")
    assert list(budgets["team"]) == [row.team for row in shown] == ["chat", "research"]
    assert list(budgets["left"]) == [row.left.value / 1e9 for row in shown]
    files = {button.proto.label for button in app.get("download_button")}
    assert {"Workbook, Excel", "FOCUS, Parquet", "FOCUS, CSV", "Cost by team, HTML"} <= files
    expected = next(frame for frame in tables(app) if [*frame] == ["team", "spent", "forecast", "95% interval"])
    assert list(expected["team"]) == [
        "the fleet",
        *(row.team for row in budget.expected(Ledger(closed), JUNE, OURS)[1:]),
    ]
    assert list(expected["forecast"]) == list(expected["spent"])  # The month is over.
    app = choose(app, "As it was known", posted[0].posted_ns)
    (row,) = table(app, "close", "corrections").to_dict("records")
    assert (row["corrections"], row["total"]) == ("none", format_usd(posted[0].cost_nano))
    assert choose(app, "View", "fully-loaded").main.selectbox


def test_a_team_has_its_bill(ended: Path, frame: pl.DataFrame, open_page: OpenPage) -> None:
    app = open_page(ended, "books", team="research")
    assert "Bill of research, 2026-06" in page_text(app)
    own = frame.filter(pl.col("team") == "research")
    amounts = table(app, "run", "bucket", "cost")["cost"]
    assert round(amounts.iloc[-1] * 1e9) == own["cost_nano"].sum() == sum(round(nano * 1e9) for nano in amounts[:-1])
    assert "Bill of research, HTML" in [button.proto.label for button in app.get("download_button")]


def test_the_overview_is_held_against_budgets(closed: Path, drawn: OpenPage) -> None:
    app = drawn(closed, "overview")
    shown = budget.show(Ledger(closed), JUNE, OURS)
    assert values(app)["Spent of the budget"] == format_usd(sum(int(row.spent.value or 0) for row in shown))
    (line,) = [text for text in page_text(app).splitlines() if "Over budget" in text]
    assert "chat" in line
    assert "research" not in line
    assert "is not closed" not in page_text(app)


def test_trust_names_jobs_and_writers(ended: Path, drawn: OpenPage) -> None:
    app = drawn(ended, "trust")
    text = page_text(app)
    assert "Every file, hash chain, signature and view that is new or changed was checked" in text
    assert "No job has run on this ledger" in text
    assert "No event was dropped" in text
    assert "The ledger has no writer of a running run" in text
