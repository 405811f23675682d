"""`rose sql` and `rose ledger`: reading, checking and compacting a ledger from the command line.

Exit codes: 0 all is well, 1 a problem was found, 2 the command cannot be carried out as it was given.
"""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from rose.ledger.layout import LedgerError

LedgerOption = Annotated[
    Path | None, typer.Option("--ledger", envvar="ROSE_LEDGER", help="Folder of the ledger; else ./ledger.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]

ledger_app = typer.Typer(help="Check, describe and compact a ledger.", no_args_is_help=True)


def ledger_root(ledger: Path | None) -> Path:
    """The folder a command works on: the one that was given, else `ledger` in the working directory."""
    return ledger or Path("ledger")


def sql_command(
    query: Annotated[str, typer.Argument(help="One SELECT over the ledger's views; `-` reads it from standard input.")],
    ledger: LedgerOption = None,
    *,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows.")] = 1000,
    timeout: Annotated[float, typer.Option(min=0.001, help="Give up after this many seconds.")] = 30.0,
) -> None:
    """Run one read-only SELECT on the ledger, also while it is being written."""
    if as_json and as_csv:
        _fail("--json and --csv exclude one another; give one of them")
    with _clear_errors():
        from rose.ledger.query import query as run

        result = run(ledger_root(ledger), sys.stdin.read() if query == "-" else query, limit=limit, timeout_s=timeout)
    if as_json:
        _print_json([dict(zip(result.columns, row, strict=True)) for row in result.rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows([["" if cell is None else _text(cell) for cell in row] for row in result.rows])
    else:
        _print_table(result.columns, result.rows)
    if result.truncated:
        print(f"There are more than {limit} rows; --limit shows more.", file=sys.stderr)


@ledger_app.command()
def verify(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Check every byte, the chain of segments and every seq; exit code 1 if anything is wrong."""
    with _clear_errors():
        from rose.ledger.verify import verify as run

        report = run(ledger_root(ledger))
    if as_json:
        writers = [dataclasses.asdict(writer) for writer in report.writers]
        _print_json({"ledger": str(report.root), "ok": report.ok, "writers": writers})
    else:
        columns = ["writer", "segments", "events", "first_seq", "last_seq", "problems"]
        rows = [(w.writer, w.segments, w.events, w.first_seq, w.last_seq, len(w.problems)) for w in report.writers]
        _print_table(columns, rows)
        print("The ledger is sound." if report.ok else "\n".join(report.problems))
    if not report.ok:
        raise typer.Exit(1)


@ledger_app.command()
def info(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """What a ledger holds: events by kind and provenance, and the files they lie in."""
    with _clear_errors():
        from rose.ledger import layout

        root = layout.check(ledger_root(ledger))
        columns, kinds = _read(root, "queries/ledger_kinds.sql")
        files = [path for folder in ("live", "compacted") for path in (root / folder).rglob("*.parquet")]
        facts = {
            "ledger": str(root),
            "format": layout.FORMAT_VERSION,
            "writers": layout.writers(root),
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
        }
    if as_json:
        _print_json({**facts, "kinds": [dict(zip(columns, row, strict=True)) for row in kinds]})
        return
    print(f"{root}: format {facts['format']}, {facts['files']} files, {facts['bytes']:,} bytes")
    print(f"writers: {', '.join(layout.writers(root)) or 'none yet'}")
    _print_table(columns, kinds)


@ledger_app.command()
def runs(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """The runs of a ledger, oldest first."""
    with _clear_errors():
        columns, rows = _read(ledger_root(ledger), "queries/ledger_runs.sql")
    if as_json:
        _print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        _print_table(columns, rows)


@ledger_app.command()
def compact(
    ledger: LedgerOption = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Remove what was merged at least this many seconds ago.", show_default=True)
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Merge small closed files into large ones, also while the ledger is written and read."""
    with _clear_errors():
        from rose.ledger.compaction import compact as run

        done = run(ledger_root(ledger), grace)
    if as_json:
        _print_json(dataclasses.asdict(done))
        return
    print(
        f"Merged {done.merged_segments} segments into {done.files_written} files; "
        f"removed {done.parts_removed} parts that were merged earlier."
    )


def _read(root: Path, name: str) -> tuple[list[str], list[Any]]:
    """Columns and rows of a named query of ours."""
    import sql
    from rose.ledger import catalog

    with catalog.connect(root) as connection:
        cursor = connection.execute(sql.read(name))
        return [item[0] for item in cursor.description or []], cursor.fetchall()


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except LedgerError as error:
        _fail(str(error))


def _fail(message: str) -> None:
    print(f"rose: {message}", file=sys.stderr)
    raise typer.Exit(2)


def _print_json(value: Any) -> None:
    # A float that is not a number has no JSON of its own; DuckDB's text for it is the least surprising.
    print(json.dumps(value, default=_text, indent=2, ensure_ascii=False))


def _print_table(columns: list[str], rows: list[Any]) -> None:
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*("" if cell is None else _text(cell) for cell in row))
    # Off a terminal there is no width to keep to.
    width = None if sys.stdout.isatty() else 1_000_000
    Console(markup=False, highlight=False, width=width).print(table)


def _text(cell: Any) -> str:
    if isinstance(cell, datetime):
        return cell.isoformat(timespec="microseconds") + ("Z" if cell.tzinfo is None else "")
    return cell.isoformat() if isinstance(cell, date) else str(cell)
