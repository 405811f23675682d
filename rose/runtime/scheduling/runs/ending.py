"""The end of all RL runs of a fleet run, once its controller has ended."""

from __future__ import annotations

from pathlib import Path

from rose.clock import monotonic_ns
from rose.events import Record
from rose.runtime.scheduling.runs.recording import run_event
from rose.runtime.scheduling.runs.registry import Runs
from rose.runtime.scheduling.runs.state import FILE, GONE_S, State

FLEET_ENDED = "the fleet was ended"


def end_runs(folder: Path, record: Record, fleet_run_id: str) -> list[str]:
    """Close the runs that are open in the controller's state in `folder`, and record what the ledger has not heard of
    any run yet; returns which were closed. Raises StateError, and LedgerError if the ledger refuses."""
    if not (folder / FILE).exists():
        return []
    state = State(folder, GONE_S)
    try:
        runs = Runs(state, monotonic_ns(), records=True)
        open_runs = [run for run in runs if run.is_open]
        for run in open_runs:
            runs.close(run.run_id, run.facts.fence, "ended", FLEET_ENDED)
        for number, values in state.due():
            record(run_event(values, fleet_run_id), durable=True)
            state.recorded(number)
        return [run.run_id for run in open_runs]
    finally:
        state.close()
