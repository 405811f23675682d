"""Background jobs keep a ledger small, fast and checked. Each run takes a lock, so several schedulers may work."""

import dataclasses
import functools
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import sql
from rose.clock import iso, utc_us
from rose.errors import UserError
from rose.events import LedgerAction
from rose.ledger.files import layout
from rose.ledger.files.layout import LedgerError
from rose.ledger.ledger import Ledger

JOB_ACTION = "job"  # The action of a job's `ledger` event, and the prefix of its writer.
STOPPED = "stopped before it was done"
_WRITER_PREFIX = "job-"
_DUE_SHARE = 0.5  # A scheduled run is skipped if another began less than this share of the interval ago.
#: An audit reads every byte if the last full one is older: a week, less the time by which a daily one may come early.
_EVERY_BYTE_DAYS = 6.5
_PROBLEMS_SHOWN = 5
_UPKEEP_S, _DAY_S = 300.0, 86_400.0
_ERROR_CHARACTERS_MAX = 2000


@dataclass(frozen=True, slots=True)
class Job:
    """Work that another process does on a ledger every `every_s` seconds. `run` must be a picklable function. Its
    result is a dataclass or a mapping."""

    name: str
    run: Callable[[Ledger], Any]
    every_s: float


@dataclass(frozen=True, slots=True)
class JobRun:
    """How a job's run ended. A skipped run leaves no event, and `error` says why it was skipped."""

    job: str
    status: Literal["ok", "failed", "skipped"]
    started_us: int
    duration_ns: int = 0
    missed: int = 0
    result: Mapping[str, object] | None = None
    error: str | None = None

    def line(self) -> str:
        outcome = ", ".join(f"{name} {value}" for name, value in (self.result or {}).items()) or self.error
        took = "" if self.status == "skipped" else f" in {self.duration_ns / 1e9:.1f} s"
        return f"{iso(self.started_us)[:19]}Z {self.job}: {self.status}{took}: {outcome}"


@dataclass(frozen=True, slots=True)
class Last:
    """A job's last run in the ledger. Times are UTC microseconds since the Unix epoch."""

    job: str
    ok: bool
    started_us: int
    ended_us: int
    duration_ns: int
    missed: int
    result_json: str | None
    error: str | None
    succeeded_us: int | None
    success_ended_us: int | None
    every_byte_us: int | None


def ledger_jobs(to: str | None = None, after_days: float | None = None, delete: bool = False) -> list[Job]:
    """Return a ledger's jobs. If `to` and `after_days` are given, the jobs include the archive job. Raises LedgerError
    if only one of these two arguments is given."""
    from rose.ledger.growth import archive, compaction, rollup

    listed = [
        Job("compact", compaction.compact, _UPKEEP_S),
        Job("roll-up", rollup.roll_up, _UPKEEP_S),
        Job("audit", audit, _DAY_S),
    ]
    if after_days is None:
        if to is not None or delete:
            raise LedgerError("the age of events to archive or delete is missing; give --archive-after")
    elif to is None:
        raise LedgerError("the place of the archive is missing; give --archive-to")
    else:
        run = functools.partial(archive.archive, older_than_days=after_days, to=to, delete=delete)
        listed.append(Job("archive", run, _DAY_S))
    return listed


def audit(ledger: Ledger) -> Mapping[str, object]:
    """Check every byte once a week, and otherwise only new and changed files. Raises LedgerError for a problem."""
    last = history(ledger).get("audit")
    ago_us = None if last is None or last.every_byte_us is None else utc_us() - last.every_byte_us
    # A clock that was put back makes it later than now.
    every_byte = ago_us is None or not 0 <= ago_us < _EVERY_BYTE_DAYS * 86_400e6
    report = ledger.verify() if every_byte else ledger.verify_changed()
    if problems := report.doubts:
        more = f" and {len(problems) - _PROBLEMS_SHOWN} more" if len(problems) > _PROBLEMS_SHOWN else ""
        raise LedgerError(f"{len(problems)} problems: {'; '.join(problems[:_PROBLEMS_SHOWN])}{more}")
    events = sum(writer.events for writer in report.writers)
    return {"writers": len(report.writers), "events": events, "every_byte": every_byte}


def run_job(ledger: Ledger, job: Job, *, only_if_due: bool = False) -> JobRun:
    """Run a job and record how it ended. With `only_if_due`, skip it after a recent success. Raises LedgerError."""
    started_us, began_ns = utc_us(), time.monotonic_ns()
    path = ledger.folder / "locks" / f"running-{job.name}.lock"
    try:
        with layout.refusals(f"cannot lock {path}: a job must be able to write to its ledger"):
            lock = layout.take(path)
    except layout.TakenError as holder:
        return JobRun(job.name, "skipped", started_us, error=f"already running in the process with pid {holder}")
    try:
        result, error, missed = None, None, 0
        try:
            if (last := history(ledger).get(job.name)) is not None and last.succeeded_us is not None:
                intervals = (started_us - last.succeeded_us) / (job.every_s * 1e6)
                if only_if_due and 0 <= intervals < _DUE_SHARE:
                    return JobRun(job.name, "skipped", started_us, error=f"done at {iso(last.succeeded_us)} elsewhere")
                missed = max(0, int(intervals) - 1)
            done = job.run(ledger)
            result = dict(done) if isinstance(done, Mapping) else dataclasses.asdict(done)
        # Any error must be in the job's last result. An interrupt stops the job alone.
        except (Exception, KeyboardInterrupt) as caught:
            error = _explained(caught)
        status: Literal["ok", "failed"] = "ok" if error is None else "failed"
        took_ns = time.monotonic_ns() - began_ns
        return record(ledger, JobRun(job.name, status, started_us, took_ns, missed, result, error))
    finally:
        os.close(lock)


def record(ledger: Ledger, run: JobRun) -> JobRun:
    from rose.ledger.writer import LedgerWriter

    detail = {
        "job": run.job,
        "ok": run.status == "ok",
        "started_us": run.started_us,
        "duration_ns": run.duration_ns,
        "missed": run.missed,
        **({"result": run.result} if run.error is None else {"error": run.error}),
    }
    try:
        with LedgerWriter.open(ledger.folder, f"{_WRITER_PREFIX}{run.job}", layout.UPKEEP_RUN_ID) as log:
            log.record(LedgerAction(action=JOB_ACTION, detail_json=json.dumps(detail, default=str)), durable=True)
    except (LedgerError, OSError) as error:
        earlier = "" if run.error is None else f"{run.error}; "
        return dataclasses.replace(run, status="failed", error=f"{earlier}the run could not be recorded: {error}")
    return run


def history(ledger: Ledger) -> dict[str, Last]:
    """Return each job's last run, by name. In a large ledger, this takes as long as in a small one."""
    import duckdb

    from rose.ledger.files import sources

    writers = [writer for writer in layout.writers(ledger.folder) if writer.startswith(_WRITER_PREFIX)]
    files = [part.pattern for writer in writers for part in layout.parts(ledger.folder, writer)]
    stored = sources.events(ledger.folder, files)
    try:
        with ledger.connect() as connection:
            connection.execute(f"CREATE OR REPLACE TEMP VIEW stored_event AS {stored}")
            rows = connection.sql(sql.read("jobs/last.sql")).to_arrow_table().to_pylist()
    except duckdb.Error as error:
        raise LedgerError(f"cannot read the records of jobs in {ledger.folder}: {error}") from error
    return {row["job"]: Last(**row) for row in rows}


def due_us(job: Job, last: Last | None, made_us: int) -> int:
    now_us = utc_us()
    since_us = made_us if last is None else last.succeeded_us
    # A clock that was put back makes the success later than now.
    return now_us if since_us is None or since_us > now_us else since_us + int(job.every_s * 1e6)


def made_us(ledger: Ledger) -> int:
    return (ledger.folder / layout.MARKER).stat().st_mtime_ns // 1000


def _explained(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt) or (type(error) is RuntimeError and str(error) == "Query interrupted"):
        return STOPPED
    text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
    return text[:_ERROR_CHARACTERS_MAX]
