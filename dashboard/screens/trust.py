"""The outcome of verification, the jobs and the writers."""

import polars as pl
import streamlit as st

from dashboard import data, escape, frame
from dashboard import format as words
from dashboard.data import Run
from rose.ledger import verified
from rose.ledger.ledger import Ledger
from rose.ledger.upkeep import jobs
from rose.pricing.period import naive


def show(ledger: Ledger, runs: list[Run]) -> None:
    _verified(ledger)
    with frame.errors_shown():
        _jobs(ledger)
    st.header("Do all writers write?")
    columns = "run_id writer events newest_at behind_ns age_ns"
    frame.query(ledger, "late_writers", "The ledger has no writer of a running run.", columns, status="running")
    st.subheader("Dropped events")
    frame.query(ledger, "dropped_events", "No event was dropped.", "event_time run_id writer dropped_kind events")
    st.header("What is in the ledger?")
    frame.query(ledger, "ledger_growth", "Nothing was written yet.")


def _verified(ledger: Ledger) -> None:
    st.header("Does the ledger verify?")
    trust, last = frame.look(ledger), verified.state(ledger.folder)
    if trust.problems is None:
        st.error(escape.prose(trust.why or trust.text))
    elif trust.problems:
        frame.table(pl.DataFrame({"problem": trust.problems}), "`rose ledger verify`", name="problems")
    else:
        st.success(f"Every file, hash chain, signature and view that is new or changed was checked: {trust.text}.")
    st.markdown(f"Ledger {escape.markdown(str(ledger.folder))}.")
    if last is not None:
        full_us = last.full_until_us
        read = "" if full_us is None else f" Every byte was last read at {words.when(naive(full_us * 1000))}."
        st.caption(
            escape.markdown(
                f"{last.events:,} events; last verified by {last.by}; {last.unchecked:,} files not checked."
            )
            + f"{read} `rose ledger verify` reads every byte; `rose ledger receipt` detects a rewrite by the owner."
        )


def _jobs(ledger: Ledger) -> None:
    st.header("Do the jobs run?")
    last = data.kept(lambda: jobs.history(ledger), ledger, "jobs")
    if not last:
        st.info("No job has run on this ledger. `rose jobs serve` compacts and verifies it.")
        return
    failed = sorted(name for name, job in last.items() if not job.ok)
    if failed:
        st.error(f"**Last run failed**: {escape.markdown(', '.join(failed))}.")
    rows = [
        {
            "job": name,
            "last run": naive(job.started_us * 1000),
            "result": "ok" if job.ok else "failed",
            "seconds": job.duration_ns / 1e9,
            "missed": job.missed,
            "last success": None if job.success_ended_us is None else naive(job.success_ended_us * 1000),
            "error": job.error,
        }
        for name, job in sorted(last.items())
    ]
    types: dict[str, pl.DataType] = {"last success": pl.Datetime("us"), "error": pl.String()}
    frame.table(pl.DataFrame(rows, schema_overrides=types), "view `job`, times in UTC", name="jobs")


frame.ledger_page("Trust", "Can the ledger be trusted, and do its jobs and writers work?", show, uses=())
