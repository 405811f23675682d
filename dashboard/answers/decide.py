"""What would make a correct answer cheaper: levers, the next dollar, and verifiers."""

from __future__ import annotations

import polars as pl
import streamlit as st

from dashboard import amounts, display, escape, frame
from dashboard import charts as shared
from dashboard import format as words
from dashboard.answers import charts
from dashboard.data import Priced
from rose.pricing.answers.report import tables
from rose.pricing.answers.report.cost_per_correct import Answers
from rose.pricing.answers.report.frontier import FREE, Outlook
from rose.pricing.answers.report.tables import ELASTICITIES, FACTORS
from rose.pricing.answers.report.verifiers import Procurement, VerifierRow
from rose.pricing.figures import Figure


def levers(made: Answers) -> None:
    """What each factor of C3 would save by a tenth, and how well it is known."""
    st.header("Which lever moves it most?")
    st.markdown(words.plain(escape.markdown(made.in_words)))
    if made.levers:
        title = f"{made.stamp.currency} saved on a million answer tokens, at list price, by a tenth of each"
        shown = pl.DataFrame(
            [
                {
                    "lever": lever.what,
                    "saves": (lever.tenth_saves.value or 0) / 1e9,
                    "text": amounts.amount(int(lever.tenth_saves.value or 0), made.stamp.currency),
                }
                for lever in made.levers
            ]
        )
        display.chart(charts.levers(shown, title), about="What each lever saves")
        frame.show_table(tables.levers(made), "the formula's factors, each moved alone")
    factors = [
        {"factor": what, "value": made.factors[name].text, "95% interval": words.interval(made.factors[name])}
        for name, what in FACTORS.items()
    ]
    with st.expander("What is the formula made of?"):
        st.markdown("C3 = CPM x R x (1 + pi x rho) / alpha, pi being the price of a rollout token over serving's own.")
        source = "`turn`, `trajectory`, `verdict` and the price book"
        frame.table(pl.DataFrame(factors), f"{source}; {made.stamp}. Intervals by a bootstrap over groups.")


def frontier(ahead: Outlook) -> None:
    """Where the next dollar, or slack second, lowers cost per correct most."""
    st.header("Where does the next dollar belong?")
    for name, answer in ahead.answers.items():
        st.markdown(f"- **{escape.markdown(name[0].upper() + name[1:])}:** {escape.prose(answer.says)}")
    st.markdown(escape.markdown(ahead.rollouts))
    rows = [
        {
            "priced by": name,
            "of the next": "slack second" if name == FREE else "dollar",
            "answer": answer.side,
            "on inference": answer.gain_inference.text,
            "on training": answer.gain_training.text,
            "difference, 95% interval": words.interval(answer.difference),
        }
        for name, answer in ahead.answers.items()
    ]
    frame.table(
        pl.DataFrame(rows),
        f"relative fall in cost per correct answer; {ahead.stamp}. A direction is named only where the interval allows "
        "no other.",
    )
    known = [(what, ahead.elasticities[name], ahead.rests_on.get(name, "")) for name, what in ELASTICITIES.items()]
    elasticities = [
        {
            "what": what,
            "value": words.short(figure),
            "95% interval": words.interval(figure) if rests_on else "",
            "rests on, or what is missing": rests_on or figure.why or "",
        }
        for what, figure, rests_on in known
    ]
    st.subheader("How accepted answers grow")
    frame.table(
        pl.DataFrame(elasticities),
        f"`verdict`, `trajectory`, `step`; {ahead.stamp}. Elasticity: what 1% more rollouts, or training, bring in "
        "percent of alpha.",
    )


def verifiers(answered: Priced[Procurement]) -> None:
    """Which verifier makes a correct answer cheapest."""
    st.header("Which verifier makes a correct answer cheapest?")
    document = answered.value
    if document is None:
        st.info(escape.markdown(f"Not enough data: {answered.error}."))
        return
    st.markdown(words.plain(escape.markdown(document.in_words)))
    known = [
        (verifier.name, verifier.per_correct)
        for verifier in document.verifiers
        if verifier.per_correct.value is not None
    ]
    count, named = amounts.scale(min((figure.value for _, figure in known if figure.value), default=None))
    priced = f"{named or 'a '}correct answer{'s' if count > 1 else ''}"
    currency = document.stamp.currency
    if known:
        shown = pl.DataFrame(
            [
                {
                    "name": name,
                    "usd": (figure.value or 0) * count / 1e9,
                    **{
                        end: None if value is None else value * count / 1e9
                        for end, value in (("low", figure.low), ("high", figure.high))
                    },
                    "text": _scaled(figure, figure.value, count),
                    "range": words.interval(figure),
                }
                for name, figure in known
            ],
            schema_overrides=dict.fromkeys(("usd", "low", "high"), pl.Float64),
        )
        title = f"{currency} for {priced}, 95% interval"
        display.chart(shared.intervals(shown, title), about="Cost of a correct answer by verifier")
    rows = [
        {
            "verifier": verifier.name,
            "Brier score, 0 is best": verifier.brier.text,
            "accepts": verifier.accept_rate.text,
            "of the correct (TPR)": verifier.tpr.text,
            "of the wrong (FPR)": verifier.fpr.text,
            "correct among accepted (PPV)": verifier.ppv.text,
            "a verdict": words.short(verifier.price),
            priced: _scaled(verifier.per_correct, verifier.per_correct.value, count),
            "95% interval": _interval(verifier, count),
            "cheapest in": words.short(verifier.chance_cheapest),
        }
        for verifier in document.verifiers
    ]
    unknown = dict.fromkeys(
        figure.text
        for verifier in document.verifiers
        for figure in (verifier.price, verifier.per_correct)
        if figure.value is None
    )
    frame.table(
        pl.DataFrame(rows),
        f"{document.probes}, {document.shared.text} probes that all of them judged; {document.stamp}. "
        f"{_before_verdict(document)} {escape.markdown(' '.join(unknown))}",
    )


def _before_verdict(document: Procurement) -> str:
    judged = document.per_trajectory
    count, named = amounts.scale(judged.value)
    several = f"{named}judged trajectories" if count > 1 else "a judged trajectory"
    return f"Before the verdict {several} cost {_scaled(judged, judged.value, count)}."


def _scaled(figure: Figure, nano: int | float | None, count: int) -> str:
    """An amount of a figure's currency for so many; why there is none where it is not known."""
    return words.short(figure) if nano is None else amounts.amount(round(nano * count), figure.stamp.currency)


def _interval(verifier: VerifierRow, count: int) -> str:
    figure = verifier.per_correct
    if figure.low is None:
        return ""
    high = "unbounded" if figure.high is None else _scaled(figure, figure.high, count)
    return f"{_scaled(figure, figure.low, count)} to {high}"
