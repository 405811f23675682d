"""What an accepted and a correct answer cost, measured, and beside it what the formula says at list price."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import amounts, display, escape
from dashboard import charts as shared
from dashboard import format as words
from rose.pricing.answers.report.cost_per_correct import C3, FACTORS, TOKENS
from rose.pricing.figures import Figure
from rose.pricing.table import Section, Table

_ORANGE = "#B87A00"
_LINES = {
    "serving": "as the serving devices cost (serving)",
    "dedicated": "as dedicated devices cost (dedicated)",
    "opportunistic": "as borrowing cost (opportunistic)",
    "blended": "as the mix that was used cost (blended)",
}


def show(cost: Section, steps: pl.DataFrame) -> None:
    """The section."""
    st.header("What does a correct answer cost?")
    paid = cost.table("lines").row("blended")
    accepted: Figure = paid["per accepted"]
    currency = accepted.stamp.currency
    count, named = amounts.scale(accepted.value)
    several = "answer" if count == 1 else "answers"
    cells = (
        (f"{named}accepted {several}".capitalize(), accepted, "Paid for rollouts, over what was accepted."),
        (
            f"{named}correct {several}, by audit".capitalize(),
            paid["per correct"],
            "The same, over what an audit found right.",
        ),
    )
    places = st.columns(3)
    for place, (label, figure, about) in zip(places, cells, strict=False):
        place.metric(label, _scaled(figure, count))
        place.caption(f"{escape.prose(_terms(figure, count))}  \n{about}")
    token: Figure = paid["a million of them"]
    places[-1].metric("A million useful tokens", _scaled(token, 1))
    places[-1].caption(f"{escape.markdown(token.view)}  \nThose that came to nothing are in the price.")
    unit = f"{currency} for {named}accepted {several}"
    st.subheader("By what a rollout token is priced at")
    _lines(cost.table("lines"), count, unit)
    st.subheader("Over the steps")
    _steps(token, cost.figure("c3", TOKENS).value or 0, steps, count, unit)
    _list_price(cost, token)


def _lines(table: Table, count: int, unit: str) -> None:
    figures: dict[str, Figure] = {_LINES[row[0]]: row[3] for row in table.rows}
    known = {name: figure for name, figure in figures.items() if figure.value is not None}
    if not known:
        st.info(escape.markdown(figures[_LINES["blended"]].text))
        return
    display.chart(
        shared.intervals(shared.interval_rows(known, count), unit), about="Cost per accepted answer by price line"
    )
    unknown = [f"{name}: {figure.text}" for name, figure in figures.items() if figure.value is None]
    st.caption(
        words.plain(
            f"{unit}, with the same tokens priced as each line says; grey: 95% interval where there is one. "
            f"{table.stamp}. {escape.markdown(' '.join(unknown))} "
            "Source: `turn`, `trajectory`, `verdict`, `device_slice` and the price book."
        )
    )


def _steps(price: Figure, useful: float, steps: pl.DataFrame, count: int, unit: str) -> None:
    if price.value is None or not steps["accepted"].sum():
        st.info(escape.prose(price.why or "Not enough data: nothing was accepted yet."))
        return
    course = cost_by_step(price, useful, steps).with_columns(usd=pl.col("usd") * count)
    chart = shared.by_step(course, "usd", price.stamp.currency, _ORANGE, ".3~g")
    display.chart(chart.properties(height=200), about="Cost per accepted answer by step")
    st.caption(
        words.plain(
            f"{unit}: the run's rollout cost ({price.view}), divided among steps by their tokens, over accepted "
            f"answers; {price.stamp}. A step with none has no point; single steps have no interval. Source: "
            "`turn`, `verdict`, `device_slice` and the price book."
        )
    )


def _list_price(cost: Section, token: Figure) -> None:
    """C3 beside what was measured: two prices of a token, and why they differ."""
    cpm, c3 = cost.figure("c3", FACTORS["cpm"]), cost.figure("c3", C3)
    sentence = f"**The formula is another figure.** C3 is {escape.markdown(c3.text)}"
    if c3.value is None:
        st.markdown(words.plain(f"{sentence}."))
        return
    sentence += (
        f" for a million answer tokens{f' (95% {c3.interval_text})' if c3.interval_text else ''}. It prices a token at "
        f"what the price book lists for serving's customers, {cpm.text} for a million"
    )
    if token.value and cpm.value:
        times = cpm.value / token.value
        ratio = f"{times:,.3g}" if times < 1000 else f"{times:,.0f}"
        sentence += (
            f", while a million useful rollout tokens of this run cost {amounts.amount(round(token.value))}: the list "
            f"price is {ratio} times that, so C3 and the measured cost are not to be compared"
        )
    st.markdown(words.plain(f"{sentence}. It is on no bill; the levers below use it, since it has a factor for each."))


def _terms(figure: Figure, count: int) -> str:
    if figure.value is None:
        return figure.why or words.NOT_ENOUGH_DATA
    return f"{figure.view}; {_interval(figure, count)}"


def _interval(figure: Figure, count: int) -> str:
    if figure.low is None:
        return f"no interval: {figure.no_interval or words.NOT_ENOUGH_DATA}"
    high = "unbounded" if figure.high is None else _text(figure.high, count, figure)
    return f"95% {_text(figure.low, count, figure)} to {high}"


def _scaled(figure: Figure, count: int) -> str:
    return "unknown" if figure.value is None else _text(figure.value, count, figure)


def _text(nano: int | float, count: int, figure: Figure) -> str:
    return amounts.amount(round(nano * count), figure.stamp.currency)


def cost_by_step(price: Figure, useful: float, steps: pl.DataFrame) -> pl.DataFrame:
    """Dollars per accepted answer at each step: the run's rollout dollars, divided by the tokens each step made.

    `price` is of a million of its `useful` tokens.
    """
    dollars = (price.value or 0) / 1e9 * useful / 1e6
    share = pl.col("tokens") / pl.col("tokens").sum()
    return steps.with_columns(
        usd=pl.when(pl.col("accepted") > 0).then(dollars * share / pl.col("accepted")).otherwise(None)
    )
