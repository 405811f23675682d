"""`rose sql`, `rose query` and `rose schema` read a ledger from the command line."""

from __future__ import annotations

import csv
import dataclasses
import io
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import common
from rose.ledger.commands.output import csv_cells
from rose.terminal import echo, echo_data

if TYPE_CHECKING:
    from rose.ledger.reading.query import Result

_LIMIT = 1000

CsvOption = Annotated[bool, typer.Option("--csv", help="Print CSV with a header.")]
TimeoutOption = Annotated[float, typer.Option(min=0.001, help="Give up after this many seconds.")]


def sql_command(
    query: Annotated[str | None, typer.Argument(help="One SELECT over the views. `-` reads standard input.")] = None,
    ledger: common.LedgerOption = None,
    *,
    server: Annotated[
        str | None, typer.Option(help="Ask a controller instead of a folder: http://HOST:PORT or https://HOST:PORT.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the controller's token. Default: the token in ROSE_TOKEN.")
    ] = None,
    as_json: common.JsonOption = False,
    as_csv: CsvOption = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows.")] = _LIMIT,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Run one read-only SELECT on the ledger. Writers may write to the ledger meanwhile."""
    _one_format(as_json, as_csv)
    if query is None:
        from rose.ledger.files.layout import CATALOG

        common.fail(
            "no query was given; give a SELECT, or - to read it from standard input. "
            f"For a shell, use DuckDB's own: duckdb -readonly {(ledger or Path('ledger')) / CATALOG}"
        )
    with common.clear_errors():
        text = sys.stdin.read() if query == "-" else query
        if server is None:
            if token_file is not None:
                common.fail("--token-file is for a controller; name one with --server")
            from rose.ledger.reading.query import query as select

            opened = common.open_ledger(ledger)
            result = select(opened, text, limit=limit, timeout_s=timeout)
        else:
            if ledger is not None and "ROSE_LEDGER" not in os.environ:
                common.fail("--ledger and --server exclude one another; give one of them")
            from rose.ledger.hosts.remote import RemoteLedger

            controller = RemoteLedger(server, token=common.read_token(token_file, "ROSE_TOKEN"))
            result = controller.query(text, limit=limit, timeout_s=timeout)
    _print_result(result, as_json=as_json, as_csv=as_csv)


def query_command(
    name: Annotated[str | None, typer.Argument(help="Name of the query. Without it, all queries are listed.")] = None,
    ledger: common.LedgerOption = None,
    *,
    since: Annotated[
        str | None, typer.Option(help="Only events from this time on: a date, a UTC time, or how long ago (24h, 7d).")
    ] = None,
    until: Annotated[str | None, typer.Option(help="Only events before this time, written as for --since.")] = None,
    run: Annotated[str | None, typer.Option(help="Only this run, by its id.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device, by its id.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="A variable of the query; may be repeated.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print the SQL instead of running it.")] = False,
    as_json: common.JsonOption = False,
    as_csv: CsvOption = False,
    limit: Annotated[int, typer.Option(min=0, help="Print at most this many rows.")] = _LIMIT,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Run a named query on the ledger, or list the queries if no name is given. Writers may write meanwhile."""
    _one_format(as_json, as_csv)
    with common.clear_errors():
        from rose.ledger.reading import named

        if name is None:
            queries = [named.load(each) for each in named.names()]
            if as_json:
                common.print_json([query.as_dict() for query in queries])
            else:
                common.print_table(["query", "question"], [(query.name, query.question) for query in queries])
            return
        query = named.load(name)
        options = {"since": since, "until": until, "run_id": run, "device_id": device}
        texts = [f"{variable}={text}" for variable, text in options.items() if text is not None]
        given = named.values(query, named.assignments([*texts, *(assignments or [])]), now=datetime.now(UTC))
        if show:
            echo_data(named.script(query, given))
            return
        opened = common.open_ledger(ledger)
        result = named.run(opened, query, given, limit=limit, timeout_s=timeout)
    _print_result(result, as_json=as_json, as_csv=as_csv)


def schema_command(
    view: Annotated[str | None, typer.Argument(help="Describe only this view. Default: all views.")] = None,
    *,
    as_json: common.JsonOption = False,
) -> None:
    """Explain the views of a ledger and their columns."""
    with common.clear_errors():
        from rose.ledger.reading import dictionary

        views = dictionary.read()
        if view is not None:
            views = [dictionary.find(views, view)]
    if as_json:
        common.print_json([dataclasses.asdict(described) for described in views])
        return
    for described in views:
        echo(f"{described.name}: {described.about}")
        columns = [(column.name, column.type, column.about) for column in described.columns]
        common.print_table(["column", "type", "about"], columns)


def _one_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        common.fail("--json and --csv exclude one another; give one of them")


def _print_result(result: Result, *, as_json: bool, as_csv: bool) -> None:
    if as_json:
        common.print_json([dict(zip(result.columns, row, strict=True)) for row in result.rows])
    elif as_csv:
        written = io.StringIO()
        csv.writer(written, lineterminator="\n").writerows(csv_cells(row) for row in (result.columns, *result.rows))
        echo_data(written.getvalue())
    else:
        common.print_table(result.columns, result.rows)
    if result.truncated:
        echo(f"There are more than {len(result.rows)} rows; --limit shows more.", err=True)
