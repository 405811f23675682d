"""Whether the ledger can be trusted, said on every page: up to when it was verified, and what is wrong with it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import streamlit as st

from dashboard import data, escape
from dashboard import format as words
from rose.errors import UserError
from rose.ledger import verified

#: So many problems are written out.
_PROBLEMS_SHOWN = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Trust:
    """What is known of a ledger. `problems` None: it was not looked at, and `why` says why."""

    until: datetime | None
    problems: tuple[str, ...] | None
    why: str = ""

    @property
    def text(self) -> str:
        """A few words, for the chip."""
        if self.problems:
            return f"{len(self.problems):,} problem{'s' if len(self.problems) > 1 else ''}: not to be trusted"
        if self.problems is None:
            return f"not verified since {_clock(self.until)}" if self.until else "never verified"
        return f"verified to {_clock(self.until)}, 0 problems"

    @property
    def colour(self) -> Literal["green", "orange", "red"]:
        if self.problems:
            return "red"
        return "orange" if self.problems is None else "green"


def known(ledger: Path) -> Trust:
    """What the last verification left; nothing is read but that."""
    last = verified.state(ledger)
    return Trust(until=None if last is None else _moment(last), problems=None)


def look(ledger: Path) -> Trust:
    """Verify what is new or changed since. What keeps it from that is said, not raised."""
    try:
        problems = data.problems(ledger)
    except UserError as error:
        return Trust(until=known(ledger).until, problems=None, why=str(error))
    return Trust(until=known(ledger).until, problems=tuple(problems))


def chip(trust: Trust, ledger: Path) -> None:
    """A badge with the outcome in words; what is wrong is written out below it."""
    st.badge(trust.text, color=trust.colour, help=escape.markdown(f"Ledger {ledger.name}: {verified.text(ledger)}."))
    if trust.problems:
        listed = "\n".join(f"- {escape.markdown(problem)}" for problem in trust.problems[:_PROBLEMS_SHOWN])
        more = len(trust.problems) - _PROBLEMS_SHOWN
        rest = f"\n- and {more:,} more; `rose ledger verify` lists them" if more > 0 else ""
        st.error(f"**This ledger does not verify.** Figures of it may be wrong.\n\n{listed}{rest}")
    elif trust.why:
        st.error(f"**This ledger could not be verified.** {escape.prose(trust.why)}")


def _moment(state: verified.State) -> datetime:
    return datetime.fromtimestamp(state.until_us / 1e6, UTC)


def _clock(at: datetime | None) -> str:
    """`06:41 UTC` of today, with the day of any other."""
    if at is None:
        return words.when(None)
    return f"{at:%H:%M} UTC" if at.date() == datetime.now(UTC).date() else f"{at:%Y-%m-%d %H:%M} UTC"
