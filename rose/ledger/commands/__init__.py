"""`rose sql` and `rose ledger` on the command line."""

from __future__ import annotations

import typer

from rose.ledger.commands import inspect, maintain
from rose.ledger.commands.common import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.query import sql_command

__all__ = ["JsonOption", "LedgerOption", "ledger_app", "ledger_root", "sql_command"]

ledger_app = typer.Typer(help="Check, describe and compact a ledger.", no_args_is_help=True)
for command in (inspect.verify, inspect.info, inspect.runs, maintain.compact):
    ledger_app.command()(command)
