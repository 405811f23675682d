"""The commands `rose sql`, `rose query`, `rose schema`, `rose ledger` and `rose token`."""

from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger
from rose.ledger.commands.ledger import ledger_app
from rose.ledger.commands.query import query_command, schema_command, sql_command
from rose.ledger.commands.tokens import token_app

__all__ = [
    "JsonOption",
    "LedgerOption",
    "ledger_app",
    "open_ledger",
    "query_command",
    "schema_command",
    "sql_command",
    "token_app",
]
