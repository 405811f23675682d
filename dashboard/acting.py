"""What readers add to the ledger from a page: done under their name, and told beside the widget that did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import streamlit as st

from dashboard import escape
from dashboard.access import session
from dashboard.access.roles import Action
from rose.errors import UserError

_TOLD = "acting-told"


def act(place: str, action: Action, detail: str, write: Callable[[str | None], str]) -> None:
    """From a callback: `write`, given who it is, does it, and returns what `told(place)` says of it.

    That is None without login: then it is the user of the operating system, as of the commands. What goes wrong is
    told too.
    """
    try:
        told = write(session.act(action, detail))
    except UserError as error:
        st.session_state[_TOLD] = place, False, str(error)
    except OSError as error:
        # The access log: what is not in it is not done.
        st.session_state[_TOLD] = place, False, f"Nothing was written: {error}"
    else:
        st.session_state[_TOLD] = place, True, told


def told(place: str) -> None:
    """What became of the last thing that was done here; said once."""
    known = cast(tuple[str, bool, str] | None, st.session_state.get(_TOLD))
    if known is not None and known[0] == place:
        del st.session_state[_TOLD]
        (st.success if known[1] else st.error)(escape.prose(known[2]))
