"""What a finance lead asks first: what rollouts cost, what borrowing saved, and what needs a look."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import polars as pl
import streamlit as st

from dashboard import bar, charts, data, display, escape, frame, link
from dashboard import format as words
from dashboard.data import Priced, Run, Scope, Spent
from rose.pricing import alerts
from rose.pricing.answers import changes
from rose.pricing.answers.changes import EFFECTS, Changes
from rose.pricing.closing import charge_algebra
from rose.pricing.closing.bill import Bill
from rose.pricing.closing.period import NS_PER_DAY, month_at
from rose.pricing.money import format_money, signed_money
from rose.pricing.spend import saved as savings
from rose.pricing.spend.saved import ENDS, NO_INTERVAL, Saved
from rose.pricing.watch.budget import TeamBudget

#: What so many runs saved is worked out without a click.
_RUNS_MAX = 8
_CARDS = ("cost", "saved", "harvest", "budget", "serving", "trust")
#: What each effect on the cost is, for who points at it.
_WHY = {
    "volume": "more or less of it was done",
    "accepted output": "more or fewer tokens were accepted",
    "tokens per accepted token": "more or fewer tokens were made for each accepted one",
    "device time per token": "a token took more or less device time",
    "share borrowed": "work moved between dedicated devices and borrowed ones",
    "mix": "work moved between device classes, teams and kinds of work",
    "price": "an hour of the same device cost more or less",
}
#: An effect of a smaller share of the whole cannot be seen.
_SEEN_SHARE = 0.001


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """What the page is made from."""

    scope: Scope
    bill: Bill
    now: Spent
    #: None where there is nothing to compare with.
    before: Spent | None
    kept: Fraction | None
    requests: int
    budgets: list[TeamBudget]

    @property
    def currency(self) -> str:
        return self.bill.stamp.currency

    def money(self, nano: int) -> str:
        return format_money(nano, self.currency)


def show(ledger: Path, runs: list[Run]) -> None:
    scope = frame.scope(ledger)
    if scope is None:
        return
    chosen = bar.chosen()
    # What is quick comes first: prices follow, and what borrowing saved, which prices whole runs, is last.
    sentence = st.empty()
    places = [place.empty() for _ in range(2) for place in st.columns(3)]
    slots, below = dict(zip(_CARDS, places, strict=True)), st.container()
    requests = data.rows(
        ledger,
        "dashboard/slo_daily",
        from_ns=scope.period.from_ns,
        to_ns=scope.period.to_ns,
        provenance=scope.provenance,
    )
    _serving_card(slots["serving"], requests)
    _trust_card(slots["trust"], ledger)
    billed = frame.value_of(data.bill_with_history(scope))
    if billed is None:
        return
    shown = _read(scope, billed, requests, chosen)
    sentence.markdown(_sentence(shown, None))
    _cost_card(slots["cost"], shown, chosen)
    _harvest_card(slots["harvest"], shown)
    _budget_card(slots["budget"], shown, chosen)
    frame.stamp(replace(billed.stamp, from_ns=scope.period.from_ns, to_ns=scope.period.to_ns))
    _days(shown, chosen)
    _drivers(shown, chosen)
    _teams(shown)
    _needs(shown)
    with slots["saved"].container(), st.spinner("Working out what borrowing saved …"):
        answer = _saved(shown, below)
    _saved_card(slots["saved"], shown, answer, chosen)
    sentence.markdown(_sentence(shown, _saved_text(shown, answer, chosen)))


def _read(scope: Scope, billed: Bill, requests: pl.DataFrame, chosen: link.Link) -> _Shown:
    earlier, before = data.period_before(scope.period), None
    if billed.period.from_ns <= earlier.from_ns:
        before = data.spent(scope, billed, earlier, chosen)
    count = int(requests["requests"].sum())
    budgets = data.budgets(scope)
    return _Shown(
        scope=scope,
        bill=billed,
        now=data.spent(scope, billed, scope.period, chosen),
        before=None if before is None or before.frame.is_empty() else before,
        kept=Fraction(int(requests["kept"].sum()), count) if count else None,
        requests=count,
        budgets=[row for row in budgets.value or [] if chosen.team in (None, row.team)],
    )


def _card(
    place: st.delta_generator.DeltaGenerator,
    label: str,
    value: str | None,
    about: str,
    *,
    delta: str | None = None,
    more_is_worse: bool | None = None,
    good: bool | None = None,
    verdict: str = "",
) -> None:
    """A figure in its place, instead of what stood there; `good` says in a word whether it is as it should be."""
    with place.container(border=True):
        colour = "off" if more_is_worse is None else "inverse" if more_is_worse else "normal"
        st.metric(label, value or "unknown", delta, delta_color=colour)  # type: ignore[arg-type]
        if good is not None:
            icon = ":material/check:" if good else ":material/warning:"
            st.badge(verdict, color="green" if good else "red", icon=icon)
        st.caption(escape.prose(about))


def _cost_card(place: st.delta_generator.DeltaGenerator, shown: _Shown, chosen: link.Link) -> None:
    before = shown.before
    name = words.period(data.period_before(shown.scope.period))
    loaded = chosen.view == link.FULLY_LOADED
    what = "the work rollout, with its part of idle time" if loaded else ", ".join(data.ROLLOUT_BUCKETS)
    about = f"{chosen.view.replace('-', ' ')}; {what}. The page Cost divides it."
    if before is None:
        about += f" Not compared: nothing is charged in {name}."
    delta = None if before is None else words.change(shown.now.rollout_nano, before.rollout_nano, name)
    _card(place, "Rollout cost", shown.money(shown.now.rollout_nano), about, delta=delta, more_is_worse=True)


def _harvest_card(place: st.delta_generator.DeltaGenerator, shown: _Shown) -> None:
    share = data.harvest(charge_algebra.within(shown.bill.frame, shown.scope.period))
    earlier = data.period_before(shown.scope.period)
    before = None if shown.before is None else data.harvest(charge_algebra.within(shown.bill.frame, earlier))
    about = "of the time that serving left unused, rollouts used this share; whole fleet. The page Fleet now has why."
    if share is None:
        about = "No serving device had time to lend in this period."
    delta = words.points(share, before, words.period(earlier))
    _card(place, "Harvest share", words.percent(share), about, delta=delta, more_is_worse=False)


def _budget_card(place: st.delta_generator.DeltaGenerator, shown: _Shown, chosen: link.Link) -> None:
    month = month_at(shown.scope.period.to_ns - 1).label
    if not shown.budgets:
        whose = "" if chosen.team is None else f" for {chosen.team}"
        about = f"No budget is set{whose} in {month}: `rose books budget TEAM USD` sets one."
        _card(place, "Budget", "not set", about)
        return
    over = [row.team for row in shown.budgets if int(row.left.value or 0) < 0]
    spent, allowed = (_sum(shown, name) for name in ("spent", "budget"))
    about = f"of {allowed} for {month}, amortized: {', '.join(row.team for row in shown.budgets)}. Books has each."
    verdict = f"over budget: {len(over)}" if over else "within budget"
    _card(place, "Spent of the budget", spent, about, good=not over, verdict=verdict)


def _sum(shown: _Shown, name: str) -> str:
    """The sum of one figure of the budgets, as money."""
    return shown.money(sum(int(getattr(row, name).value or 0) for row in shown.budgets))


def _serving_card(place: st.delta_generator.DeltaGenerator, requests: pl.DataFrame) -> None:
    count = int(requests["requests"].sum())
    share = Fraction(int(requests["kept"].sum()), count) if count else None
    target = words.percent(data.SERVING_TARGET, 0)
    about = f"of {count:,} requests, whole fleet; the target is {target}. The page Serving has why."
    if share is None:
        about = "No serving request was recorded in this period: clients or gateways record them."
    met = None if share is None else share >= data.SERVING_TARGET
    verdict = "target met" if met else "target missed"
    _card(place, "Serving within its latency budgets", words.percent(share), about, good=met, verdict=verdict)


def _trust_card(place: st.delta_generator.DeltaGenerator, ledger: Path) -> None:
    trust = frame.look(ledger)
    count = None if trust.problems is None else len(trust.problems)
    value = None if count is None else f"{count:,} problem{'' if count == 1 else 's'}"
    good = None if count is None else not count
    verdict = "verified" if good else "not to be trusted"
    _card(
        place,
        "Trust in the ledger",
        value,
        trust.why or f"{trust.text}. The page Trust has more.",
        good=good,
        verdict=verdict,
    )


def _saved(shown: _Shown, below: st.delta_generator.DeltaGenerator) -> Priced[Saved | None]:
    """What borrowing saved; of many runs, which takes long, only after a click on a button `below`."""
    scope, key = shown.scope, f"overview-saved {shown.scope.period.label} {shown.scope.provenance}"
    count = int(shown.now.frame["run_id"].n_unique())
    if count > _RUNS_MAX and not st.session_state.get(key):
        if not below.button(f"Work out what {count:,} runs saved", key="overview-saved"):
            return Priced(None, f"It prices {count:,} runs one by one, which takes a while.")
        st.session_state[key] = True
    return data.saved(scope)


def _saved_card(
    place: st.delta_generator.DeltaGenerator, shown: _Shown, answer: Priced[Saved | None], chosen: link.Link
) -> None:
    text = _saved_text(shown, answer, chosen)
    if text is None:
        why = answer.error or "No run of this period has enough data; the page Borrowing says what is missing."
        _card(place, "Borrowing saved", None, why)
        return
    _card(place, "Borrowing saved", text[0], f"{text[1]}. The page Borrowing has every term.")


def _saved_text(shown: _Shown, answer: Priced[Saved | None], chosen: link.Link) -> tuple[str, str] | None:
    """The cash saved of the runs that are chosen, and what stands beside it; None where it is not known."""
    if answer.value is None:
        return None
    runs = answer.value.of_team(chosen.team)
    summed = savings.summed(runs)
    ends = summed["cash_saved_nano"]
    if ends is None:
        return None
    parts = ["cash, marginal"]
    interval = runs[0].cash_interval if len(runs) == 1 else None
    if interval is not None:
        high = "unbounded" if interval[1] is None else shown.money(interval[1])
        parts.append(f"95% {shown.money(interval[0])} to {high}")
    elif why := runs[0].no_interval if len(runs) == 1 else NO_INTERVAL:
        parts.append(f"no interval: {why}")
    if unknown := summed["runs_unknown"]:
        parts.append(f"of {len(runs) - unknown} of {len(runs)} runs: the others are not known")
    if ends[ENDS[0]] != ends[ENDS[1]]:
        parts.append("if the fleet would have been there anyway, or if not: the price book states no idle_anyway")
    return savings.cash_text([ends[end] for end in ENDS], shown.currency), "; ".join(parts)


def _sentence(shown: _Shown, saved: tuple[str, str] | None) -> str:
    """The page in one sentence, Markdown."""
    now = shown.now.rollout_nano
    text = f"Rollouts cost **{shown.money(now)}** in {words.period(shown.now.period)}"
    if shown.before is not None and shown.before.rollout_nano:
        share = float(Fraction(now, shown.before.rollout_nano) - 1)
        more = "more" if share > 0 else "less"
        text += f" ({abs(share):.1%} {more} than in {words.period(shown.before.period)})"
    if saved is not None:
        text += f"; borrowing saved **{saved[0]}**"
    if shown.budgets:
        text += f"; teams with a budget spent {_sum(shown, 'spent')} of {_sum(shown, 'budget')}"
    share_text = words.percent(shown.kept)
    text += (
        "; how serving did is not known."
        if share_text is None
        else f"; serving kept **{share_text}** of its requests within their latency budgets."
    )
    return words.plain(text)


def _days(shown: _Shown, chosen: link.Link) -> None:
    st.header("What did each day cost?")
    days = shown.now.by_day()
    if days.is_empty():
        st.info("Nothing is charged to what is chosen in this period.")
        return
    rows = days.unpivot(["rollouts", "all else"], index="day", variable_name="what", value_name="nano").with_columns(
        amount=pl.col("nano") / 1e9, text=pl.col("nano").map_elements(shown.money, return_dtype=pl.String)
    )
    month = month_at(shown.scope.period.to_ns - 1)
    # A budget is amortized, and of a whole team.
    of_day = None
    if chosen.team is not None and shown.budgets and chosen.view == link.AMORTIZED:
        of_day = int(shown.budgets[0].budget.value or 0) / 1e9 / ((month.to_ns - month.from_ns) // NS_PER_DAY)
    display.chart(charts.cost_by_day(rows, of_day, shown.currency), about="Cost by UTC day")
    view = chosen.view.replace("-", " ")
    whose = "every team" if chosen.team is None else escape.markdown(chosen.team)
    line = f" The line is the budget of {month.label}, spread evenly over its days." if of_day is not None else ""
    st.caption(f"Cost of {whose} by UTC day, {view}, {shown.bill.stamp}.{line} Source: charges.")
    frame.download(rows.select("day", "what", "amount", pl.lit(shown.currency).alias("currency")), "days")


def _drivers(shown: _Shown, chosen: link.Link) -> None:
    if shown.before is None or shown.now.frame.is_empty():
        return
    st.header("What drove the change?")
    if chosen.view != link.AMORTIZED:
        st.info("The parts of a change are amortized: choose that view to see them.")
        return
    change = frame.value_of(data.changed(shown.scope, shown.bill, shown.before, shown.now, chosen))
    if change is None:
        return
    before, now = (words.period(part.period) for part in (shown.before, shown.now))
    text = changes.sentence(change, lambda nano: signed_money(nano, shown.currency))
    st.markdown(words.plain(f"{now}, compared with {before}: {text}"))
    title = f"cost ({shown.currency})"
    display.chart(
        charts.waterfall(steps(change, before, now), shown.currency, title),
        about="Cost of the period before, its changes, and now",
    )
    st.caption(
        f"All that is chosen, rollouts and all else, amortized, {shown.bill.provenance}. The steps sum to the change. "
        "`rose changes` says by which team, run or device."
    )
    with st.expander("By team"):
        frame.pricing_table(changes.table(change), f"charges, amortized, {shown.bill.provenance}")


def steps(change: Changes, before: str, now: str) -> list[tuple[str, int, bool, str]]:
    """The cost before, each effect that can be seen, the others in one, and the cost now: steps of a waterfall."""
    total = change.total
    least = max(abs(total.before_nano), abs(total.cost_nano)) * _SEEN_SHARE
    large = [name for name in EFFECTS if abs(total.effects[name]) >= least]
    rest = sum(nano for name, nano in total.effects.items() if name not in large)
    effects = [(name, total.effects[name]) for name in large] + ([("smaller effects", rest)] if rest else [])
    return [
        (before, total.before_nano, True, ""),
        *((name, nano, False, _WHY.get(name, "")) for name, nano in effects),
        (now, total.cost_nano, True, ""),
    ]


def _teams(shown: _Shown) -> None:
    st.header("Who spent it?")
    whole = charge_algebra.drill(shown.now.frame, ("team",), "amount_nano")
    if not whole:
        st.info("Nothing is charged to what is chosen in this period.")
        return
    rollouts = {
        row["team"]: row["amount_nano"] for row in charge_algebra.drill(shown.now.rollout, ("team",), "amount_nano")
    }
    table = pl.DataFrame(
        {
            "team": [row["team"] for row in whole],
            "cost": [row["amount_nano"] / 1e9 for row in whole],
            "for rollouts": [rollouts.get(row["team"], 0) / 1e9 for row in whole],
        }
    )

    def pick(row: int | None) -> None:
        bar.choose(team=None if row is None else table["team"][row])

    priced = {name: words.money_column(name, table[name], shown.currency) for name in ("cost", "for rollouts")}
    source = f"charges by the tags of runs, {shown.bill.stamp}. Click a team to see it alone."
    frame.table(table, source, priced, name="teams", key="overview-teams", on_pick=pick)
    if table["team"].to_list() == [charge_algebra.UNALLOCATED]:
        st.info('No run says who pays. Begin runs with a tag: `tags = {"team": "research"}`.')


def _needs(shown: _Shown) -> None:
    """What needs a look, or that nothing does."""
    st.header("What needs you?")
    lines = list(_listed(shown))
    if lines:
        st.markdown(words.plain("\n".join(f"- {line}" for line in lines)))
    else:
        st.markdown("Nothing: the ledger verifies, and nothing that was looked at is out of line.")


def _listed(shown: _Shown) -> Iterator[str]:
    ledger = shown.scope.ledger
    trust = frame.look(ledger)
    if trust.problems != ():
        yield f"**The ledger: {escape.prose(trust.text)}.** `rose ledger verify` says what is wrong."
    if shown.kept is not None and shown.kept < data.SERVING_TARGET:
        yield (
            f"**Serving missed its target**: {words.percent(shown.kept)} of {shown.requests:,} requests came within "
            f"their latency budgets, and the target is {words.percent(data.SERVING_TARGET, 0)}."
        )
    for row in shown.budgets:
        if int(row.left.value or 0) < 0:
            yield f"**Over budget**: {escape.markdown(f'{row.team}, {row.spent.text} of {row.budget.text}')}."
    entries = data.attempt(lambda: alerts.entries(ledger))
    if entries.value is None:
        yield f"Whether alerts arrived is not known: {escape.prose(entries.error or '')}"
    for entry in entries.value or []:
        if entry.error is not None:
            yield f"**Alert not delivered**: {escape.markdown(f'{entry.title} to {entry.to}: {entry.error}')}"
    for month in data.not_closed(ledger, shown.scope.provenance):
        label = month.label
        yield f"**{label} is not closed**: its cost may still change. `rose books close --period {label}` closes it."


frame.ledger_page(
    "Overview",
    "What did the rollouts cost, what did borrowing save, and what needs a look?",
    show,
    uses=("period", "view", "team", "provenance"),
)
