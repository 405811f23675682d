"""What to decide on: whether borrowing pays, what is in its price, and what would make a correct answer cheaper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import polars as pl
import streamlit as st

from dashboard import charts, data, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from rose.pricing.answers.report.cost_per_correct import Answers, answers
from rose.pricing.answers.report.frontier import FREE, Outlook, outlook
from rose.pricing.answers.report.verifiers import Procurement, procurement
from rose.pricing.borrowing.report import alternatives, marginal, spikes
from rose.pricing.borrowing.report import provision as provide
from rose.pricing.borrowing.report.alternatives import PROVISION
from rose.pricing.borrowing.report.common import Head
from rose.pricing.borrowing.report.provision import ProvisionDocument
from rose.pricing.borrowing.savings import NOTHING
from rose.pricing.figures import Figure
from rose.pricing.run.priced import priced

T = TypeVar("T")
#: Makes a document of a run: ledger, run, price book, and whether an unverified ledger will do.
Build = Callable[[Path, str, str, bool], T]

_FACTORS = {
    "cpm": "price of a million serving tokens (CPM)",
    "r": "output tokens for each answer token (R)",
    "rho": "rollouts beyond the one that is kept (rho)",
    "alpha": "share of groups with an accepted answer (alpha)",
    "phi": "share of rollout tokens made on borrowed devices (phi)",
    "ppv": "correct among audited accepted ones (PPV)",
}


def show(ledger: Path, run: Run) -> None:
    # One question at a time: each prices the run, which takes seconds where the ledger is long.
    asked = st.radio("What do you want to know?", list(_QUESTIONS), key="decisions-question")
    _QUESTIONS[asked](ledger, run)


def _document(ledger: Path, run: Run, build: Build[T]) -> T | None:
    book = data.price_book(run)

    def ask(unverified: bool) -> Priced[T]:
        return data.kept(
            lambda: build(ledger, run.run_id, book, unverified),
            ledger, build.__module__, build.__qualname__, run.run_id, book, data.book_sha256(book), unverified,
        )  # fmt: skip

    return frame.asked(ledger, ask, f"decisions-{run.run_id}")


def _stamp(of: Head | Answers | Procurement) -> str:
    return words.stamp(of.stamp, words.book(of.price_book))


def _worth(ledger: Path, run: Run) -> None:
    of = _document(ledger, run, alternatives.build)
    if of is None:
        return
    st.caption(_stamp(of.head))
    st.subheader("Was borrowing worth it?")
    if against := [name for name, way in of.ways.items() if name != NOTHING and _below_zero(way.saved)]:
        st.warning(f"**Borrowing was NOT worth it** against {', '.join(against)}.")
    st.markdown(words.plain("\n".join(f"- {line}" for line in of.says)))
    saved = {name: way.saved for name, way in of.ways.items() if name != NOTHING}
    _intervals(saved, f"saved by borrowing ({of.head.stamp.currency}), 95% interval")
    rows = [
        {"instead of borrowing": name, "cost": _shown(way.cost), "a million useful tokens": _shown(way.per_million),
         "saved by borrowing": words.short(way.saved), "95% interval": way.saved.interval_text, "how": way.explained}
        for name, way in of.ways.items()
    ]  # fmt: skip
    charged = {
        "instead of borrowing": "borrowed",
        "cost": _shown(of.charged),
        "a million useful tokens": _shown(of.charged_per_million),
        "how": "what the borrow is charged",
    }
    frame.table(
        pl.DataFrame([*rows, charged]),
        f"charges, `turn`, `verdict` and the price book; the same {of.tokens.text} useful tokens made otherwise. "
        f"Saved: marginal view, {of.head.stamp}. Offers of the market are assumed, since nobody paid them.",
    )
    st.subheader("Where does borrowing stop paying?")
    if not of.flips:
        st.info("Not enough data: there is nothing that was borrowed to compare with dedicated devices.")
        return
    flips = [
        {"what": "break-even provision for a device-hour" if name == PROVISION else name,
         "now": flip.now.text, "stops paying at": flip.flips_at.text}
        for name, flip in of.flips.items()
    ]  # fmt: skip
    frame.table(
        pl.DataFrame(flips),
        f"each moved alone, until borrowing costs what dedicated devices do; marginal view, {of.head.stamp}.",
    )


def _below_zero(saved: Figure) -> bool:
    """Whether the borrow cost more, as far as can be told."""
    end = saved.value if saved.high is None else saved.high
    return end is not None and end < 0


def _terms(ledger: Path, run: Run) -> None:
    of = _document(ledger, run, marginal.build)
    if of is None:
        return
    st.caption(_stamp(of.head))
    st.subheader("What did borrowing add to the bill?")
    rows = [
        {"term": name.replace("_", " "), "in all": row.in_all.text, "95% interval": row.in_all.interval_text,
         "per device-hour": row.per_device_hour.text, "basis": row.in_all.basis, "rests on": row.rests_on}
        for name, row in of.terms.items()
    ]  # fmt: skip
    total = {
        "term": "m, the marginal price",
        "in all": of.total.in_all.text,
        "95% interval": of.total.in_all.interval_text,
        "per device-hour": of.total.per_device_hour.text,
        "basis": of.total.in_all.basis,
        "rests on": of.total.rests_on or f"{of.borrowed.text} borrowed",
    }
    source = "`lease`, `sync`, `power`, `request` and the price book; marginal view"
    frame.table(pl.DataFrame([*rows, total]), f"{source}, {of.head.stamp}.")
    st.markdown(words.plain(of.gate))
    if of.avoidable.value:
        st.markdown(words.plain(f"Device time that would not have been paid for otherwise: {of.avoidable.text}, so the "
                                f"borrow is charged {of.charged.text}."))  # fmt: skip
    provision = _document(ledger, run, provide.build)
    if provision is not None:
        _provision(provision)


def _provision(of: ProvisionDocument) -> None:
    st.subheader("What must be set aside for later bursts?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. What that is expected to cost is accrued as "
        "devices are lent, and what it came to is set against it."
    )
    frame.metrics(
        ("Accrued", of.accrued, "By the rates that were known when each day began."),
        ("Realised", of.realised, of.rests_on),
        ("Break-even for a device-hour", of.break_even, "Above it borrowing stops paying."),
    )
    days = [
        {"day": day.day, "opening": words.short(day.opening), "accrued": words.short(day.accrued),
         "realised": words.short(day.realised), "released": words.short(day.released),
         "closing": words.short(day.closing), "rates of": day.rates_of}
        for day in of.days
    ]  # fmt: skip
    if days:
        frame.table(
            pl.DataFrame(days),
            f"`request`, `lease`, `device_slice` and the price book ({of.penalty.text} a missed budget); marginal "
            f"view, {of.head.stamp}. Opening + accrued - realised - released = closing.",
        )


def _cheaper(ledger: Path, run: Run) -> None:
    found = _document(ledger, run, _answers_and_outlook)
    if found is None:
        return
    of, ahead = found
    st.caption(_stamp(of))
    st.subheader("What does a correct answer cost?")
    frame.metrics(
        ("C3, a million answer tokens", of.c3, "CPM x R x (1 + pi x rho) / alpha, rollouts at what they cost."),
        ("A million correct ones", of.c3_per_correct, "C3 over the share of audited answers that was correct."),
        ("An accepted answer", of.lines["blended"].measured, "Measured: dollars paid over accepted answers."),
    )
    factors = [
        {"factor": what, "value": of.factors[name].text, "95% interval": of.factors[name].interval_text}
        for name, what in _FACTORS.items()
    ]
    source = "`turn`, `trajectory`, `verdict` and the price book"
    frame.table(pl.DataFrame(factors), f"{source}; {of.stamp}. Intervals by a bootstrap over groups.")
    st.subheader("Which lever moves it most?")
    st.markdown(words.plain(of.in_words))
    if of.levers:
        levers = [
            {"lever": lever.what, "value": lever.value.text, "elasticity": lever.elasticity.text,
             "a tenth better": lever.tenth_to.text, "saves": lever.tenth_saves.text,
             "one standard error better": lever.error_to.text, "saves then": lever.error_saves.text}
            for lever in of.levers
        ]  # fmt: skip
        frame.table(
            pl.DataFrame(levers),
            f"the formula's factors, each moved alone, in {of.stamp.currency} for a million answer tokens; "
            f"{of.c3.view} view, {of.stamp}.",
        )
    _frontier(ahead)


def _frontier(of: Outlook) -> None:
    st.subheader("Where does the next dollar belong?")
    for name, answer in of.answers.items():
        st.markdown(words.plain(f"- **{name[0].upper()}{name[1:]}:** {answer.says}"))
    st.markdown(words.plain(of.rollouts))
    rows = [
        {"priced by": name, "of the next": "slack second" if name == FREE else "dollar", "answer": answer.side,
         "on inference": answer.gain_inference.text, "on training": answer.gain_training.text,
         "difference, 95% interval": words.interval(answer.difference)}
        for name, answer in of.answers.items()
    ]  # fmt: skip
    frame.table(
        pl.DataFrame(rows),
        f"relative fall in cost per correct answer; {of.stamp}. A direction is named only where the interval allows no "
        f"other. What 1% more rollouts do to accepted answers: {_known(of, 'eta_n')}. What 1% more training does: "
        f"{_known(of, 'eta_t')}.",
    )


def _known(of: Outlook, name: str) -> str:
    """An elasticity with its interval and what it rests on, or what is missing."""
    eta = of.elasticities[name]
    return eta.text if eta.value is None else f"{eta.text}% (95% {eta.interval_text}; {of.rests_on[name]})"


def _verifiers(ledger: Path, run: Run) -> None:
    found = _document(ledger, run, _procurement)
    if found is None:
        return
    of = found.value
    st.subheader("Which verifier makes a correct answer cheapest?")
    if of is None:
        st.info(words.plain(f"Not enough data: {found.error}."))
        return
    st.caption(_stamp(of))
    st.markdown(words.plain(of.in_words))
    _intervals({each.name: each.per_correct for each in of.verifiers},
               f"{of.stamp.currency} per correct answer, 95% interval")  # fmt: skip
    rows = [
        {"verifier": each.name, "Brier score, 0 is best": each.brier.text, "accepts": each.accept_rate.text,
         "of the correct (TPR)": each.tpr.text, "of the wrong (FPR)": each.fpr.text,
         "correct among accepted (PPV)": each.ppv.text, "a verdict": words.short(each.price),
         "a correct answer": words.short(each.per_correct), "95% interval": each.per_correct.interval_text,
         "cheapest in": words.short(each.chance_cheapest)}
        for each in of.verifiers
    ]  # fmt: skip
    unknown = dict.fromkeys(
        figure.text for each in of.verifiers for figure in (each.price, each.per_correct) if figure.value is None
    )
    frame.table(
        pl.DataFrame(rows),
        f"{of.probes}, {of.shared.text} probes that all of them judged; {of.stamp}. Before its verdict a judged "
        f"trajectory cost {of.per_trajectory.text}. {' '.join(unknown)}",
    )


def _together(ledger: Path, run: Run) -> None:
    of = _document(ledger, run, spikes.build)
    if of is None:
        return
    st.caption(_stamp(of.head))
    st.subheader("What if serving load and rollout demand rose together?")
    st.warning("**SIMULATED.** The run's own hours are paired anew: this did not happen.")
    st.markdown(words.plain(f"{of.says[0].upper()}{of.says[1:]}."))
    if not of.by_r:
        return
    rows = [
        {"correlation r": r, "windows that fit": row.attainment.text, "wasted": row.wasted_share.text,
         "a million useful tokens": row.token_cost.text, "C3": row.c3.text, "dearest 1%, an hour": row.tail.text}
        for r, row in of.by_r.items()
    ]  # fmt: skip
    frame.table(
        pl.DataFrame(rows),
        f"{of.windows.text} windows of {of.window.text}, paired anew; r as observed: {of.observed_r.text}. A million "
        f"tokens on dedicated devices: {of.dedicated.text}. Marginal view, {of.windows.stamp}.",
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


def _shown(figure: Figure) -> str:
    """With what is assumed marked so."""
    return words.short(figure) + (" (assumed)" if figure.value is not None and figure.basis == "assumed" else "")


def _answers_and_outlook(root: Path, run_id: str, book: str, unverified: bool) -> tuple[Answers, Outlook]:
    with priced(root, run_id, book, unverified) as of:
        return answers(of), outlook(of)


def _procurement(root: Path, run_id: str, book: str, unverified: bool) -> Priced[Procurement]:
    """A run without verdicts whose truth is known has a price, and nothing to compare verifiers by."""
    with priced(root, run_id, book, unverified) as of:
        return data.attempt(lambda: procurement(of))


_QUESTIONS: Mapping[str, Callable[[Path, Run], None]] = {
    "Was borrowing worth it?": _worth,
    "What is in the price of borrowed time?": _terms,
    "What would make a correct answer cheaper?": _cheaper,
    "Which verifier should we use?": _verifiers,
    "And if load and demand rose together?": _together,
}

frame.page(
    "Decisions",
    "Does borrowing pay, and where would the next dollar do most? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
