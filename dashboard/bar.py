"""The bar at the top of every page. The page's address holds the choices, so a link or a reload keeps them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import cast

import streamlit as st

from dashboard import data, link
from dashboard import format as words
from dashboard.data import Run
from dashboard.link import Link
from rose.ledger.ledger import Ledger
from rose.pricing.spend.calendar import FORMS
from rose.terminal import visible

#: Choices in the bar; the page itself shows the other fields of a link.
CHOICES = ("period", "view", "run", "team", "provenance")
RUNS_MAX = 200  # The limit in `sql/dashboard/runs.sql`.
_LINK, _QUERY, _CHANGED = "link", "link-query", "bar-changed"
_PERIODS: dict[str | None, str] = {
    "this-month": "this month",
    "last-month": "last month",
    "7d": "last 7 days",
    "30d": "last 30 days",
}
_VIEWS: Mapping[str | None, str] = {link.AMORTIZED: "amortized", link.FULLY_LOADED: "fully loaded"}


@dataclass(frozen=True, slots=True)
class _Choice:
    label: str
    texts: Mapping[str | None, str]
    about: str | None = None


def chosen() -> Link:
    return cast(Link, st.session_state.get(_LINK, Link()))


def choose(**changes: str | None) -> None:
    """Change choices of the page. Call this only in a Streamlit callback."""
    for name in CHOICES:
        if name in changes:
            st.session_state[_key(name)] = changes[name]
            st.session_state[_CHANGED] = True
    _keep(link.with_choices(chosen(), changes))


def redraw() -> None:
    """Draw the whole page if a choice changed while Streamlit ran only a fragment."""
    if st.session_state.get(_CHANGED):
        st.rerun()


def show(ledger: Ledger, runs: list[Run], uses: Collection[str], no_run: str) -> list[str]:
    """Draw the choices that `uses` names. Return the names of invalid choices, escaped for Markdown."""
    st.session_state.pop(_CHANGED, None)
    choices = _choices(ledger, runs, no_run)
    now, ignored = from_address()
    for name in ("run", "team"):
        if getattr(now, name) not in choices[name].texts:
            ignored.append(name)
            now = link.with_choices(now, {name: None})
    values = {}
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="bar"):
        for name in CHOICES:
            if name in uses:
                values[name] = _box(name, choices[name], getattr(now, name))
    if not link.is_period(str(values.get("period", now.period))):
        ignored.append("period")
        values["period"] = link.NEWEST
    _keep(link.with_choices(now, values))
    return ignored


def from_address() -> tuple[Link, list[str]]:
    """Return the chosen values, and the names of invalid choices in the address. Does not check that a run exists."""
    query = {name: st.query_params.get_all(name) for name in st.query_params}
    if query == st.session_state.get(_QUERY) or (not query and _LINK in st.session_state):
        changed = {name: st.session_state[_key(name)] for name in CHOICES if _key(name) in st.session_state}
        return link.with_choices(chosen(), changed), []
    return link.parse(query)


def _keep(now: Link) -> None:
    st.session_state[_LINK] = now
    written = link.query(now)
    lists = {name: [value] for name, value in written.items()}
    if {name: st.query_params.get_all(name) for name in st.query_params} != lists:
        st.query_params.from_dict(written)
    st.session_state[_QUERY] = lists


def _box(name: str, choice: _Choice, value: str | None) -> str | None:
    st.session_state[_key(name)] = value
    options = [*choice.texts]
    return st.selectbox(
        choice.label,
        options if value in choice.texts else [*options, value],
        key=_key(name),
        format_func=lambda option: visible(choice.texts.get(option, str(option))),
        help=choice.about,
        accept_new_options=name == "period",
        placeholder=choice.texts.get(None),
    )


def _choices(ledger: Ledger, runs: list[Run], no_run: str) -> dict[str, _Choice]:
    count = runs[0].runs
    listed: dict[str | None, str] = {run.run_id: f"{run.name}, {words.minute(run.started_at)}" for run in runs}
    provenances = " ".join(f"{name}: {text}" for name, text in words.PROVENANCE_WORDS.items())
    return {
        "period": _Choice("Period, UTC", _periods(ledger), f"Or write one: {FORMS}"),
        "view": _Choice(
            "View",
            _VIEWS,
            "Amortized: idle time is a separate cost. Fully loaded: work pays for idle time. Never add the two.",
        ),
        "run": _Choice(
            "Run" if count <= RUNS_MAX else f"Run, newest {RUNS_MAX} of {count:,}",
            {None: no_run, **listed},
            "`run=ID` in the address opens an older run." if count > RUNS_MAX else None,
        ),
        "team": _Choice("Team", {None: "every team", **{team: team for team in data.teams(ledger, runs)}}),
        "provenance": _Choice(
            "Provenance", {None: "the only one", **{name: name for name in link.PROVENANCES}}, provenances
        ),
    }


def _periods(ledger: Ledger) -> dict[str | None, str]:
    days = data.span(ledger)
    months = [] if days is None else [month.label for month in data.months(days)]
    return {link.NEWEST: "newest month", **_PERIODS, **{label: label for label in months}, link.ALL: "all of it"}


def _key(name: str) -> str:
    return f"bar-{name}"
