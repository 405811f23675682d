"""Files of a bill to take along: made when asked for, never on a rerun, and offered with what they hold."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import streamlit as st

from dashboard import data, escape
from dashboard import format as words
from dashboard.access import session
from dashboard.data import Priced
from rose.pricing.export import focus, workbook
from rose.pricing.export.bill import Bill
from rose.pricing.export.out import Written

#: Where a session has the file that it made last, with the name of what it is of.
_MADE = "file"


@dataclass(frozen=True, slots=True)
class Kind:
    """A file that can be made of a bill, and how its name ends."""

    ending: str
    mime: str
    write: Callable[[Bill, Path], Written]


KINDS: Mapping[str, Kind] = {
    "workbook": Kind(".xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", workbook.write),
    "FOCUS, Parquet": Kind("-focus.parquet", "application/vnd.apache.parquet", focus.write),
    "FOCUS, CSV": Kind("-focus.csv", "text/csv", focus.write),
}


@dataclass(frozen=True, slots=True)
class File:
    """A file that was made."""

    name: str
    mime: str
    content: bytes
    says: str


def offer(key: str, name: str, bill: Callable[[], Bill]) -> None:
    """A button for each kind of file; the one that was made last can be downloaded. `key` names what they are of."""
    for column, kind in zip(st.columns(len(KINDS)), KINDS, strict=True):
        if column.button(f"Prepare {kind}", key=f"file-{kind}"):
            with st.spinner(f"Making the {kind} …"):
                st.session_state[_MADE] = key, data.attempt(partial(make, kind, name, bill))
    made_key, made = st.session_state.get(_MADE, ("", Priced(None, None)))
    if made_key != key:
        return
    if made.value is None:
        st.error(escape.prose(made.error or words.NOT_ENOUGH_DATA))
        return
    file = made.value
    session.download_button(escape.markdown(f"Download {file.name}"), file.content, file.name, file.mime)
    st.caption(file.says)


def make(kind: str, name: str, bill: Callable[[], Bill]) -> File:
    """Export the bill. Raises PricingError, LedgerError."""
    file_kind = KINDS[kind]
    with tempfile.TemporaryDirectory(prefix="rose-file-") as folder:
        done = file_kind.write(bill(), Path(folder) / f"{name}{file_kind.ending}")
        says = f"{kind}: {done.rows:,} rows, {done.bytes:,} bytes, SHA-256 {done.sha256}"
        return File(done.path.name, file_kind.mime, done.path.read_bytes(), says)
