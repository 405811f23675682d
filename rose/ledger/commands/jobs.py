"""`rose jobs run` runs one background job of a ledger. `rose jobs serve` runs all jobs until it is stopped."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import utc_us
from rose.ledger.commands import common
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.ledger import Ledger
    from rose.ledger.upkeep.jobs import Job, Settings

    #: Makes the jobs of some settings. The command line knows jobs that the ledger does not.
    Planned = Callable[[Settings], list[Job]]

ArchiveToOption = Annotated[
    str | None, typer.Option("--archive-to", help="Where old events go: a folder or a URL such as s3://bucket/prefix.")
]
ArchiveAfterOption = Annotated[
    str | None, typer.Option("--archive-after", help="Archive events older than this, such as 90d.")
]
DeleteOption = Annotated[bool, typer.Option("--delete", help="Have archived events leave the ledger.")]
BookOption = Annotated[
    str | None,
    typer.Option(
        "--price-book",
        "-b",
        help="Price reports by this TOML file, or `example` for made-up prices; else by the adopted one, the runs' "
        "own, or ROSE_PRICE_BOOK's.",
    ),
]
ReportsOption = Annotated[Path | None, typer.Option("--reports", help="Write a cost report of each run here.")]
AlertsOption = Annotated[Path | None, typer.Option("--alerts", help="Send the alerts of this file.")]

_OUTCOME_CHARACTERS_MAX = 100


def jobs_app(planned: Planned) -> typer.Typer:
    app = typer.Typer(
        help="Background jobs that keep a ledger small and checked, and report on it.", no_args_is_help=True
    )

    @app.callback()
    def with_planned(context: typer.Context) -> None:
        context.obj = planned

    app.command("run")(run)
    app.command("serve")(serve)
    return app


def run(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The job; without it all are listed.")] = None,
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
    skipped.

    Without a name, list each job with its usual interval, how its last run ended, and when its next run is due.
    """
    from rose.ledger.upkeep.jobs import run_job

    with common.clear_errors():
        opened = common.open_ledger(ledger)
        if name is None:
            _list(context.obj, opened, as_json)
            return
        settings = _settings(archive_to, archive_after, delete, price_book, reports, alerts)
        todo = {job.name: job for job in context.obj(settings)}
        job = todo.get(name) or common.fail(_not_planned(name, todo))
        with common.progress_bar(name):
            done = run_job(opened, job)
    if as_json:
        common.print_json(dataclasses.asdict(done))
    else:
        echo(done.line())
    if done.status == "failed":
        raise typer.Exit(1)


def _list(planned: Planned, ledger: Ledger, as_json: bool) -> None:
    from rose.ledger.upkeep.jobs import Settings, due_us, history, made_us

    last = history(ledger)
    # With all settings, so that jobs which need some are listed, too.
    jobs = planned(Settings(archive_to="", archive_after_days=0, reports=Path(), alerts=Path()))
    ledger_made_us = made_us(ledger)
    rows: list[dict[str, Any]] = [
        {
            "job": job.name,
            "every_s": job.every_s,
            "last": dataclasses.asdict(last[job.name]) if job.name in last else None,
            "due_us": due_us(job, last.get(job.name), ledger_made_us),
        }
        for job in jobs
    ]
    if as_json:
        common.print_json(rows)
        return
    common.print_table(["job", "every", "last run", "result", "missed", "outcome", "next due"], list(map(_cells, rows)))


def _cells(row: dict[str, Any]) -> list[Any]:
    every, last = f"{row['every_s'] / 60:g} min", row["last"]
    due = "now" if row["due_us"] <= utc_us() else common.time_text(row["due_us"])
    if last is None:
        return [row["job"], every, "never", None, None, None, due]
    result = "ok" if last["ok"] else "failed"
    outcome = textwrap.shorten(last["error"] or last["result_json"] or "", _OUTCOME_CHARACTERS_MAX, placeholder=" ...")
    return [row["job"], every, common.time_text(last["ended_us"]), result, last["missed"], outcome, due]


def serve(
    context: typer.Context,
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
        settings = _settings(archive_to, archive_after, delete, price_book, reports, alerts)
        planned = {job.name: job for job in context.obj(settings)}
        for name in only or []:
            planned.get(name) or common.fail(_not_planned(name, planned))
        todo = [job for name, job in planned.items() if not only or name in only]
        scheduler = Scheduler(opened, todo, lambda run: echo(run.line(), err=run.status == "failed"))
        ended = common.until_signal()
        echo(f"running {', '.join(job.name for job in todo)} on {opened.folder} (Ctrl-C ends it)")
        scheduler.start()
        ended.wait()
        scheduler.stop()


def _not_planned(name: str, planned: dict[str, Job]) -> str:
    needs = {
        "archive": "needs --archive-to and --archive-after",
        "report": "needs --reports",
        "alerts": "needs --alerts",
    }
    known = ", ".join(dict.fromkeys([*planned, *needs]))
    return f"job {name!r} {needs.get(name, f'is not known; the jobs are {known}')}"


def _settings(
    archive_to: str | None,
    archive_after: str | None,
    delete: bool,
    price_book: str | None,
    reports: Path | None,
    alerts: Path | None,
) -> Settings:
    from rose.ledger.upkeep.jobs import Settings

    return Settings(
        archive_to=archive_to,
        archive_after_days=None if archive_after is None else common.seconds(archive_after) / 86_400,
        archive_delete=delete,
        price_book=price_book,
        reports=None if reports is None else reports.expanduser().resolve(),
        alerts=None if alerts is None else alerts.expanduser().resolve(),
    )
