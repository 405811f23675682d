"""The bar at the top of every page: what it is of. It is in the address, so a reload or a link shows the same."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

import streamlit as st

from dashboard import books, data, escape, link
from dashboard import format as words
from dashboard.data import Run
from dashboard.link import Link
from rose.clock import utc_us
from rose.pricing.closing.period import Period, month_at
from rose.pricing.spend.calendar import FORMS, Calendar
from rose.text import visible

#: What the bar has; the other fields of a link are picked in the page itself.
CHOICES = ("period", "compare", "view", "run", "team", "tag", "provenance")
#: As `sql/dashboard/runs.sql` has it.
RUNS_MAX = 200
_LINK, _QUERY, _CHANGED = "link", "link-query", "bar-changed"
_WIDTH_PX = 190
_NOT_USED = "This page does not depend on it."
_VIEWS: Mapping[str | None, str] = {link.AMORTIZED: "amortized", link.FULLY_LOADED: "fully loaded"}
_COMPARED: Mapping[str | None, str] = {
    link.BEFORE: "the period before",
    link.YEAR: "the year before",
    link.NONE: "nothing",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """What there is to choose from in a ledger."""

    runs: Mapping[str, Run]
    #: How many the ledger has; only the newest are in `runs`.
    run_count: int
    span: Period | None
    teams: tuple[str, ...]
    tags: tuple[str, ...]


def asked_run() -> str:
    """The id of the run that the address or the bar asks for, which the ledger may not have; empty where it is none."""
    return _from_address()[0].run or ""


def chosen() -> Link:
    """What is chosen now."""
    return cast(Link, st.session_state.get(_LINK, Link()))


def pick(**changes: object) -> None:
    """Change what is picked; it is in the address at once, and in the page with its next run."""
    _keep(link.with_choices(chosen(), changes))


def choose(**changes: str) -> None:
    """Change what is chosen in the bar itself, from a callback: the next run begins with it."""
    for name, value in changes.items():
        st.session_state[_key(name)] = value
    pick(**changes)
    st.session_state[_CHANGED] = True


def redraw() -> None:
    """Run the whole page again where only a part of it did, and a choice of the bar was changed meanwhile."""
    if st.session_state.get(_CHANGED):
        st.rerun()


def show(ledger: Path, runs: list[Run], uses: Collection[str]) -> list[str]:
    """Draw the bar; `uses` are the choices that the page depends on. Returns a sentence on all that was left out."""
    st.session_state.pop(_CHANGED, None)
    there = _known(ledger, runs)
    now, ignored = _from_address()
    now, unknown = _there(now, there)
    for name in CHOICES:
        st.session_state[_key(name)] = getattr(now, name)
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="bar"):
        picked = {name: _choice(name, there, uses) for name in CHOICES}
    written = str(picked["period"])
    if not link.is_period(written):
        told = escape.markdown(f"“{written}” is no period: write {FORMS}")
        ignored.append(f"{told}. The newest month with data is shown.")
        picked["period"] = link.NEWEST
    _keep(link.with_choices(now, picked))
    return [*ignored, *unknown]


def period(ledger: Path, now: Link) -> Period | None:
    """The period that is chosen; None where no device ever was there. Raises PriceBookError, LedgerError."""
    span = books.span(ledger)
    if span is None:
        return None
    match now.period:
        case link.NEWEST:
            return month_at(span.to_ns - 1)
        case link.ALL:
            return span
        case text:
            return Calendar().period(text, utc_us() * 1000)


def compared(now: Link, shown: Period) -> Period | None:
    """The period that it is compared with; None where it is with nothing."""
    if now.compare == link.NONE:
        return None
    months = shown == month_at(shown.from_ns)
    if now.compare == link.BEFORE:
        return month_at(shown.from_ns - 1) if months else Period(2 * shown.from_ns - shown.to_ns, shown.from_ns)
    begin, end = (_year_before(ns) for ns in (shown.from_ns, shown.to_ns))
    return Period(begin, end)


def _year_before(ns: int) -> int:
    at = datetime.fromtimestamp(ns // 10**9, UTC)
    leap_day = (at.month, at.day) == (2, 29)
    return int(at.replace(year=at.year - 1, day=28 if leap_day else at.day).timestamp()) * 10**9


def _from_address() -> tuple[Link, list[str]]:
    """The link of the address, or, where the page was changed and the address lost it, the one that was chosen."""
    there = {name: st.query_params.get_all(name) for name in st.query_params}
    if there == st.session_state.get(_QUERY) or (not there and _LINK in st.session_state):
        return _with_widgets(chosen()), []
    return link.parse(there)


def _with_widgets(now: Link) -> Link:
    """What was chosen in the bar since."""
    changed = {name: st.session_state[_key(name)] for name in CHOICES if _key(name) in st.session_state}
    return link.with_choices(now, changed)


def _keep(now: Link) -> None:
    st.session_state[_LINK] = now
    written = link.query(now)
    if {name: st.query_params.get_all(name) for name in st.query_params} != _lists(written):
        st.query_params.from_dict(written)
    st.session_state[_QUERY] = _lists(written)


def _lists(query: Mapping[str, str]) -> dict[str, list[str]]:
    return {name: [value] for name, value in query.items()}


def _known(ledger: Path, runs: list[Run]) -> Known:
    span = books.span(ledger)
    teams, tags = data.tags(ledger)
    return Known(
        runs={run.run_id: run for run in runs},
        run_count=data.run_count(ledger),
        span=span,
        teams=teams,
        tags=tags,
    )


def _there(now: Link, there: Known) -> tuple[Link, list[str]]:
    """The link without what the ledger does not have."""
    known: Mapping[str, Collection[str]] = {
        "run": there.runs,
        "team": there.teams,
        "tag": there.tags,
    }
    default, unknown = Link(), []
    for name, values in known.items():
        value = getattr(now, name)
        if value != getattr(default, name) and value not in values:
            unknown.append(f"There is no {name} “{escape.markdown(value)}” in this ledger: it was left out.")
            now = link.with_choices(now, {name: getattr(default, name)})
    return now, unknown


def _choice(name: str, there: Known, uses: Collection[str]) -> str | None:
    label, options, texts, about = _offered(name, there)
    disabled = name not in uses
    if name == "run" and "period" in uses:
        texts[None] = "every run"
    # `typed` lets a reader write a period that is not listed.
    typed = name == "period"
    current = st.session_state[_key(name)]
    if current not in options:
        options = [*options, current]
    made = st.selectbox(
        label,
        options,
        key=_key(name),
        format_func=lambda value: visible(texts.get(value, str(value))),
        disabled=disabled,
        help=_NOT_USED if disabled else about,
        width=_WIDTH_PX,
        accept_new_options=typed,
        placeholder=texts.get(None),
    )
    return made


def _offered(name: str, there: Known) -> tuple[str, list[str | None], dict[str | None, str], str | None]:
    """Label, options, what they are called, and what they mean."""
    match name:
        case "period":
            texts: dict[str | None, str] = {link.NEWEST: _newest(there.span)}
            texts |= {
                "this-month": "this month",
                "last-month": "last month",
                "7d": "last 7 days",
                "30d": "last 30 days",
            }
            if there.span is not None:
                texts |= {month.label: month.label for month in books.months(there.span, datetime.now(UTC))}
            texts[link.ALL] = "all of it"
            return "Period, UTC", list(texts), texts, f"Or write one: {FORMS}"
        case "compare":
            return "Compared with", [*_COMPARED], {**_COMPARED}, None
        case "view":
            about = (
                "Amortized: idle time is a cost of its own. Fully loaded: it is in the price of the work. Never added."
            )
            return "View", [*_VIEWS], {**_VIEWS}, about
        case "run":
            labels: dict[str | None, str] = {key: _label(run) for key, run in there.runs.items()}
            options, texts = [None, *labels], {None: "the newest", **labels}
            about = "Without one, the newest fleet with all its runs, or on Cost per correct the newest run."
            if there.run_count <= RUNS_MAX:
                return "Run", options, texts, about
            about += " The page Cost lists those of a period, whatever their age; `run=ID` in the address opens one."
            return f"Run, newest {RUNS_MAX} of {there.run_count:,}", options, texts, about
        case "team":
            return "Team", [None, *there.teams], {None: "every team"}, None
        case "tag":
            return "Tag of runs", [None, *there.tags], {None: "any"}, "A tag that runs were begun with, `name:value`."
        case _:
            about = " ".join(f"{name}: {text}" for name, text in words.PROVENANCE_WORDS.items())
            return "Provenance", [None, *link.PROVENANCES], {None: "the only one"}, about


def _newest(span: Period | None) -> str:
    return "newest month with data" + ("" if span is None else f", {month_at(span.to_ns - 1).label}")


def _label(run: Run) -> str:
    return run.name if run.started_at is None else f"{run.name}, {run.started_at:%Y-%m-%d %H:%M}"


def _key(name: str) -> str:
    return f"bar-{name}"


assert set(CHOICES) <= {field.name for field in fields(Link)}
