"""Saved views: a menu in the bar that opens one, saves what is chosen under a name, and removes one's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st

from dashboard import acting, data, escape
from dashboard.access import session
from rose.clock import iso
from rose.errors import UserError
from rose.pricing.annotations import views
from rose.pricing.annotations.views import View
from rose.pricing.closing.close import user

_PLACE, _NAME = "views", "views-name"


def menu(ledger: Path, query: Callable[[], Mapping[str, str]], open_: Callable[[str], None]) -> None:
    """The menu. `query` gives what is chosen now, and `open_` chooses what the query of a view says.

    Parts of a page run again without the menu, so what is chosen is asked for when it is saved.
    """
    known = data.kept(lambda: views.load(ledger), ledger, "views")
    with st.popover("Views", icon=":material/bookmark:"):
        acting.told(_PLACE)
        if known.value is None:
            st.error(escape.prose(known.error or ""))
            return
        me = _me()
        for view in known.value.values():
            _line(ledger, view, me, open_)
        if not known.value:
            st.caption("No view is saved yet. A view is a name for what the bar and the charts show.")
        if not session.may("save view"):
            return
        with st.form("views", border=False):
            st.text_input("Save what is shown as", key=_NAME, max_chars=64, placeholder="research-november")
            st.form_submit_button("Save", on_click=_save, args=(ledger, query))


def _line(ledger: Path, view: View, me: str, open_: Callable[[str], None]) -> None:
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        about = escape.markdown(f"{view.query} ({view.by}, {iso(view.at_us)[:10]})")
        st.button(escape.markdown(view.name), key=f"view-{view.name}", type="tertiary", on_click=open_,
                  args=(view.query,), help=about)  # fmt: skip
        if view.by == me and session.may("save view"):
            st.button("Remove", key=f"view-remove-{view.name}", type="tertiary", on_click=_remove,
                      args=(ledger, view.name))  # fmt: skip


def _me() -> str:
    """By what name the ledger knows who looks."""
    person = session.current().person
    return user() if person is None else person.name


def _save(ledger: Path, query: Callable[[], Mapping[str, str]]) -> None:
    name, chosen = str(st.session_state[_NAME]).strip(), urlencode(query())

    def write(who: str | None) -> str:
        if not chosen:
            raise UserError("nothing is chosen but what is so by default: there is nothing to save")
        present = views.load(ledger).get(name)
        if present is not None and present.by != _me():
            raise UserError(f"{present.by} saved a view as {name}: choose another name")
        return f"Saved as {views.save(ledger, name, chosen, by=who).name}."

    acting.act(_PLACE, "save view", name, write)


def _remove(ledger: Path, name: str) -> None:
    def write(who: str | None) -> str:
        if views.load(ledger)[name].by != _me():
            raise UserError(f"{name} was saved by somebody else")
        return f"Removed the view {views.remove(ledger, name, by=who).name}."

    acting.act(_PLACE, "save view", f"remove {name}", write)
