"""How a ledger is kept small: `rose ledger compact`, `roll-up`, `archive`, `restore`."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    days,
    fail,
    ledger_root,
    print_json,
    progress_bar,
)
from rose.terminal import echo

GraceOption = Annotated[float, typer.Option(min=0, help="Remove what was replaced at least this many seconds ago.")]
StorageOption = Annotated[
    list[str] | None,
    typer.Option("--storage-option", help="KEY=VALUE for fsspec, such as endpoint_url=http://...; may be repeated."),
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
        echo(
            f"{done.open_epochs} open epochs with {done.open_events:,} events are left out until their writers close "
            "them."
        )


def archive(
    older_than: Annotated[str, typer.Option(help="Age of the newest event in a file, such as 90d or 36h.")],
    to: Annotated[str, typer.Option(help="A folder, or a URL such as s3://bucket/prefix.")],
    ledger: LedgerOption = None,
    *,
    delete: Annotated[bool, typer.Option("--delete", help="Then have the files leave the ledger.")] = False,
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
            progress=progress,
        )
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    left = f"; {done.left} left the ledger" if done.deleted else ""
    echo(f"{done.parts} files with {done.events:,} events ({done.bytes:,} bytes) copied to {done.url}{left}.")
    for reason, count in done.skipped.items():
        echo(f"{count} old files stay in the ledger: {reason}.")


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
