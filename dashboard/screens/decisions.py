"""What to decide on: whether borrowing pays, and what is in its price."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import polars as pl
import streamlit as st

from dashboard import charts, data, escape, frame
from dashboard import format as words
from dashboard.data import Priced, Run
from rose.pricing.borrowing.report import alternatives, marginal, spikes, tables
from rose.pricing.borrowing.report import provision as provide
from rose.pricing.borrowing.report.provision import ProvisionDocument
from rose.pricing.borrowing.savings import NOTHING
from rose.pricing.figures import Figure
from rose.pricing.price_books.pricebook import PriceBook

T = TypeVar("T")
#: Makes a document of a run: ledger, run, price book, and whether an unverified ledger will do.
Build = Callable[[Path, str, PriceBook, bool], T]


def show(ledger: Path, run: Run) -> None:
    # One question at a time: each prices the run, which takes seconds where the ledger is long.
    asked = st.radio("What do you want to know?", list(_QUESTIONS), key="decisions-question")
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

    return frame.asked(ledger, ask, f"decisions-{run.run_id}")


def _worth(ledger: Path, run: Run) -> None:
    document = _document(ledger, run, alternatives.build)
    if document is None:
        return
    frame.stamp(document.head.stamp)
    st.header("Was borrowing worth it?")
    if against := [name for name, way in document.ways.items() if name != NOTHING and _below_zero(way.cash_saved)]:
        st.warning(f"**Borrowing was NOT worth it** against {', '.join(against)}.")
    st.markdown("\n".join(f"- {escape.markdown(line)}" for line in document.says))
    saved = {name: way.cash_saved for name, way in document.ways.items() if name != NOTHING}
    _intervals(saved, f"cash saved by borrowing ({document.head.stamp.currency}), 95% interval")
    rows = [
        {"instead of borrowing": name, "added to the bill": _shown(way.added),
         "cash saved": words.short(way.cash_saved), "95% interval": way.cash_saved.interval_text,
         "device time, amortized": _shown(way.cost), "a million useful tokens, amortized": _shown(way.per_million),
         "less by borrowing, amortized": words.short(way.less), "how": way.explained}
        for name, way in document.ways.items()
    ]  # fmt: skip
    charged = {
        "instead of borrowing": "borrowed",
        "added to the bill": _shown(document.charged),
        "device time, amortized": _shown(document.borrowed_cost),
        "a million useful tokens, amortized": _shown(document.borrowed_per_million),
        "how": document.condition,
    }
    frame.table(
        pl.DataFrame([*rows, charged]),
        f"charges, `turn`, `verdict` and the price book; the same {document.tokens.text} useful tokens made otherwise. "
        "Cash saved: marginal view; device time: amortized, hypothetical but for what was borrowed; "
        f"{document.head.stamp}. Offers of the market are assumed, since nobody paid them.",
    )
    st.header("Where does borrowing stop paying?")
    if not document.flips:
        st.info("Not enough data: there is nothing that was borrowed to compare with dedicated devices.")
        return
    frame.show_table(tables.flips(document), "each moved alone, until borrowing costs what dedicated devices do")


def _below_zero(saved: Figure) -> bool:
    """Whether the borrow cost more, as far as can be told."""
    end = saved.value if saved.high is None else saved.high
    return end is not None and end < 0


def _terms(ledger: Path, run: Run) -> None:
    document = _document(ledger, run, marginal.build)
    if document is None:
        return
    frame.stamp(document.head.stamp)
    st.header("What did borrowing add to the bill?")
    rows = [
        {"term": name.replace("_", " "), "in all": row.in_all.text, "95% interval": row.in_all.interval_text,
         "per device-hour": row.per_device_hour.text, "basis": row.in_all.basis, "rests on": row.rests_on}
        for name, row in document.terms.items()
    ]  # fmt: skip
    total = {
        "term": "m, the marginal price",
        "in all": document.total.in_all.text,
        "95% interval": document.total.in_all.interval_text,
        "per device-hour": document.total.per_device_hour.text,
        "basis": document.total.in_all.basis,
        "rests on": document.total.rests_on or f"{document.borrowed.text} borrowed",
    }
    source = "`lease`, `sync`, `power`, `request` and the price book; marginal view"
    frame.table(pl.DataFrame([*rows, total]), f"{source}, {document.head.stamp}.")
    st.markdown(escape.markdown(document.gate))
    if document.avoidable.value:
        st.markdown(escape.markdown(f"Device time that would not have been paid for otherwise: "
                                f"{document.avoidable.text}, so the "
                                f"borrow is charged {document.charged.text}."))  # fmt: skip
    provision = _document(ledger, run, provide.build)
    if provision is not None:
        _provision(provision)


def _provision(document: ProvisionDocument) -> None:
    st.header("What must be set aside for later bursts?")
    st.markdown(
        "Load that rises while a device is lent can make serving late. What that is expected to cost is accrued as "
        "devices are lent, and what it came to is set against it."
    )
    frame.metrics(
        ("Accrued", document.accrued, "By the rates that were known when each day began."),
        ("Realised", document.realised, document.rests_on),
        ("Break-even for a device-hour", document.break_even, "Above it borrowing stops paying."),
    )
    if document.realised.no_interval:
        st.caption(escape.markdown(f"What it came to is {document.realised.no_interval}."))
    if document.days:
        prices = f"the price book ({document.penalty.text} a missed budget)"
        frame.show_table(tables.roll_forward(document), f"`request`, `lease`, `device_slice` and {prices}")


def _together(ledger: Path, run: Run) -> None:
    document = _document(ledger, run, spikes.build)
    if document is None:
        return
    frame.stamp(document.head.stamp)
    st.header("What if serving load and rollout demand rose together?")
    st.warning("**SIMULATED.** The run's own hours are paired anew: this did not happen.")
    st.markdown(escape.markdown(f"{document.says[0].upper()}{document.says[1:]}."))
    if not document.by_r:
        return
    frame.show_table(tables.paired(document), "the windows of the run")


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


_QUESTIONS: Mapping[str, Callable[[Path, Run], None]] = {
    "Was borrowing worth it?": _worth,
    "What is in the price of borrowed time?": _terms,
    "And if load and demand rose together?": _together,
}

frame.page(
    "Decisions",
    "Does borrowing pay, and what is in its price? Marginal figures are for deciding: they are no bill.",
    show,
    live_s=frame.QUIET_S,
)
