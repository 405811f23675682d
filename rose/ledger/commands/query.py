"""`rose sql`: reading a ledger from the command line."""

from __future__ import annotations

import csv
import sys
from typing import Annotated

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    cell_text,
    clear_errors,
    fail,
    ledger_root,
    print_json,
    print_table,
)


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
        fail("--json and --csv exclude one another; give one of them")
    with clear_errors():
        from rose.ledger.query import query as run

        result = run(ledger_root(ledger), sys.stdin.read() if query == "-" else query, limit=limit, timeout_s=timeout)
    if as_json:
        print_json([dict(zip(result.columns, row, strict=True)) for row in result.rows])
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(result.columns)
        writer.writerows([["" if cell is None else cell_text(cell) for cell in row] for row in result.rows])
    else:
        print_table(result.columns, result.rows)
    if result.truncated:
        print(f"There are more than {limit} rows; --limit shows more.", file=sys.stderr)
