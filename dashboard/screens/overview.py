"""Rollout cost, savings and open issues for a finance lead."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import polars as pl
import streamlit as st

from dashboard import bar, charts, data, escape, frame, link
from dashboard import format as words
from dashboard.data import Run, Scope, Spent
from rose.errors import UserError
from rose.ledger.ledger import Ledger
from rose.pricing import alerts
from rose.pricing.answers import changes
from rose.pricing.answers.changes import EFFECTS, Changes
from rose.pricing.charges.allocation import ROLLOUT_BUCKETS
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.money import USD, format_usd
from rose.pricing.period import NS_PER_DAY, month_at, period_before
from rose.pricing.spend import saved as savings
from rose.pricing.spend.saved import Saved
from rose.pricing.stats.verdict import Promise
from rose.pricing.watch.budget import TeamBudget

_RUNS_MAX = 8  # Savings of more runs are computed only after a click.
_SEEN_SHARE = 0.001  # A smaller share of the whole is invisible.
_BADGES: dict[bool | None, tuple[str, Literal["green", "red", "orange"]]] = {
    True: (":material/check:", "green"),
    False: (":material/warning:", "red"),
    None: (":material/question_mark:", "orange"),
}
Place = st.delta_generator.DeltaGenerator


@dataclass(frozen=True, kw_only=True, slots=True)
class _Content:
    chosen: link.Link
    scope: Scope
    bill: Bill
    now: Spent
    before: Spent | None
    not_compared: str | None  # Why the period before cannot be priced.
    promise: Promise
    budgets: list[TeamBudget]

    def budget_sum(self, name: str) -> str:
        return format_usd(sum(int(getattr(row, name).value or 0) for row in self.budgets))


def show(ledger: Ledger, runs: list[Run]) -> None:
    charged = frame.charged(ledger)
    if charged is None:
        return
    period, provenance = charged
    stamp, sentence = st.container(), st.empty()  # Savings come last: they price whole runs.
    cost, saving, harvest, budget, serving, trust = (place.empty() for _ in range(2) for place in st.columns(3))
    below = st.container()
    within = {"from_ns": period.from_ns, "to_ns": period.to_ns}
    promise = data.promise(data.rows(ledger, "dashboard/slo_daily", provenance=provenance, **within))
    _serving_card(serving, promise)
    _trust_card(trust, ledger)
    book = data.price_book(ledger, period=period)
    scope = Scope(ledger=ledger, period=period, book=book, provenance=provenance)
    billed, why = data.bill_with_history(scope)
    shown = _read(scope, billed, why, promise, bar.chosen())
    sentence.markdown(_sentence(shown, None))
    _cost_card(cost, shown)
    _harvest_card(harvest, shown)
    _budget_card(budget, shown)
    with stamp:
        frame.stamp(replace(billed.stamp, from_ns=scope.period.from_ns, to_ns=scope.period.to_ns))
    _days(shown)
    with frame.errors_shown():
        _drivers(shown)
    _teams(shown)
    st.header("What needs you?")
    lines = "\n".join(f"- {line}" for line in _issues(shown))
    st.markdown(words.plain(lines or "Nothing: the ledger verifies, and no issue is open."))
    why = "No run of this period has enough data; the page Borrowing says what is missing."
    saved = None
    with saving.container(), st.spinner("Computing the savings of borrowing …"):
        try:
            saved = _saving(shown, _saved(shown, below))
        except UserError as error:
            why = str(error)
    cash, about, clause = saved or (None, why, None)
    _card(saving, "Borrowing saved", cash, about)
    sentence.markdown(_sentence(shown, clause))


def _read(scope: Scope, billed: Bill, why: str | None, promise: Promise, chosen: link.Link) -> _Content:
    earlier, before = period_before(scope.period), None
    if billed.period.from_ns <= earlier.from_ns:
        before = data.spent(scope, billed, earlier, chosen)
    budgets: list[TeamBudget] = []
    with suppress(UserError):
        budgets = data.budgets(scope)
    return _Content(
        chosen=chosen,
        scope=scope,
        bill=billed,
        now=data.spent(scope, billed, scope.period, chosen),
        before=None if before is None or before.frame.is_empty() else before,
        not_compared=why,
        promise=promise,
        budgets=[row for row in budgets if chosen.team in (None, row.team)],
    )


def _card(
    place: Place,
    label: str,
    value: str | None,
    about: str,
    *,
    delta: str | None = None,
    more_is_worse: bool | None = None,
    good: bool | None = None,
    verdict: str = "",
) -> None:
    """Show a figure. A `verdict` is a badge: green if `good`, red if not, amber if `good` is None."""
    with place.container(border=True, height="stretch"):
        colour = "off" if more_is_worse is None else "inverse" if more_is_worse else "normal"
        st.metric(label, value or "unknown", delta, delta_color=colour)  # type: ignore[arg-type]
        if verdict:
            icon, colour = _BADGES[good]
            st.badge(verdict, color=colour, icon=icon)
        st.caption(escape.prose(about))


def _cost_card(place: Place, shown: _Content) -> None:
    before = shown.before
    name = words.period(period_before(shown.scope.period))
    loaded = shown.chosen.view == link.FULLY_LOADED
    what = "all rollout work, with its part of idle time" if loaded else ", ".join(ROLLOUT_BUCKETS)
    about = f"{shown.chosen.view.replace('-', ' ')}; {what}. Details: page Cost."
    if before is None:
        about += f" Not compared: {shown.not_compared or f'nothing is charged in {name}'}."
    delta = None if before is None else words.change(shown.now.rollout_nano, before.rollout_nano, name)
    _card(place, "Rollout cost", format_usd(shown.now.rollout_nano), about, delta=delta, more_is_worse=True)


def _harvest_card(place: Place, shown: _Content) -> None:
    frame = shown.bill.frame.filter(charge_algebra.in_period(shown.scope.period))
    share, times = data.harvest(frame), data.serving_time(shown.scope)
    of_alone = "unknown, since events of this period were archived"
    if times is not None:
        of_alone = words.percent(data.harvest(frame, times["delayed_ns"])) or "unknown"
    earlier = period_before(shown.scope.period)
    before = None if shown.before is None else data.harvest(shown.bill.frame.filter(charge_algebra.in_period(earlier)))
    about = "share of unused serving time that rollouts used; whole fleet. "
    about += f"Of the time that serving alone would leave: {of_alone}. "
    if times is not None and times["withheld_idle_ns"]:
        about += f"{words.withheld(times['withheld_idle_ns'])} "
    about += "Details: page Fleet now."
    if share is None:
        about = "No serving device had time to lend in this period."
    delta = words.points(share, before, words.period(earlier))
    _card(place, "Harvest share", words.percent(share), about, delta=delta, more_is_worse=False)


def _budget_card(place: Place, shown: _Content) -> None:
    month = month_at(shown.scope.period.to_ns - 1).label
    if not shown.budgets:
        whose = "" if shown.chosen.team is None else f" for {shown.chosen.team}"
        about = f"No budget is set{whose} in {month}: `rose books budget TEAM USD` sets one."
        _card(place, "Budget", "not set", about)
        return
    over = [row.team for row in shown.budgets if int(row.left.value or 0) < 0]
    spent, allowed = (shown.budget_sum(name) for name in ("spent", "budget"))
    about = f"of {allowed} for {month}, amortized: {', '.join(row.team for row in shown.budgets)}. Details: page Books."
    verdict = f"over budget: {len(over)}" if over else "within budget"
    _card(place, "Spent of the budget", spent, about, good=not over, verdict=verdict)


def _serving_card(place: Place, promise: Promise) -> None:
    label, target = "Within latency budgets", words.percent(data.SERVING_TARGET, 0)
    if not promise.requests:
        about = "No serving request was recorded in this period."
        _card(place, label, None, about)
        return
    verdict = {True: "target met", False: "target missed", None: "too few to tell"}[promise.kept]
    about = f"{promise.text}. Whole fleet; the target is {target}. Details: page Serving."
    _card(place, label, words.percent(_kept(promise)), about, good=promise.kept, verdict=verdict)


def _kept(promise: Promise) -> Fraction:
    return 1 - Fraction(promise.late, promise.requests)


def _trust_card(place: Place, ledger: Ledger) -> None:
    trust = frame.look(ledger)
    count = None if trust.problems is None else len(trust.problems)
    value = None if count is None else f"{count:,} problem{'' if count == 1 else 's'}"
    good = None if count is None else not count
    verdict = {True: "verified", False: "not to be trusted", None: "not verified"}[good]
    about = trust.why or f"{trust.text}. Details: page Trust."
    _card(place, "Trust in the ledger", value, about, good=good, verdict=verdict)


def _saved(shown: _Content, below: Place) -> Saved | None:
    """Return the savings. With many runs, compute them only after a click. Raises UserError."""
    scope, key = shown.scope, f"overview-saved {shown.scope.period.label} {shown.scope.provenance}"
    count = int(shown.now.frame["run_id"].n_unique())
    if count > _RUNS_MAX and not st.session_state.get(key):
        if not below.button(f"Compute the savings of {count:,} runs", key="overview-saved"):
            raise data.ReadError(f"Not computed yet: pricing {count:,} runs one by one takes a while.")
        st.session_state[key] = True
    return data.saved(scope)


def _saving(shown: _Content, saved: Saved | None) -> tuple[str, str, str] | None:
    """Return the card's figure, its explanation, and the clause for the page's first sentence."""
    if saved is None or (saving := saved.of_team(shown.chosen.team)).cash_nano is None:
        return None
    headline = figure = savings.cash_text(saving)
    clause = f"borrowing saved **{figure}**"
    parts = ["against what dedicated devices would have cost to buy", "marginal"]
    if saving.cash_interval is not None:
        low, high = ("unbounded" if end is None else format_usd(end) for end in saving.cash_interval)
        parts.append(f"95% {low} to {high}")
        if saving.cash_interval[0] < 0 and (saving.cash_interval[1] is None or saving.cash_interval[1] > 0):
            headline = "not clear"
            parts.insert(0, f"estimate {figure}")
            clause = f"whether borrowing saved anything is **not clear** (95% {low} to {high})"
    elif saving.no_interval:
        parts.append(f"no interval: {saving.no_interval}")
    if saving.left_out:
        parts.append(f"unknown costs: {', '.join(saving.left_out).replace('_', ' ')}")
    if saving.cash_nano[0] != saving.cash_nano[1]:
        parts.append("a range: the price book does not say (idle_anyway) whether the fleet would exist anyway")
    return headline, f"{'; '.join(parts)}. Whole period; page Borrowing has one run.", clause


def _sentence(shown: _Content, saving: str | None) -> str:
    now = shown.now.rollout_nano
    text = f"Rollouts cost **{format_usd(now)}** in {words.period(shown.now.period)}"
    if shown.before is not None and shown.before.rollout_nano:
        share = float(Fraction(now, shown.before.rollout_nano) - 1)
        text += f" ({abs(share):.1%} {'more' if share > 0 else 'less'} than in {words.period(shown.before.period)})"
    if saving is not None:
        text += f"; {saving}"
    if shown.budgets:
        text += f"; teams with a budget spent {shown.budget_sum('spent')} of {shown.budget_sum('budget')}"
    if not shown.promise.requests:
        return words.plain(f"{text}; serving latency is unknown.")
    kept = f"serving kept **{words.percent(_kept(shown.promise))}** of its requests within their latency budgets"
    return words.plain(f"{text}; {kept}.")


def _days(shown: _Content) -> None:
    st.header("What did each day cost?")
    days = shown.now.by_day()
    if days.is_empty():
        st.info("No charges match this choice in this period.")
        return
    rows = days.unpivot(["rollouts", "all else"], index="day", variable_name="what", value_name="nano").with_columns(
        amount=pl.col("nano") / 1e9, text=pl.col("nano").map_elements(format_usd, return_dtype=pl.String)
    )
    month = month_at(shown.scope.period.to_ns - 1)
    of_day = None  # A budget is amortized, and of a whole team.
    if shown.chosen.team is not None and shown.budgets and shown.chosen.view == link.AMORTIZED:
        of_day = int(shown.budgets[0].budget.value or 0) / 1e9 / ((month.to_ns - month.from_ns) // NS_PER_DAY)
    escape.chart(charts.cost_by_day(rows, of_day), about="Cost by UTC day")
    view = shown.chosen.view.replace("-", " ")
    whose = "every team" if shown.chosen.team is None else escape.markdown(shown.chosen.team)
    line = f" The line is the budget of {month.label}, spread evenly over its days." if of_day is not None else ""
    st.caption(f"Cost of {whose} by UTC day, {view}, {shown.bill.stamp}.{line} Source: charges.")
    frame.download(rows.select("day", "what", "amount", pl.lit(USD).alias("currency")), "days")


def _drivers(shown: _Content) -> None:
    if shown.before is None or shown.now.frame.is_empty():
        return
    st.header("What drove the change?")
    if shown.chosen.view != link.AMORTIZED:
        st.info("Only the amortized cost is split into effects: choose the amortized view.")
        return
    change = data.changed(shown.scope, shown.bill, shown.before, shown.now, shown.chosen)
    before, now = (words.period(part.period) for part in (shown.before, shown.now))
    st.markdown(words.plain(f"{now}, compared with {before}: {changes.sentence(change)}"))
    escape.chart(charts.waterfall(steps(change, before, now)), about="Cost of the period before, its changes, and now")
    st.caption(
        f"This shows all chosen charges (of rollouts and of all else), amortized, {shown.scope.provenance}. The steps "
        "sum to the change. `rose changes` splits the change by team, run or device."
    )
    with st.expander("By team"):
        frame.pricing_table(changes.table(change), f"charges, amortized, {shown.scope.provenance}")


def steps(change: Changes, before: str, now: str) -> list[tuple[str, int, bool]]:
    """Return a waterfall chart's steps: cost before, large effects, the sum of the smaller ones, and cost now."""
    total = change.total
    least = max(abs(total.before_nano), abs(total.cost_nano)) * _SEEN_SHARE
    large = [name for name in EFFECTS if abs(total.effects[name]) >= least]
    rest = sum(nano for name, nano in total.effects.items() if name not in large)
    effects = [(name, total.effects[name]) for name in large] + ([("smaller effects", rest)] if rest else [])
    return [
        (before, total.before_nano, True),
        *((name, nano, False) for name, nano in effects),
        (now, total.cost_nano, True),
    ]


def _teams(shown: _Content) -> None:
    st.header("Who spent it?")
    whole = charge_algebra.drill(shown.now.frame, ("team",), "amount_nano")
    if not whole:
        st.info("No charges match this choice in this period.")
        return
    of_rollouts = charge_algebra.drill(shown.now.rollout, ("team",), "amount_nano")
    rollouts = {row["team"]: row["amount_nano"] for row in of_rollouts}
    table = pl.DataFrame(
        {
            "team": [row["team"] for row in whole],
            "cost": [row["amount_nano"] / 1e9 for row in whole],
            "for rollouts": [rollouts.get(row["team"], 0) / 1e9 for row in whole],
        }
    )
    amounts = [*table["cost"], *table["for rollouts"]]
    priced = {name: words.money_column(name, amounts) for name in ("cost", "for rollouts")}
    source = f"charges by the tags of runs, {shown.bill.stamp}. Click a team to see it alone."
    teams = table["team"].to_list()
    frame.table(
        table, source, priced, name="teams", on_pick=lambda row: bar.choose(team=None if row is None else teams[row])
    )
    if teams == [charge_algebra.UNALLOCATED]:
        st.info('No run has a team tag. Start runs with one: `tags = {"team": "research"}`.')


def _issues(shown: _Content) -> Iterator[str]:
    ledger = shown.scope.ledger
    trust = frame.look(ledger)
    if trust.problems != ():
        yield f"**The ledger: {escape.prose(trust.text)}.** `rose ledger verify` names the problem."
    if shown.promise.kept is False:
        yield f"**Serving missed its target of {words.percent(data.SERVING_TARGET, 0)}**: {shown.promise.text}."
    for row in shown.budgets:
        if int(row.left.value or 0) < 0:
            yield f"**Over budget**: {escape.markdown(f'{row.team}, {row.spent.text} of {row.budget.text}')}."
    try:
        for entry in alerts.entries(ledger):
            if entry.error is not None:
                yield f"**Alert not delivered**: {escape.markdown(f'{entry.title} to {entry.to}: {entry.error}')}"
    except UserError as error:
        yield f"Delivery of alerts is unknown: {escape.prose(str(error))}"
    for month in data.not_closed(ledger, shown.scope.provenance):
        label = month.label
        yield f"**{label} is not closed**: its cost may still change. `rose books close --period {label}` closes it."


frame.ledger_page(
    "Overview",
    "What did the rollouts cost, what did borrowing save, and what needs a look?",
    show,
    uses=("period", "view", "team", "provenance"),
)
