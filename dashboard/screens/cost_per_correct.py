"""Whether the policy learned, and the cost of a correct answer."""

from collections.abc import Sequence

import polars as pl
import streamlit as st

from dashboard import charts, data, escape, frame
from dashboard.data import Run
from rose.ledger.ledger import Ledger
from rose.pricing.answers import correct_answer, learned
from rose.pricing.answers.correct_answer import THOUSAND
from rose.pricing.answers.learned import Learned, Stretch

_STRETCHES_MAX = 200
_SOURCE = "`turn`, `trajectory`, `verdict`, `device_slice` and the price book"
_ABOUT = "All rollout work, as in `rose report`. The folded tables price rollout tokens in other ways."
_MEANING = {
    "learned": "**The policy learned.**",
    "got worse": "**The policy got worse.**",
    "cannot tell": "**Unclear whether the policy learned**: the intervals of its first and last steps overlap.",
}


def show(ledger: Ledger, run: Run) -> None:
    rows = data.rows(ledger, "answers/accepted", run_id=run.run_id, part="step", blocks=_STRETCHES_MAX)
    course = learned.stretches(rows.to_dicts())
    if not course:
        st.info("No answer of this run was judged" + (" yet." if run.going_on else "."))
        return
    _course(course, run)

    with st.spinner("Pricing the run …"):
        sections, stamp = data.of_run(ledger, run, correct_answer.sections)
    frame.stamp(stamp)
    st.header("What does a correct answer cost?")
    figure = sections["cost"].figure("headline", THOUSAND)
    frame.figures((THOUSAND, *(("unknown", figure.text) if figure.value is None else (figure.text, _ABOUT))))
    frame.show(sections["cost"], _SOURCE, skip=("headline",), folded=("lines", "c3"))
    st.header("Where does the next dollar belong?")
    frame.show(sections["frontier"], _SOURCE, folded=("elasticities", "spend"))
    st.header("Which verifier makes a correct answer cheapest?")
    frame.show(sections["verifiers"], "probes that every verifier judged", folded=("scores",))


def _course(course: Sequence[Stretch], run: Run) -> None:
    st.markdown(sentence(learned.learned(course), course))
    points = pl.DataFrame(
        [
            {
                "place": (stretch.first + stretch.last) / 2,
                "name": f"{stretch.first:,}" + ("" if stretch.first == stretch.last else f" to {stretch.last:,}"),
                "judged": stretch.judged,
                "accepted": stretch.accepted,
                "share": float(stretch.share),
                "low": stretch.interval[0],
                "high": stretch.interval[1],
                "text": stretch.text,
            }
            for stretch in course
        ]
    )
    escape.chart(charts.shares(points, "RL step"), about="Share of judged answers accepted")
    wide = any(stretch.last > stretch.first for stretch in course)
    several = " A point covers several steps; its tooltip names them." if wide else ""
    st.caption(
        "Share of judged answers that the verifier accepted, with Wilson's 95% interval; a group of trajectories is "
        f"one cluster.{several} {run.provenances[0].capitalize()}. Source: `verdict`."
    )
    frame.download(points.drop("text"), "accepted by step")


def sentence(verdict: Learned | None, course: Sequence[Stretch]) -> str:
    if verdict is None:
        return "**Unclear whether the policy learned**: need two steps with judged answers; have one."
    count = course[-1].last - course[0].first + 1
    return (
        f"{_MEANING[verdict.verdict]} {verdict.end.text} of the judged answers were accepted in the last "
        f"{_steps(verdict.end)} of {count:,}, against {verdict.begin.text} in the first {_steps(verdict.begin)}."
    )


def _steps(stretch: Stretch) -> str:
    count = stretch.last - stretch.first + 1
    return "step" if count == 1 else f"{count:,} steps"


frame.page(
    "Cost per correct",
    "Did the policy learn, what did a correct answer cost, and what would make it cheaper?",
    show,
    live_s=frame.QUIET_S,
    judged=True,
)
