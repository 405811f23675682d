"""The figures of the Overview: each as a card, in the sentence, and opened into formula, inputs and events."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, cards, drill, escape, frame, trust
from dashboard import format as words
from dashboard.cards import Card, Money, change, percent, points
from dashboard.data import Priced
from dashboard.link import AMORTIZED, FULLY_LOADED, Link
from dashboard.spending import Answers, Budgets, Kept, Rows, Spending
from rose.ledger import verified
from rose.pricing.closing.period import Period
from rose.pricing.spend import saved as spend_saved
from rose.pricing.spend.saved import NO_INTERVAL, Ends, Saved

#: So many charges are listed; the page Bill has all.
_EVENTS_SHOWN = 50
_EVENTS = ("hour", "run_id", "device_id", "lease_id", "bucket", "fate", "writer", "first_seq", "last_seq")
_NO_ANSWERS = "No answer was accepted in this period, so there is nothing to divide by: verifiers record verdicts."


@dataclass(frozen=True, kw_only=True, slots=True)
class Overview:
    """All that the page's figures are made from."""

    spending: Spending
    kept: Kept
    answers: Answers
    answers_before: Answers | None
    #: None where none is set.
    budgets: Budgets | None
    chosen: Link

    @property
    def view(self) -> str:
        return self.chosen.view.replace("-", " ")

    @property
    def against_budget(self) -> Budgets | None:
        """The budgets, where what is shown can be held against them: they are amortized, and of whole teams."""
        return self.budgets if self.chosen.view == AMORTIZED and self.chosen.tag is None else None

    @property
    def before_name(self) -> str:
        return "" if self.spending.before is None else words.period(self.spending.before.period)


def draw(place: st.delta_generator.DeltaGenerator, card: Card) -> None:
    """A card in its place, instead of what stood there."""
    with place.container():
        cards.show(card)


def cost(made: Overview) -> Card:
    """What rollouts cost, and their course by day."""
    spent = made.spending
    before = None if spent.before is None else spent.before.rollout_nano
    terms = f"{made.view}, {spent.bill.stamp}"
    if before is None:
        terms += f". Not compared: {spent.why_not}"
    return Card(
        name="cost",
        label="Rollout cost",
        value=Money().text(spent.now.rollout_nano),
        terms=terms,
        change=change(spent.now.rollout_nano, before, made.before_name),
        course=_daily(spent.now, "amount_nano"),
    )


def saved(made: Overview, answer: Priced[Saved]) -> Card:
    """What borrowing kept off the bill, of whole runs."""
    money = Money()
    why = answer.error or "No run of this period has enough data; the page Risk says what is missing."
    known = _saved_text(made, answer, money)
    return Card(
        name="saved",
        label="Borrowing saved",
        value=None if known is None else known[0],
        why=why,
        terms="" if known is None else known[1],
    )


def correct(made: Overview) -> Card:
    """Cost of a thousand correct answers; of accepted ones where nothing was audited."""
    spent, answers = made.spending, made.answers
    now = answers.per_thousand(spent.now.rollout_nano)
    before, audited = None, answers.correct_share is not None
    earlier = made.answers_before
    # Per correct answer and per accepted one are two things.
    if spent.before is not None and earlier is not None and (earlier.correct_share is not None) == audited:
        before = earlier.per_thousand(spent.before.rollout_nano)
    how = f"{made.view}; {answers.accepted:,} accepted"
    how += (
        f", {percent(answers.correct_share)} of {answers.audited:,} audited ones correct"
        if audited
        else ("; none was audited, so it is not known how many are correct")
    )
    return Card(
        name="correct",
        label="Cost per 1,000 correct" if audited else "Cost per 1,000 accepted",
        value=None if now is None else Money().text(now),
        terms=how,
        why=_NO_ANSWERS,
        change=change(now, before, made.before_name),
    )


def borrowed(made: Overview) -> Card:
    """The share of rollout time that was made on lent serving devices."""
    spent = made.spending
    now, before = spent.now.borrowed_share, None if spent.before is None else spent.before.borrowed_share
    own, ns = pl.col("bucket") == "rollout", pl.col("ns")
    days = spent.now.by_day(ns.filter(own, "lent").sum().alias("on_lent"), ns.filter(own).sum().alias("whole"))
    course = [] if days.is_empty() else (days["on_lent"] / days["whole"]).fill_nan(None).drop_nulls().to_list()
    return Card(
        name="borrowed",
        label="Share borrowed",
        value=percent(now),
        sense="off",
        course=course,
        terms="of rollout time ran on lent serving devices",
        change=points(now, before, made.before_name),
        why="No rollout ran in this period.",
    )


def slo(kept: Kept, before: Kept | None, period: Period | None, target: Decimal) -> Card:
    """Requests within their latency budgets against the target, in words and not in colour alone."""
    share = kept.share
    met = share is not None and share >= Fraction(target) / 100
    days = kept.days.filter(pl.col("requests") > 0)
    label = "Serving within its latency budgets"
    return Card(
        name="slo",
        label=label,
        value=percent(share),
        sense="normal",
        change=points(share, None if before is None else before.share, "" if period is None else words.period(period)),
        terms=f"of {kept.requests:,} requests, whole fleet; target {target:f}%",
        good=None if share is None else met,
        verdict="target met" if met else "target missed",
        course=(days["kept"] / days["requests"]).to_list(),
        why="No serving request was recorded in this period: clients or gateways record them.",
    )


def trusted(ledger: Path) -> Card:
    """Whether the ledger verifies."""
    state = trust.look(ledger)
    value, good = None, None
    if state.problems is not None:
        value, good = f"{len(state.problems):,} problem{'' if len(state.problems) == 1 else 's'}", not state.problems
    return Card(
        name="trust",
        label="Trust in the ledger",
        value=value,
        terms=state.text,
        sense="off",
        good=good,
        verdict="verified" if good else "not to be trusted",
        why=state.why or state.text,
    )


def sentence(made: Overview, answer: Priced[Saved] | None) -> str:
    """The page in one sentence, Markdown."""
    spent, money = made.spending, Money()
    cost, when = money.text(spent.now.rollout_nano), words.period(spent.now.period)
    parts = [f"Rollouts cost **{cost}** in {when}{_than_before(made)}"]
    if (budgets := made.against_budget) is not None:
        # Of all that they use, not of rollouts alone.
        spent_text, budget_text = money.text(budgets.spent_nano), money.text(budgets.budget_nano)
        parts.append(f"teams with a budget cost {spent_text} in all, of {budget_text} for {budgets.counted}")
    if answer is not None:
        known = _saved_text(made, answer, money)
        parts.append("what borrowing saved is not known" if known is None else f"borrowing saved {_short(known)}")
    share = percent(made.kept.share)
    parts.append(
        "how serving did is not known"
        if share is None
        else f"serving kept **{share}** of its requests within their latency budgets (target {made.chosen.target:f}%)"
    )
    return words.plain(f"{'; '.join(parts)}.")


def opened(made: Overview, answer: Priced[Saved] | None) -> None:
    """What the figure that is opened is made of; what was saved only with the answer to that."""
    match made.chosen.figure:
        case "cost":
            _opened_cost(made)
        case "saved" if answer is not None:
            _opened_saved(made, answer)
        case "correct":
            _opened_correct(made)
        case "borrowed":
            _opened_borrowed(made)
        case "slo":
            _head(
                "Serving within its latency budgets",
                "requests whose first and further tokens came within their budgets / all requests",
            )
            _choose_target(made.chosen.target)
            frame.table(made.kept.days, "`daily_request`, whole fleet, by UTC day. Events: `request`.")
        case "trust":
            ledger = made.spending.asked.ledger
            _head("Trust in the ledger", "problems that the ledger's own verification finds; 0 is the only good answer")
            st.markdown(escape.markdown(verified.text(ledger)))


def _opened_cost(made: Overview) -> None:
    work = (
        "the work rollout, with its part of idle time"
        if made.chosen.view == FULLY_LOADED
        else ("the buckets rollout, sync, activation and transfer")
    )
    _head("Rollout cost", f"sum of all charges of {work}")
    rows = made.spending.now.rollout
    if rows.is_empty():
        st.info("There is no such charge in this period.")
        return
    by = ["work" if made.chosen.view == FULLY_LOADED else "bucket", "device-class", "pool"]
    frame.drilled(drill.table(rows, by, made.chosen.view), f"charges, {made.view}, {made.spending.bill.stamp}, in USD")
    _events(rows)


def _opened_saved(made: Overview, answer: Priced[Saved]) -> None:
    _head(
        "Borrowing saved",
        "for each run that ended in the period or goes on: the bill without borrowing - the bill (marginal). "
        "Capacity avoided is another figure, hypothetical, and is never added",
    )
    if answer.value is None:
        st.info(escape.prose(answer.error or words.NOT_ENOUGH_DATA))
        return
    money = Money()
    frame.table(
        pl.DataFrame(
            [
                {
                    "run": run.run_id,
                    "team": run.team,
                    "status": run.status,
                    "cash saved": "unknown"
                    if run.cash_nano is None
                    else " or ".join(dict.fromkeys(money.text(end) for end in run.cash_nano)),
                    "95% interval": _interval(run.cash_interval, money) or run.no_interval or "unknown",
                    "capacity avoided": "unknown" if run.capacity_nano is None else money.text(run.capacity_nano),
                    "why": run.why or "",
                }
                for run in answer.value.runs
            ]
        ),
        "the price of each run; the page Risk has every term of it. Events: `lease`, `turn`, `verdict`, `power`.",
    )


def _opened_correct(made: Overview) -> None:
    audited = made.answers.correct_share is not None
    share = " x share of audited ones that are correct" if audited else ""
    _head(
        "Cost per 1,000 correct" if audited else "Cost per 1,000 accepted",
        f"1,000 x rollout cost / (accepted answers{share})",
    )
    frame.table(made.answers.days, "`verdict`: the last one on each trajectory, without stale ones, by UTC day.")


def _opened_borrowed(made: Overview) -> None:
    _head("Share borrowed", "rollout time on serving devices under a lease / all rollout time")
    rows = made.spending.now.frame.filter(pl.col("bucket") == "rollout")
    if rows.is_empty():
        st.info("No rollout ran in this period.")
        return
    frame.drilled(
        drill.table(rows, ["pool", "device-class"], made.chosen.view),
        f"charges of the bucket rollout, {made.view}, {made.spending.bill.stamp}, in USD",
    )
    _events(rows)


def _choose_target(target: Decimal) -> None:
    """The share that serving is held to: this page's readers choose it, and it is in the address."""
    key = "overview-target"
    st.session_state[key] = float(target)

    def chosen() -> None:
        bar.pick(target=Decimal(f"{st.session_state[key]:.4f}").normalize())

    st.number_input("Target, percent", 0.0001, 100.0, step=0.1, format="%.4g", key=key, on_change=chosen, width=200)


def _head(title: str, formula: str) -> None:
    st.header(title)
    st.markdown(f"**Formula:** {formula}.")


def _events(rows: pl.DataFrame) -> None:
    """The dearest charges, each with the events that it was made from."""
    dearest = rows.sort("amount_nano", descending=True).head(_EVENTS_SHOWN)
    shown = dearest.select(*_EVENTS, (pl.col("amount_nano") / 1e9).alias("cost (USD)"))
    frame.table(
        shown,
        f"the {shown.height:,} dearest of {rows.height:,} charges; the page Bill has all. Events: those of the writer "
        "from first to last seq, in `event`.",
    )


def _than_before(made: Overview) -> str:
    spent = made.spending
    if spent.before is None:
        return ""
    name = words.period(spent.before.period)
    before, now = spent.before.rollout_nano, spent.now.rollout_nano
    if not before:
        return f" (nothing in {name})"
    share = Fraction(now, before) - 1
    return (
        f" ({abs(float(share)):.1%} {'more' if share > 0 else 'less'} than in {name})" if share else f" (as in {name})"
    )


def _saved_text(made: Overview, answer: Priced[Saved], money: Money) -> tuple[str, str] | None:
    """The cash saved of the runs that are chosen, and what stands beside it; None where it is not known."""
    if answer.value is None:
        return None
    runs = [run for run in answer.value.of_team(made.chosen.team) if _chosen_run(made, run.run_id)]
    summed = spend_saved.summed(runs)
    ends = summed["cash_saved_nano"]
    if ends is None:
        return None
    interval = _interval(runs[0].cash_interval, money) if len(runs) == 1 else ""
    why = runs[0].no_interval or "" if len(runs) == 1 else NO_INTERVAL
    parts = ["cash, marginal", f"95% {interval}" if interval else f"no interval: {why}" if why else ""]
    if unknown := summed["runs_unknown"]:
        parts.append(f"of {len(runs) - unknown} of {len(runs)} runs: the others are not known")
    text = " or ".join(dict.fromkeys(money.text(ends[end]) for end in spend_saved.ENDS))
    if ends[spend_saved.ENDS[0]] != ends[spend_saved.ENDS[1]]:
        parts.append("if the fleet would have been there anyway, or if not: the price book states no idle_anyway")
    return text, "; ".join(part for part in parts if part)


def _chosen_run(made: Overview, run_id: str) -> bool:
    return made.chosen.tag is None or run_id in set(made.spending.now.frame["run_id"].unique())


def _interval(ends: Ends | None, money: Money) -> str:
    if ends is None:
        return ""
    low, high = ends
    return f"at least {money.text(low)}" if high is None else f"{money.text(low)} to {money.text(high)}"


def _short(known: tuple[str, str]) -> str:
    interval = next((f" ({part})" for part in known[1].split("; ") if part.startswith("95%")), "")
    return f"**{known[0]}**{interval}"


def _daily(rows: Rows, amount: str) -> list[float]:
    days = rows.by_day(pl.col(amount).filter("rollout").sum())
    return [] if days.is_empty() else (days[amount] / 1e9).to_list()
