"""`rose jobs run` runs one background job of a ledger. `rose jobs serve` runs all jobs until it is stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import common
from rose.pricing.commands.common import BookOption
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.upkeep.jobs import Job

ArchiveToOption = Annotated[str | None, typer.Option("--archive-to", help="Folder or URL, such as s3://bucket/prefix.")]
ArchiveAfterOption = Annotated[str | None, typer.Option("--archive-after", help="Archive older events, such as 90d.")]
DeleteOption = Annotated[bool, typer.Option("--delete", help="Have archived events leave the ledger.")]
ReportsOption = Annotated[Path | None, typer.Option("--reports", help="Write a cost report of each run here.")]
AlertsOption = Annotated[Path | None, typer.Option("--alerts", help="Send the alerts of this file.")]

jobs_app = typer.Typer(help="Background jobs that keep a ledger small and checked, and report.", no_args_is_help=True)


@jobs_app.command()
def run(
    name: Annotated[str, typer.Argument(help="The job: compact, roll-up, audit, archive, report or alerts.")],
    ledger: common.LedgerOption = None,
    *,
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    price_book: BookOption = None,
    reports: ReportsOption = None,
    alerts: AlertsOption = None,
    as_json: common.JsonOption = False,
) -> None:
    """Run one job now, and record how it ended. The exit code is 1 if the job failed. A job that already runs is
    skipped."""
    from rose.ledger.upkeep.jobs import run_job

    with common.clear_errors():
        opened = common.open_ledger(ledger)
        planned = planned_jobs(archive_to, archive_after, delete, price_book, reports, alerts)
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
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this job only; may be given again.")] = None,
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    price_book: BookOption = None,
    reports: ReportsOption = None,
    alerts: AlertsOption = None,
) -> None:
    """Run each job when it is due, until Ctrl-C or SIGTERM. Prints a line for each run."""
    from rose.ledger.upkeep.scheduler import Scheduler

    with common.clear_errors():
        opened = common.open_ledger(ledger)
        planned = planned_jobs(archive_to, archive_after, delete, price_book, reports, alerts)
        todo = [_named(name, planned) for name in only or planned]
        scheduler = Scheduler(opened, todo, lambda run: echo(run.line(), err=run.status == "failed"))
        ended = common.until_signal()
        echo(f"running {', '.join(job.name for job in todo)} on {opened.folder} (Ctrl-C ends it)")
        scheduler.start()
        ended.wait()
        scheduler.stop()


def planned_jobs(
    to: str | None, after: str | None, delete: bool, book: str | None, reports: Path | None, alerts: Path | None
) -> dict[str, Job]:
    from rose.ledger.upkeep.jobs import Settings
    from rose.pricing.jobs import planned

    settings = Settings(
        archive_to=to,
        archive_after_days=None if after is None else common.seconds(after) / 86_400,
        archive_delete=delete,
        price_book=book,
        reports=None if reports is None else reports.expanduser().resolve(),
        alerts=None if alerts is None else alerts.expanduser().resolve(),
    )
    return {job.name: job for job in planned(settings)}


def _named(name: str, planned: dict[str, Job]) -> Job:
    needs = {"archive": "--archive-to and --archive-after", "report": "--reports", "alerts": "--alerts"}
    known = ", ".join(dict.fromkeys([*planned, *needs]))
    why = f"needs {needs[name]}" if name in needs else f"is not known; the jobs are {known}"
    return planned.get(name) or common.fail(f"job {name!r} {why}")
