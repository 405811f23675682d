"""`rose sql`, `rose query`, `rose schema` and `rose ledger` on the command line."""

from __future__ import annotations

from collections.abc import Callable

import typer

from rose.ledger.commands import evidence, inspect, maintain, remote
from rose.ledger.commands.common import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.query import query_command, schema_command, sql_command
from rose.ledger.commands.tokens import token_app

__all__ = [
    "JsonOption",
    "LedgerOption",
    "ledger_app",
    "ledger_root",
    "query_command",
    "schema_command",
    "sql_command",
    "token_app",
]

ledger_app = typer.Typer(help="Check, describe and compact a ledger.", no_args_is_help=True)
_COMMANDS: tuple[Callable[..., None], ...] = (
    inspect.verify,
    inspect.info,
    evidence.endorse,
    maintain.compact,
    maintain.roll_up,
    maintain.archive,
    maintain.restore,
    evidence.receipt,
    remote.forward,
)
for command in _COMMANDS:
    ledger_app.command()(command)
