"""Whether borrowing harms serving, and whether it really saves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import polars as pl
import streamlit as st

from dashboard import charts, data, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from dashboard.risk import sections
from rose.pricing.answers.report import tables as answer_tables
from rose.pricing.answers.report.cost_per_correct import Answers, answers
from rose.pricing.answers.report.frontier import FREE, Outlook, outlook
from rose.pricing.answers.report.tables import FACTORS
from rose.pricing.answers.report.verifiers import Procurement, procurement
from rose.pricing.borrowing.report import risk
from rose.pricing.figures import Figure
from rose.pricing.price_books.pricebook import PriceBook
from rose.pricing.run.priced import priced

T = TypeVar("T")
#: Makes a document of a run: ledger, run, price book, and whether an unverified ledger will do.
Build = Callable[[Path, str, PriceBook, bool], T]


def show(ledger: Path, run: Run) -> None:
    document = _document(ledger, run, risk.build)
    if document is not None:
        frame.stamp(document.head.stamp)
        sections.verdicts(document)
        for section in _EVIDENCE:
            section(document)
    # One question at a time: each prices the run, which takes seconds where the ledger is long.
    asked = st.radio("What else do you want to know?", list(_QUESTIONS), index=None, key="risk-question")
    if asked is not None:
        _QUESTIONS[asked](ledger, run)


def _document(ledger: Path, run: Run, build: Build[T]) -> T | None:
    chosen = data.price_book(ledger, run)

    def ask(unverified: bool) -> Priced[T]:
        if (book := chosen.value) is None:
            return Priced(None, chosen.error)
        return data.kept(
            lambda: build(ledger, run.run_id, book, unverified),
            ledger, build.__module__, build.__qualname__, run.run_id, *data.book_key(book), unverified,
        )  # fmt: skip

    return frame.asked(ledger, ask, f"{build.__module__}-{run.run_id}")


def _cheaper(ledger: Path, run: Run) -> None:
    answered = _document(ledger, run, _answers_and_outlook)
    if answered is None:
        return
    answered_run, ahead = answered
    frame.stamp(answered_run.stamp)
    st.header("What does a correct answer cost?")
    frame.metrics(
        (
            "C3, a million answer tokens",
            answered_run.c3,
            "CPM x R x (1 + pi x rho) / alpha, rollouts at what they cost.",
        ),
        (
            "A million correct ones",
            answered_run.c3_per_correct,
            "C3 over the share of audited answers that was correct.",
        ),
        ("An accepted answer", answered_run.lines["blended"].measured, "Measured: dollars paid over accepted answers."),
    )
    factors = [
        {
            "factor": what,
            "value": answered_run.factors[name].text,
            "95% interval": answered_run.factors[name].interval_text,
        }
        for name, what in FACTORS.items()
    ]
    source = "`turn`, `trajectory`, `verdict` and the price book"
    frame.table(pl.DataFrame(factors), f"{source}; {answered_run.stamp}. Intervals by a bootstrap over groups.")
    st.header("Which lever moves it most?")
    st.markdown(escape.markdown(answered_run.in_words))
    if answered_run.levers:
        frame.show_table(answer_tables.levers(answered_run), "the formula's factors, each moved alone")
    _frontier(ahead)


def _frontier(ahead: Outlook) -> None:
    st.header("Where does the next dollar belong?")
    for name, answer in ahead.answers.items():
        st.markdown(f"- **{escape.markdown(name[0].upper() + name[1:])}:** {escape.markdown(answer.says)}")
    st.markdown(escape.markdown(ahead.rollouts))
    rows = [
        {"priced by": name, "of the next": "slack second" if name == FREE else "dollar", "answer": answer.side,
         "on inference": answer.gain_inference.text, "on training": answer.gain_training.text,
         "difference, 95% interval": words.interval(answer.difference)}
        for name, answer in ahead.answers.items()
    ]  # fmt: skip
    frame.table(
        pl.DataFrame(rows),
        f"relative fall in cost per correct answer; {ahead.stamp}. A direction is named only where the interval "
        f"allows no "
        f"other. What 1% more rollouts do to accepted answers: {_known(ahead, 'eta_n')}. What 1% more training does: "
        f"{_known(ahead, 'eta_t')}.",
    )


def _known(ahead: Outlook, name: str) -> str:
    """An elasticity with its interval and what it rests on, or what is missing."""
    eta = ahead.elasticities[name]
    return eta.text if eta.value is None else f"{eta.text}% (95% {eta.interval_text}; {ahead.rests_on[name]})"


def _verifiers(ledger: Path, run: Run) -> None:
    answered = _document(ledger, run, _procurement)
    if answered is None:
        return
    document = answered.value
    st.header("Which verifier makes a correct answer cheapest?")
    if document is None:
        st.info(escape.markdown(f"Not enough data: {answered.error}."))
        return
    frame.stamp(document.stamp)
    st.markdown(escape.markdown(document.in_words))
    _intervals({verifier.name: verifier.per_correct for verifier in document.verifiers},
               f"{document.stamp.currency} per correct answer, 95% interval")  # fmt: skip
    rows = [
        {"verifier": verifier.name, "Brier score, 0 is best": verifier.brier.text, "accepts": verifier.accept_rate.text,
         "of the correct (TPR)": verifier.tpr.text, "of the wrong (FPR)": verifier.fpr.text,
         "correct among accepted (PPV)": verifier.ppv.text, "a verdict": words.short(verifier.price),
         "a correct answer": words.short(verifier.per_correct), "95% interval": verifier.per_correct.interval_text,
         "cheapest in": words.short(verifier.chance_cheapest)}
        for verifier in document.verifiers
    ]  # fmt: skip
    unknown = dict.fromkeys(
        figure.text
        for verifier in document.verifiers
        for figure in (verifier.price, verifier.per_correct)
        if figure.value is None
    )
    frame.table(
        pl.DataFrame(rows),
        f"{document.probes}, {document.shared.text} probes that all of them judged; {document.stamp}. Before "
        f"its verdict a judged "
        f"trajectory cost {document.per_trajectory.text}. {' '.join(unknown)}",
    )


def _intervals(figures: Mapping[str, Figure], title: str) -> None:
    known = {name: figure for name, figure in figures.items() if figure.value is not None}
    if not known:
        return
    rows: Iterable[dict[str, object]] = (
        {"name": name, "text": figure.text, "range": words.interval(figure),
         "usd": _usd(figure.value), "low": _usd(figure.low), "high": _usd(figure.high)}
        for name, figure in known.items()
    )  # fmt: skip
    shown = pl.DataFrame(rows, schema_overrides=dict.fromkeys(("usd", "low", "high"), pl.Float64))
    st.altair_chart(charts.intervals(shown, title), width="stretch", alt=title)


def _usd(nano: float | None) -> float | None:
    return None if nano is None else nano / 1e9


def _answers_and_outlook(root: Path, run_id: str, book: PriceBook, unverified: bool) -> tuple[Answers, Outlook]:
    with priced(root, run_id, book, unverified) as priced_run:
        return answers(priced_run), outlook(priced_run)


def _procurement(root: Path, run_id: str, book: PriceBook, unverified: bool) -> Priced[Procurement]:
    """A run without verdicts whose truth is known has a price, and nothing to compare verifiers by."""
    with priced(root, run_id, book, unverified) as priced_run:
        return data.attempt(lambda: procurement(priced_run))


_QUESTIONS: Mapping[str, Callable[[Path, Run], None]] = {
    "What would make a correct answer cheaper?": _cheaper,
    "Which verifier should we use?": _verifiers,
}

_EVIDENCE = (
    sections.harm, sections.saved, sections.depends, sections.added, sections.bursts, sections.together,
)  # fmt: skip

frame.page(
    "Risk",
    "Does borrowing harm serving, and does it really save? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
