"""How a ledger is kept small and passed on: `rose ledger compact`, `archive`, `retain`, `restore`, `export`, `lake`."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    days,
    fail,
    ledger_root,
    print_json,
    print_table,
    progress_bar,
)
from rose.ledger.commands.jobs import time_text
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.ledger.growth.archive import Archived
    from rose.ledger.growth.left_out import LeftOut
    from rose.ledger.growth.object_lock import ObjectLock

GraceOption = Annotated[float, typer.Option(min=0, help="Remove what was replaced at least this many seconds ago.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", help="KEY=VALUE for fsspec, such as endpoint_url=http://...; may be repeated."),
]
#: Of a file in a table; --json has all.
_RUNS_SHOWN = 3
ObjectLockOption = Annotated[
    str | None, typer.Option("--object-lock", help="Lock each copy for so long by S3 Object Lock, such as 2557d.")
]
LockModeOption = Annotated[
    str, typer.Option("--lock-mode", help="compliance: nobody ends it early; governance: those with the right do.")
]
_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]
SinceOption = Annotated[datetime | None, typer.Option(formats=_FORMATS, help="From this time on, UTC.")]
UntilOption = Annotated[datetime | None, typer.Option(formats=_FORMATS, help="Before this time, UTC.")]


def compact(ledger: LedgerOption = None, grace: GraceOption = 60.0, as_json: JsonOption = False) -> None:
    """Merge small closed files into large ones, also while the ledger is written and read."""
    with clear_errors(), progress_bar("Compacting"):
        from rose.ledger.growth.compaction import compact as run

        done = run(ledger_root(ledger), grace)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    echo(
        f"Merged {done.merged_segments} segments into {done.files_written} files; "
        f"removed {done.parts_removed} parts that were merged earlier."
    )


def roll_up(ledger: LedgerOption = None, grace: GraceOption = 60.0, as_json: JsonOption = False) -> None:
    """Sum up what came since by UTC day, so that the daily views stay fast on a ledger of any size."""
    with clear_errors(), progress_bar("Rolling up"):
        from rose.ledger.growth.rollup import roll_up as run

        done = run(ledger_root(ledger), grace)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    echo(f"Summed up {done.events:,} more events; generation {done.generation}.")
    if done.open_events:
        echo(_open_text(done.open_epochs, done.open_events, "once they are closed, which their writers do"))


def archive(
    older_than: Annotated[str, typer.Option(help="Age of the newest event in a file, such as 90d or 36h.")],
    to: Annotated[str, typer.Option(help="A folder, or a URL such as s3://bucket/prefix.")],
    ledger: LedgerOption = None,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Then have the files leave the ledger.")] = False,
    object_lock: ObjectLockOption = None,
    lock_mode: LockModeOption = "compliance",
    grace: GraceOption = 60.0,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Copy old compacted files out of the ledger, compare the copies, and with --delete keep the copies only."""
    options = storage_options(storage_option)
    with clear_errors(), progress_bar("Archiving") as progress:
        from rose.ledger.growth.archive import archive as run

        done = run(
            ledger_root(ledger),
            older_than_days=days(older_than),
            to=to,
            delete=delete,
            grace_s=grace,
            storage_options=options,
            lock=lock_of(object_lock, lock_mode),
            progress=progress,
        )
    _print_archived(done, f"copied to {done.url}", as_json)


def retain(
    keep: Annotated[str, typer.Option(help="Age from which on events go, such as 400d.")],
    ledger: LedgerOption = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Delete: the events are gone for good.")] = False,
    grace: GraceOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Show which old events would be deleted without a copy, and what is held back; with --yes delete them."""
    keep_days, root = days(keep), ledger_root(ledger)
    if not yes:
        _plan(root, keep, keep_days, as_json)
        return
    with clear_errors(), progress_bar("Deleting") as progress:
        from rose.ledger import layout
        from rose.ledger.growth.archive import archive as run
        from rose.ledger.growth.left_out import left_out

        done = run(root, older_than_days=keep_days, to=None, delete=True, grace_s=grace, progress=progress)
        left = left_out(layout.check(root))
    _print_archived(done, "old enough", as_json)
    if not as_json:
        _print_left_out(left)


def _plan(root: Path, keep: str, keep_days: float, as_json: bool) -> None:
    """What `retain` would do."""
    with clear_errors(), progress_bar("Looking") as progress:
        from rose.ledger import layout
        from rose.ledger.approvals import proposals
        from rose.ledger.growth import retention
        from rose.ledger.growth.left_out import left_out

        retention.check_age(root, keep_days)
        plan_rows = [one.to_json() for one in retention.plan(root, keep_days, progress)]
        left = left_out(layout.check(root))
        needs = "retain" in proposals.load(root).rules.approve
    leaving = [one for one in plan_rows if one["kept"] is None]
    facts = {
        "keep_days": keep_days,
        "files": len(leaving),
        "events": sum(one["events"] for one in leaving),
        "bytes": sum(one["bytes"] for one in leaving),
        "needs_approval": needs,
        "left_out": dataclasses.asdict(left),
        "parts": plan_rows,
    }
    if as_json:
        print_json(facts)
        return
    if plan_rows:
        columns = ["file", "runs", "first event", "last event", "events", "bytes", "stays, because"]
        print_table(columns, [_plan_row(one) for one in plan_rows])
    yes = "proposes it to another identity, or does what was approved" if needs else "deletes them, without a copy"
    echo(
        f"{facts['files']} files with {facts['events']:,} events ({facts['bytes']:,} bytes) are older than {keep} and "
        f"would be deleted. Nothing was done: --yes {yes}."
    )
    _print_left_out(left)


def _print_left_out(left: LeftOut) -> None:
    if left.open_events:
        echo(_open_text(left.open_epochs, left.open_events, "once they are closed, rolled up and merged"))
    if left.unmerged_events:
        echo(
            f"{left.unmerged_epochs} closed epochs with {left.unmerged_events:,} events are left out: only merged "
            "files are deleted, and `rose ledger compact` merges them."
        )


def _open_text(epochs: int, events: int, when: str) -> str:
    return f"{epochs} open epochs with {events:,} events are left out, whatever their age: their turn comes {when}."


def _plan_row(one: dict[str, Any]) -> list[Any]:
    runs = ", ".join(one["runs"][:_RUNS_SHOWN])
    if len(one["runs"]) > _RUNS_SHOWN:
        runs += f" and {len(one['runs']) - _RUNS_SHOWN} more"
    times = [time_text(one["first_us"]), time_text(one["last_us"])]
    return [one["file"], runs, *times, f"{one['events']:,}", f"{one['bytes']:,}", one["kept"]]


def restore(
    from_url: Annotated[str, typer.Option("--from", help="Where the files were archived: a folder or a URL.")],
    ledger: LedgerOption = None,
    *,
    since: SinceOption = None,
    until: UntilOption = None,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring archived events back, for a period or all; exit code 1 if a file was not found there."""
    options = storage_options(storage_option)
    with clear_errors(), progress_bar("Restoring") as progress:
        from rose.ledger.growth.archive import restore as run

        done = run(
            ledger_root(ledger),
            from_url,
            since_us=utc_us_of(since),
            until_us=utc_us_of(until),
            storage_options=options,
            progress=progress,
        )
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        echo(f"{done.parts} files with {done.events:,} events ({done.bytes:,} bytes) brought back from {done.url}.")
        for file in done.missing:
            echo(f"Not found: {file}")
    if done.missing:
        raise typer.Exit(1)


def export(
    to: Annotated[str, typer.Option(help="A folder, or a URL such as s3://bucket/prefix.")],
    ledger: LedgerOption = None,
    *,
    format: Annotated[str, typer.Option(help="parquet, csv or arrow.")] = "parquet",
    view: Annotated[list[str] | None, typer.Option(help="This view; may be repeated. Else all of them.")] = None,
    run: Annotated[str | None, typer.Option(help="Rows of this run only.")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there.")] = False,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the rows of views to files, one for each view, for any other tool."""
    options = storage_options(storage_option)
    with clear_errors(), progress_bar("Exporting") as progress:
        from rose.ledger import verified
        from rose.ledger.access import logged
        from rose.ledger.growth import export as exporting

        root = ledger_root(ledger)
        with logged(root, "export", f"{', '.join(view or ['all views'])} to {to}") as reading:
            done = exporting.export(
                root,
                to,
                views=view,
                format=format,
                since=since,
                until=until,
                run_id=run,
                overwrite=overwrite,
                storage_options=options,
                progress=progress,
            )
            reading.rows = sum(file.rows for file in done)
    echo(f"Ledger {verified.text(root)}", err=True)
    rows = [dataclasses.asdict(file) for file in done]
    if as_json:
        print_json(rows)
    else:
        print_table(["view", "rows", "bytes", "file"], [list(row.values()) for row in rows])


def lake(
    catalog: Annotated[Path, typer.Argument(help="The DuckLake catalog, such as lake.ducklake, outside the ledger.")],
    ledger: LedgerOption = None,
) -> None:
    """Print SQL that brings a DuckLake catalog up to date with the compacted files, which are not copied."""
    with clear_errors():
        from rose.ledger.growth import lake as making

        echo_data(making.update(ledger_root(ledger), catalog))


def quarantine(
    paths: Annotated[list[str], typer.Argument(help="Damaged files, as `rose ledger verify` names them.")],
    ledger: LedgerOption = None,
    as_json: JsonOption = False,
) -> None:
    """Move damaged files out of the readers' way; verification goes on to report what is missing then."""
    with clear_errors():
        from rose.ledger.quarantine import quarantine as run

        moved = run(ledger_root(ledger), paths)
    if as_json:
        print_json(moved)
    else:
        for path in moved:
            echo(f"Moved to {path}.")


def _print_archived(done: Archived, what: str, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    left = f"; {done.left} left the ledger" if done.deleted else ""
    echo(f"{done.parts} files with {done.events:,} events ({done.bytes:,} bytes) {what}{left}.")
    for reason, count in done.skipped.items():
        echo(f"{count} old files stay in the ledger: {reason}.")
    if (approval := done.approval) is not None:
        who = f"proposed by {approval['proposed_by']}, approved by {approval['approved_by']}"
        echo(f"Carried out under proposal {approval['proposal'][:12]}, {who}.")


def lock_of(object_lock: str | None, mode: str) -> ObjectLock | None:
    """The lock that was asked for; None if none was."""
    from rose.ledger.growth.object_lock import ObjectLock

    return None if object_lock is None else ObjectLock(days(object_lock), mode)  # type: ignore[arg-type]


def storage_options(texts: list[str] | None) -> dict[str, Any]:
    """What --storage-option says, by key."""
    options = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not name or not equals:
            fail(f"--storage-option {text!r} is not of the form KEY=VALUE")
        options[name] = value
    return options


def utc_us_of(time: datetime | None) -> int | None:
    """UTC microseconds of a time that was given without a zone."""
    return None if time is None else int(time.replace(tzinfo=UTC).timestamp()) * 1_000_000
