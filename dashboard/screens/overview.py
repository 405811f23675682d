"""What a finance lead asks first: what rollouts cost, what borrowing saved, and what needs a look."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st

from dashboard import amounts, bar, cards, charts, display, drivers, escape, figures, frame, needs, spending
from dashboard import format as words
from dashboard.cards import Money
from dashboard.data import Priced, Run
from dashboard.figures import Overview
from dashboard.spending import Spending
from rose.pricing.spend.saved import Saved
from rose.text import visible

#: What so many runs saved is worked out without being asked for.
_RUNS_MAX = 8
_CARDS = ("cost", "saved", "correct", "borrowed", "slo", "trust")


def show(ledger: Path, runs: list[Run]) -> None:
    asked = frame.in_period(ledger)
    if asked is None:
        return
    chosen = bar.chosen()
    before = bar.compared(chosen, asked.period)
    frame.banner(asked.provenance)
    # What is quick comes first: prices follow, and what borrowing saved, which prices whole runs, is last.
    sentence, places = st.empty(), [place.empty() for place in cards.grid(len(_CARDS))]
    slots, below = dict(zip(_CARDS, places, strict=True)), st.container()
    kept = spending.kept(asked, asked.period)
    kept_before = None if before is None else spending.kept(asked, before)
    figures.draw(slots["slo"], figures.slo(kept, kept_before, before, chosen.target))
    figures.draw(slots["trust"], figures.trusted(ledger))
    answer = frame.asked(
        ledger, lambda unverified: spending.ask(replace(asked, unverified=unverified), chosen, before), "overview"
    )
    if answer is None:
        return
    made = Overview(
        spending=answer,
        kept=kept,
        answers=spending.answers(asked, chosen, answer.now),
        chosen=chosen,
        answers_before=None if answer.before is None else spending.answers(asked, chosen, answer.before),
        budgets=spending.budgets(answer, chosen),
    )
    sentence.markdown(figures.sentence(made, None))
    figures.draw(slots["cost"], figures.cost(made))
    figures.draw(slots["correct"], figures.correct(made))
    figures.draw(slots["borrowed"], figures.borrowed(made))
    opened = st.container()
    frame.stamp(replace(answer.bill.stamp, from_ns=asked.period.from_ns, to_ns=asked.period.to_ns))
    _days(made)
    drivers.show(answer, chosen)
    _teams(answer)
    needs.show(made, datetime.now(UTC))
    if chosen.figure != "saved":
        with opened:
            figures.opened(made, None)
    with slots["saved"].container(), st.spinner("Working out what borrowing saved …"):
        saved = _saved(answer, below)
    figures.draw(slots["saved"], figures.saved(made, saved))
    sentence.markdown(figures.sentence(made, saved))
    if chosen.figure == "saved":
        with opened:
            figures.opened(made, saved)


def _saved(spent: Spending, below: st.delta_generator.DeltaGenerator) -> Priced[Saved]:
    """What borrowing saved; of many runs, which takes long, only when it is asked for with a button `below`."""
    asked, count = spent.asked, spending.runs_counted(spent.asked)
    key = f"overview-saved {asked.period.label} {asked.provenance}"
    if count > _RUNS_MAX and not st.session_state.get(key):
        if not below.button(f"Work it out, of {count:,} runs", key="overview-saved"):
            return Priced(None, f"It prices {count:,} runs one by one, which takes a while.")
        st.session_state[key] = True
    return spending.saved(asked)


def _days(made: Overview) -> None:
    st.header("What did each day cost?")
    spent, money, budgets = made.spending, Money(), made.against_budget
    about = "every team" if made.chosen.team is None else made.chosen.team
    sums = (
        pl.col("amount_nano").filter("rollout").sum().alias("rollouts"),
        pl.col("amount_nano").filter(~pl.col("rollout")).sum().alias("all else"),
    )
    days, per_day = spent.now.by_day(*sums), None
    if budgets is not None:
        of_teams = spent.now.by_day(*sums, teams=budgets.by_team)
        # A budget of a team that has cost nothing yet hides nobody's days.
        if not of_teams.is_empty():
            about, days = ", ".join(sorted(budgets.by_team)), of_teams
            per_day = budgets.budget_nano / spending.days_of(budgets.month)
    if days.is_empty():
        st.info("Nothing is charged to what is chosen in this period.")
        return
    factor = 1e9
    shown = days.unpivot(["rollouts", "all else"], index="day", variable_name="what", value_name="nano").with_columns(
        amount=pl.col("nano") / factor, text=pl.col("nano").map_elements(money.text, return_dtype=pl.String)
    )
    line = None if per_day is None else per_day / factor
    chart = charts.cost_by_day(shown, line, money.currency)
    display.chart(chart, about="Cost by UTC day")
    view = made.chosen.view.replace("-", " ")
    st.caption(f"Cost of {escape.markdown(about)} by UTC day, {view}, {spent.bill.stamp}. Source: charges.")
    frame.download(shown.select("day", "what", "amount", pl.lit(money.currency).alias("currency")), "days")
    _within_budget(made, money)


def _within_budget(made: Overview, money: Money) -> None:
    budgets = made.against_budget
    if budgets is None and made.budgets is not None:
        st.info("Budgets are amortized and of whole teams: choose that view, and no tag, to see them.")
        return
    if budgets is None:
        whose = "" if made.chosen.team is None else f" for {escape.markdown(made.chosen.team)}"
        st.info(
            f"No budget is set{whose}, so nothing says whether this is much. `rose books budget TEAM USD` sets one."
        )
        return
    left = budgets.budget_nano - budgets.spent_nano
    state = "under" if left >= 0 else "**over**"
    st.markdown(
        words.plain(
            f"The line is the budget of {budgets.month.label}, {money.text(budgets.budget_nano)}, spread evenly over "
            f"its days. Teams with one cost {money.text(budgets.spent_nano)} in {budgets.counted} (amortized): "
            f"{money.text(abs(left))} {state} budget."
        )
    )


def _teams(spent: Spending) -> None:
    st.header("Who spent it?")
    teams = spent.now.by_team()
    if not teams:
        st.info("Nothing is charged to what is chosen in this period.")
        return
    money = Money()
    whole = money.together([nano for _, nano, _ in teams])
    # Each part lies within its team's amount; the sums of both columns are those of the cards.
    rollouts = money.together([nano for _, _, nano in teams])
    rows: list[dict[str, Any]] = [
        {"team": team, "cost": nano / 1e9, "for rollouts": own / 1e9}
        for (team, _, _), nano, own in zip(teams, whole, rollouts, strict=True)
    ]
    shown = pl.DataFrame(rows)
    chart = charts.teams(shown, money.currency)
    display.chart(
        chart, about="Cost by team", on_select=lambda: _pick_team([team for team, _, _ in teams]), key="overview-teams"
    )
    priced = {name: amounts.column(name, shown[name], money.currency) for name in ("cost", "for rollouts")}
    frame.table(shown, f"charges by the tags of runs, {money.currency}, {spent.bill.provenance}.", priced)
    if [team for team, _, _ in teams] == ["unallocated"]:
        st.info('No run says who pays. Begin runs with a tag: `tags = {"team": "research"}`.')


def _pick_team(teams: list[str]) -> None:
    """A bar that was clicked is the team from then on. The chart knows a team by its name as it is shown."""
    picked = st.session_state["overview-teams"]["selection"].get("team", [])
    if picked:
        bar.choose(team=next(team for team in teams if visible(team) == picked[0]["team"]))


frame.ledger_page(
    "Overview",
    "What did the rollouts cost, what did borrowing save, and what needs a look?",
    show,
    uses=("period", "compare", "view", "team", "tag", "provenance"),
)
