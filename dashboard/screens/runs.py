"""All runs, and the cost report of the chosen run."""

import json

import streamlit as st

from dashboard import bar, data, escape, frame
from dashboard import format as words
from dashboard.data import Run
from rose.ledger.ledger import Ledger
from rose.pricing.answers import run_report

_COLUMNS = "name status started_at steps accepted_share trajectories output_tokens leases slo_share reason"
_ONLY_IN_CSV = "ended_at preemptions syncs syncs_failed requests provenance run_id"


def show(ledger: Ledger, runs: list[Run]) -> None:
    has_runs = _list(ledger)
    run = next((run for run in runs if run.run_id == bar.chosen().run), None)
    if run is None:
        if has_runs:
            st.info("Click a run, or choose one above, for its cost report.")
        return
    st.header(f"Run {escape.markdown(run.name)}")
    st.markdown(f"{escape.markdown(run.run_id)}, {run.status}, started {words.when(run.started_at)}.")
    tags = ", ".join(f"{name} {value}" for name, value in run.tags.items()) or "no tags"
    st.caption(f"{escape.markdown(tags)}. {words.trace(run)}")

    with st.spinner("Pricing the run …"):
        run_id, book = run.run_id, data.price_book(ledger, run)
        key = "report", run_id, *data.book_key(book)
        priced = data.kept(lambda: run_report.build(ledger, run_id, book), ledger, *key)
    frame.stamp(priced.stamp)
    name = f"rose-{run.run_id}.json"
    frame.download_button("Download JSON", lambda: json.dumps(priced.to_json(), indent=2), name, "application/json")
    frame.elements(priced.elements(), "`rose report`")


def _list(ledger: Ledger) -> bool:
    table = data.named_rows(ledger, "run_overview", f"{_COLUMNS} {_ONLY_IN_CSV}")
    if table.is_empty():
        st.info("No run has begun yet.")
        return False
    for provenance in table["provenance"].unique().sort().to_list():
        frame.banner(str(provenance))
    source = "`rose query run_overview`, newest first, UTC. Click a run for its cost report. The CSV has more columns."
    ids, hidden = table["run_id"], {name.replace("_", " "): None for name in _ONLY_IN_CSV.split()}
    frame.table(
        table, source, hidden, name="runs", on_pick=lambda row: bar.choose(run=None if row is None else ids[row])
    )
    return True


frame.ledger_page("Runs", "Which runs are there, how did each go, and what did one cost?", show, uses=("run",))
