"""`rose jobs list | run | serve`: the background jobs of a ledger, by hand and for good."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import iso, utc_us
from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    days,
    fail,
    host_and_port,
    ledger_root,
    print_json,
    print_table,
    read_token,
    seconds,
    until_signal,
)
from rose.ledger.upkeep.jobs import Job, JobRun, Settings, due_us, history, run_job
from rose.terminal import Screen, echo

if TYPE_CHECKING:
    from rose.ledger.upkeep.jobs import Last

#: Makes the jobs that settings ask for; whoever builds the command line knows of jobs that the ledger does not.
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
DEFAULT_LISTEN = "127.0.0.1:9464"
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File with the bearer token that scrapers must send; needed beyond loopback. Else $ROSE_METRICS_TOKEN.",
    ),
]
ReportsOption = Annotated[Path | None, typer.Option("--reports", help="Write a cost report of each run here.")]
AlertsOption = Annotated[Path | None, typer.Option("--alerts", help="Send the alerts of this file.")]

#: Longer texts are in the view `job`, whole.
_SAID_CHARACTERS_MAX = 100


def jobs_app(planned: Planned) -> typer.Typer:
    """The commands, on the jobs that `planned` makes."""
    app = typer.Typer(
        help="Background jobs that keep a ledger small and checked, and report on it.", no_args_is_help=True
    )

    @app.callback()
    def with_planned(context: typer.Context) -> None:
        context.obj = planned

    app.command("list")(list_jobs)
    app.command("run")(run)
    app.command("serve")(serve)
    return app


def list_jobs(context: typer.Context, ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Each job with its usual interval, how its last run ended, and when it is due."""
    with clear_errors():
        last = history(ledger_root(ledger))
        # Named settings, so that also those jobs are listed which run only where they are set up.
        every = Settings(archive_to="", archive_after_days=0, reports=Path(), alerts=Path())
        rows = [_row(job, last.get(job.name)) for job in context.obj(every)]
    if as_json:
        print_json(rows)
        return
    columns = ["job", "every", "last run", "result", "missed", "said", "next due"]
    print_table(columns, [_cells(row) for row in rows])


def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The job; `rose jobs list` names them.")],
    ledger: LedgerOption = None,
    *,
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    price_book: BookOption = None,
    reports: ReportsOption = None,
    alerts: AlertsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run one job now, and record how it ended; exit code 1 if it failed. It is skipped if it runs already."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    with clear_errors():
        settings = Settings(
            archive_to=archive_to,
            archive_after_days=None if archive_after is None else days(archive_after),
            archive_delete=delete,
            price_book=price_book,
            reports=_absolute(reports),
            alerts=_absolute(alerts),
        )
        todo = {job.name: job for job in context.obj(settings)}
        job = todo.get(name) or fail(_not_planned(name, todo))
        console = Screen(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            progress.add_task(name, total=None)
            done = run_job(ledger_root(ledger), job)
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        echo(done.line())
    if done.status == "failed":
        raise typer.Exit(1)


def serve(
    context: typer.Context,
    ledger: LedgerOption = None,
    *,
    only: Annotated[list[str] | None, typer.Option("--only", help="Run this job only; may be given again.")] = None,
    compact_every: Annotated[str, typer.Option(help="Between compactions and between roll-ups.")] = "5m",
    audit_every: Annotated[str, typer.Option(help="Between audits, one of which each week reads every byte.")] = "1d",
    report_every: Annotated[str, typer.Option(help="Between reports.")] = "15m",
    archive_to: ArchiveToOption = None,
    archive_after: ArchiveAfterOption = None,
    delete: DeleteOption = False,
    price_book: BookOption = None,
    reports: ReportsOption = None,
    alerts: AlertsOption = None,
    alerts_every: Annotated[str, typer.Option(help="Between looks at the rules of --alerts.")] = "5m",
    metrics_listen: Annotated[
        str | None, typer.Option(help=f"Serve Prometheus metrics here too, such as {DEFAULT_LISTEN}.")
    ] = None,
    token_file: TokenFileOption = None,
) -> None:
    """Run the jobs when they are due, until Ctrl-C or SIGTERM; prints a line for each run."""
    from rose.ledger.upkeep.scheduler import Scheduler

    with clear_errors():
        root = ledger_root(ledger)
        settings = Settings(
            compact_every_s=seconds(compact_every),
            roll_up_every_s=seconds(compact_every),
            audit_every_s=seconds(audit_every),
            archive_to=archive_to,
            archive_after_days=None if archive_after is None else days(archive_after),
            archive_delete=delete,
            price_book=price_book,
            report_every_s=seconds(report_every),
            reports=_absolute(reports),
            alerts_every_s=seconds(alerts_every),
            alerts=_absolute(alerts),
        )
        planned = {job.name: job for job in context.obj(settings)}
        for name in only or []:
            planned.get(name) or fail(_not_planned(name, planned))
        todo = [job for name, job in planned.items() if not only or name in only]
        scheduler = Scheduler(root, todo, _print_line)
        ended = until_signal()
        with ExitStack() as stack:
            if metrics_listen is not None:
                from rose.ledger.upkeep import metrics_server

                host, port = host_and_port(metrics_listen, DEFAULT_LISTEN)
                token = read_token(token_file, "ROSE_METRICS_TOKEN")
                echo(f"metrics at {stack.enter_context(metrics_server.serve(root, host, port, token))}")
            echo(f"running {', '.join(job.name for job in todo)} on {root} (Ctrl-C ends it)")
            stack.callback(scheduler.stop)
            scheduler.start()
            ended.wait()


def _print_line(run: JobRun) -> None:
    echo(run.line(), err=run.status == "failed")


def _row(job: Job, last: Last | None) -> dict[str, Any]:
    return {
        "job": job.name,
        "every_s": job.every_s,
        "last": None if last is None else dataclasses.asdict(last),
        "due_us": None if last is None else due_us(job, last),
    }


def _cells(row: dict[str, Any]) -> list[Any]:
    every = f"{row['every_s'] / 60:g} min"
    last = row["last"]
    if last is None:
        return [row["job"], every, "never", None, None, None, None]
    due = "now" if row["due_us"] <= utc_us() else time_text(row["due_us"])
    outcome = short(last["error"] or last["result_json"])
    return [
        row["job"],
        every,
        time_text(last["ended_us"]),
        "ok" if last["ok"] else "failed",
        last["missed"],
        outcome,
        due,
    ]


def time_text(us: int | None) -> str | None:
    """UTC microseconds for people, to the second."""
    return None if us is None else f"{iso(us)[:19]}Z"


def short(text: str | None) -> str | None:
    """What a job said, as a cell of a table."""
    return None if text is None else textwrap.shorten(text, _SAID_CHARACTERS_MAX, placeholder=" ...")


def _not_planned(name: str, planned: dict[str, Job]) -> str:
    needs = {
        "archive": "needs --archive-to and --archive-after",
        "report": "needs --reports",
        "alerts": "needs --alerts",
    }
    known = ", ".join(dict.fromkeys([*planned, *needs]))
    return f"job {name!r} {needs.get(name, f'is not known; the jobs are {known}')}"


def _absolute(folder: Path | None) -> Path | None:
    return None if folder is None else folder.expanduser().resolve()
