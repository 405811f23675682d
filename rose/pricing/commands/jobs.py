"""`rose jobs run` runs one background job of a ledger. `rose jobs serve` runs all jobs until it is stopped."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import common
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.upkeep.jobs import Job

ArchiveToOption = Annotated[
    str | None, typer.Option("--archive-to", help="Where old events go: a folder or a URL such as s3://bucket/prefix.")
]
ArchiveAfterOption = Annotated[
    str | None, typer.Option("--archive-after", help="Archive events older than this, such as 90d.")
]
DeleteOption = Annotated[bool, typer.Option("--delete", help="Remove archived events from the ledger.")]
AlertsOption = Annotated[Path | None, typer.Option("--alerts", help="Send alerts by the rules in this file.")]

_ALERTS_EVERY_S = 300.0
jobs_app = typer.Typer(
    help="Background jobs that keep a ledger small and checked, and send alerts.", no_args_is_help=True
)


@jobs_app.command()
def run(
    name: Annotated[str, typer.Argument(help="The job: compact, roll-up, audit, archive or alerts.")],
    ledger: common.LedgerOption = None,
    *,
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    alerts: AlertsOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Run one job now, unless it runs already, and record how it ended. The exit code is 1 if the job failed."""
    from rose.ledger.upkeep.jobs import run_job

    with common.clear_errors():
        opened = common.open_ledger(ledger)
        planned = planned_jobs(archive_to, archive_after, delete, alerts)
        with common.progress_bar(name):
            done = run_job(opened, _named(name, planned))
    if as_json:
        common.print_json(dataclasses.asdict(done))
    else:
        echo(done.line())
    if done.status == "failed":
        raise typer.Exit(1)


@jobs_app.command()
def serve(
    ledger: common.LedgerOption = None,
    *,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this job only; may be repeated.")] = None,
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    alerts: AlertsOption = None,
) -> None:
    """Run each job when it is due, until Ctrl-C or SIGTERM. Prints a line for each run."""
    from rose.ledger.upkeep.scheduler import Scheduler

    with common.clear_errors():
        opened = common.open_ledger(ledger)
        planned = planned_jobs(archive_to, archive_after, delete, alerts)
        todo = [_named(name, planned) for name in only or planned]
        scheduler = Scheduler(opened, todo, lambda run: echo(run.line(), err=run.status == "failed"))
        ended = common.until_signal()
        echo(f"running {', '.join(job.name for job in todo)} on {opened.folder} (Ctrl-C ends it)")
        scheduler.start()
        ended.wait()
        scheduler.stop()


def planned_jobs(
    archive_to: str | None, archive_after: str | None, delete: bool, alerts: Path | None
) -> dict[str, Job]:
    from rose.ledger.upkeep.jobs import Job, ledger_jobs
    from rose.pricing.alerts import send

    after_days = None if archive_after is None else common.seconds(archive_after) / 86_400
    jobs = ledger_jobs(archive_to, after_days, delete)
    if alerts is not None:
        jobs.append(Job("alerts", functools.partial(send, file=alerts.expanduser().resolve()), _ALERTS_EVERY_S))
    return {job.name: job for job in jobs}


def _named(name: str, planned: dict[str, Job]) -> Job:
    needs = {"archive": "needs --archive-to and --archive-after", "alerts": "needs --alerts"}
    known = ", ".join(dict.fromkeys([*planned, *needs]))
    return planned.get(name) or common.fail(f"job {name!r} {needs.get(name, f'is not known; the jobs are {known}')}")
