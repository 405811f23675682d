"""What an accepted and a correct answer cost, measured, and beside it what the formula says at list price."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import amounts, display, escape
from dashboard import charts as shared
from dashboard import format as words
from dashboard.answers.documents import Documents
from rose.pricing.figures import Figure

_ORANGE = "#B87A00"
_LINES = {
    "serving": "as the serving devices cost (serving)",
    "dedicated": "as dedicated devices cost (dedicated)",
    "opportunistic": "as borrowing cost (opportunistic)",
    "blended": "as the mix that was used cost (blended)",
}


def show(made: Documents, steps: pl.DataFrame) -> None:
    """The section."""
    st.header("What does a correct answer cost?")
    paid, currency = made.answers.lines["blended"], made.answers.stamp.currency
    count, named = amounts.scale(paid.measured.value)
    several = "answer" if count == 1 else "answers"
    cells = (
        (f"{named}accepted {several}".capitalize(), paid.measured, "Paid for rollouts, over what was accepted."),
        (
            f"{named}correct {several}, by audit".capitalize(),
            paid.per_correct,
            "The same, over what an audit found right.",
        ),
    )
    places = st.columns(3)
    for place, (label, figure, about) in zip(places, cells, strict=False):
        place.metric(label, _scaled(figure, count))
        place.caption(f"{escape.prose(_terms(figure, count))}  \n{about}")
    places[-1].metric("A million useful tokens", _scaled(paid.token_cost, 1))
    places[-1].caption(f"{escape.markdown(paid.token_cost.view)}  \nThose that came to nothing are in the price.")
    unit = f"{currency} for {named}accepted {several}"
    st.subheader("By what a rollout token is priced at")
    _lines(made, count, unit)
    st.subheader("Over the steps")
    _steps(made, steps, count, unit)
    _list_price(made)


def _lines(made: Documents, count: int, unit: str) -> None:
    known = [(name, line.measured) for name, line in made.answers.lines.items() if line.measured.value is not None]
    if not known:
        st.info(escape.markdown(made.answers.lines["blended"].measured.text))
        return
    shown = pl.DataFrame(
        [
            {
                "name": _LINES[name],
                "usd": _units(figure.value, count),
                "low": _units(figure.low, count),
                "high": _units(figure.high, count),
                "text": _scaled(figure, count),
                "range": _interval(figure, count),
            }
            for name, figure in known
        ],
        schema_overrides=dict.fromkeys(("usd", "low", "high"), pl.Float64),
    )
    display.chart(shared.intervals(shown, unit), about="Cost per accepted answer by price line")
    unknown = [
        f"{_LINES[name]}: {line.measured.text}"
        for name, line in made.answers.lines.items()
        if line.measured.value is None
    ]
    st.caption(
        words.plain(
            f"{unit}, with the same tokens priced as each line says; grey: 95% interval where there is one. "
            f"{made.answers.stamp}. {escape.markdown(' '.join(unknown))} "
            "Source: `turn`, `trajectory`, `verdict`, `device_slice` and the price book."
        )
    )


def _steps(made: Documents, steps: pl.DataFrame, count: int, unit: str) -> None:
    price = made.answers.lines["blended"].token_cost
    if price.value is None or not steps["accepted"].sum():
        st.info(escape.prose(price.why or "Not enough data: nothing was accepted yet."))
        return
    course = cost_by_step(price, made.useful, steps).with_columns(usd=pl.col("usd") * count)
    chart = shared.by_step(course, "usd", made.answers.stamp.currency, _ORANGE, ".3~g")
    display.chart(chart.properties(height=200), about="Cost per accepted answer by step")
    st.caption(
        words.plain(
            f"{unit}: the run's rollout cost ({price.view}), divided among steps by their tokens, over accepted "
            f"answers; {made.answers.stamp}. A step with none has no point; single steps have no interval. Source: "
            "`turn`, `verdict`, `device_slice` and the price book."
        )
    )


def _list_price(made: Documents) -> None:
    """C3 beside what was measured: two prices of a token, and why they differ."""
    paid = made.answers.lines["blended"]
    cpm, c3 = made.answers.factors["cpm"], made.answers.c3
    sentence = f"**The formula is another figure.** C3 is {escape.markdown(c3.text)}"
    if c3.value is None:
        st.markdown(words.plain(f"{sentence}."))
        return
    sentence += (
        f" for a million answer tokens{f' (95% {c3.interval_text})' if c3.interval_text else ''}. It prices a token at "
        f"what the price book lists for serving's customers, {cpm.text} for a million"
    )
    token = paid.token_cost
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


def _units(nano: int | float | None, count: int) -> float | None:
    return None if nano is None else nano * count / 1e9


def cost_by_step(price: Figure, useful: int, steps: pl.DataFrame) -> pl.DataFrame:
    """Dollars per accepted answer at each step: the run's rollout dollars, divided by the tokens each step made.

    `price` is of a million of its `useful` tokens.
    """
    dollars = (price.value or 0) / 1e9 * useful / 1e6
    share = pl.col("tokens") / pl.col("tokens").sum()
    return steps.with_columns(
        usd=pl.when(pl.col("accepted") > 0).then(dollars * share / pl.col("accepted")).otherwise(None)
    )
