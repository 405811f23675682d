"""Who looks at this page: login and logout on the screen, pages by role, downloads by role, and a line in the log."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboard.access import auth_file, roles, start
from dashboard.access.auth_file import Auth
from dashboard.access.log import AccessLog
from dashboard.access.people import LoginError, Person, Visitor, identify
from rose.errors import UserError

#: How often an open page looks whether its login still counts, seconds.
_CHECK_S = 60
#: Where a session has the page that it looked at last, and its query.
_OPENED = "opened"
NO_LOGIN = "No login: whoever uses this machine sees everything."


def navigation(pages: list[StreamlitPage]) -> StreamlitPage:
    """The page to run, of those that this visitor may see; for others, what keeps them out, which ends the run."""
    try:
        visitor = current()
    except UserError as error:
        st.navigation(_instead(pages, functools.partial(_ask_for_login, error)), position="hidden").run()
        st.stop()
    person = visitor.person
    if person is not None and not person.roles:
        page = st.navigation(_instead(pages, functools.partial(_no_role, person)), position="hidden")
    else:
        refused = [page for page in pages if not visitor.sees(page.title)]
        allowed = [page for page in pages if page not in refused]
        page = st.navigation(
            [*allowed, *(other for page in refused for other in _instead([page], _refuse(page.title)))]
        )
    _who(visitor)
    if person is None or visitor.sees(page.title):
        _note_opened(visitor, page.title, "page")
        return page
    _note_opened(visitor, page.title, "refused")
    page.run()
    st.stop()


def current() -> Visitor:
    """Who looks. Raises LoginError if somebody has to log in first, UserError if nobody could here."""
    auth = _auth()
    if auth is None:
        # However Streamlit was started, by `rose dashboard` or by hand.
        start.refuse_without_login(st.get_option("server.address") or "localhost")
        return Visitor(None)
    claims: dict[str, object] = dict(st.user.to_dict())
    if claims.get("is_logged_in") is not True:
        raise LoginError("Log in to see this dashboard.")
    return Visitor(identify(claims, auth, time.time()))


def download_button(
    label: str, data: bytes | str | Callable[[], bytes | str], name: str, mime: str, **how: Any
) -> None:
    """A download for whom it is for; for others, why there is none. `how` goes to Streamlit's own button."""
    visitor = current()
    if not visitor.may("download"):
        st.caption(f"{label}: your role is for looking only.")
        return
    write = _writer(visitor, _page())

    def content() -> bytes | str:
        # Only what is in the log is given away.
        write("download", name)
        return data() if callable(data) else data

    st.download_button(label, content, name, mime, on_click="ignore", **how)


def noted(action: str, detail: str) -> str | None:
    """Put on the log that this visitor does something; returns who they are, None without login.

    Raises LoginError, OSError.
    """
    visitor = current()
    _writer(visitor, _page())(action, detail)
    return None if visitor.person is None else visitor.person.name


def _auth() -> Auth | None:
    named = os.environ.get(start.AUTH_VARIABLE)
    return None if named is None else _load(Path(named))


@functools.cache
def _load(path: Path) -> Auth:
    return auth_file.load(path)


@functools.cache
def _log(folder: Path) -> AccessLog:
    return AccessLog(folder)


def _writer(visitor: Visitor, page: str) -> Callable[[str, str | None], None]:
    """What adds to the log on behalf of a visitor, also from a thread without a page. Does nothing without login."""
    auth = _auth()
    if auth is None:
        return lambda action, detail: None
    query = {name: " ".join(st.query_params.get_all(name)) for name in st.query_params}
    log, ledger = _log(auth.state), os.environ.get("ROSE_LEDGER", "")
    return lambda action, detail: log.write(
        visitor.person, action, page=page, ledger=ledger, query=query, detail=detail
    )


def _page() -> str:
    return str(st.session_state.get(_OPENED, ("",))[0])


def _note_opened(visitor: Visitor, page: str, action: str) -> None:
    """One line for a page, and one more when its address comes to say something else."""
    opened = (page, action, sorted(st.query_params.to_dict().items()))
    if st.session_state.get(_OPENED) != opened:
        try:
            _writer(visitor, page)(action, None)
        except OSError:
            st.text("The access log cannot be written, so nothing is shown. Tell whoever runs this dashboard.")
            st.stop()
        st.session_state[_OPENED] = opened


def _instead(pages: list[StreamlitPage], show: Callable[[], None]) -> list[StreamlitPage]:
    """Pages at the same addresses that show something else, and are in no menu."""
    return [
        st.Page(
            show, title=page.title, url_path=page.url_path or "start", default=page.url_path == "", visibility="hidden"
        )
        for page in pages
    ]


def _ask_for_login(error: UserError) -> None:
    st.title("ROSE")
    st.text(str(error))
    if isinstance(error, LoginError):
        st.button("Log in", on_click=st.login, type="primary")


def _no_role(person: Person) -> None:
    st.title("ROSE")
    st.text(f"You are known as {person.name}, but you have no role here. Ask whoever runs this dashboard for one.")


def _refuse(title: str) -> Callable[[], None]:
    def show() -> None:
        st.title(title)
        st.text(f"This page is not for your role. It is for: {roles.who_sees(title)}.")

    return show


def _who(visitor: Visitor) -> None:
    person = visitor.person
    if person is None:
        st.sidebar.caption(NO_LOGIN)
        return
    with st.sidebar:
        st.text(f"{person.name}\n{', '.join(sorted(person.roles)) or 'no role'}")
        st.button("Log out", on_click=_log_out, args=(visitor,))
    _watch()


def _log_out(visitor: Visitor) -> None:
    _writer(visitor, _page())("logout", None)
    st.logout()


@st.fragment(run_every=_CHECK_S)
def _watch() -> None:
    """A page that stays open refreshes itself without end; not so after its login does not count any more."""
    try:
        current()
    except UserError:
        st.rerun()
