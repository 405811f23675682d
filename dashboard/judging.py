"""Days that stand out: what was said of each, and a form to say it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import streamlit as st

from dashboard import acting
from dashboard.access import session
from rose.pricing.annotations import feedback
from rose.pricing.annotations.feedback import VERDICTS
from rose.pricing.watch.anomaly import Anomaly

_PLACE = "judging"
_WHICH, _VERDICT, _REASON = "judging-which", "judging-verdict", "judging-reason"
TAKE_BACK = "take it back"
_ABOUT = (
    "expected: it was meant to be so, and is not alerted on. unexpected: somebody looks into it. wrong: the figure is "
    "not right."
)


def form(ledger: Path, anomalies: Sequence[Anomaly]) -> None:
    """Say what one of the days is; for whom it is not, nothing."""
    acting.told(_PLACE)
    if not anomalies or not session.may("judge"):
        return
    by_name = {f"{one.day}: {one.metric}": one for one in anomalies}
    with st.form("judging", border=True):
        left, right = st.columns(2)
        left.selectbox("What stands out", list(by_name), key=_WHICH)
        right.radio("What it is", (*VERDICTS, TAKE_BACK), key=_VERDICT, horizontal=True, help=_ABOUT)
        st.text_input("Why, in one line; it stays in the ledger", key=_REASON, max_chars=500)
        st.form_submit_button("Judge", on_click=_judge, args=(ledger, by_name))


def text(one: Anomaly) -> str:
    """What was said of it, by whom and when."""
    return "" if one.judgement is None else one.judgement.text


def _judge(ledger: Path, by_name: dict[str, Anomaly]) -> None:
    name, verdict, reason = (str(st.session_state[key]) for key in (_WHICH, _VERDICT, _REASON))
    subject = by_name[name].subject

    def write(who: str | None) -> str:
        if verdict == TAKE_BACK:
            return f"{name}: taken back: {feedback.withdraw(ledger, subject, reason, by=who).text}"
        return f"{name}: {feedback.judge(ledger, subject, verdict, reason, by=who).text}"

    acting.act(_PLACE, "judge", f"{name}: {verdict}", write)
