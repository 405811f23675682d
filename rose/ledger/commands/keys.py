"""`rose ledger keys | endorse`: who signs what in a ledger, and who vouches for it."""

from __future__ import annotations

from typing import Annotated

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    fail,
    ledger_root,
    print_json,
    print_table,
)
from rose.terminal import echo


def keys(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """The keys of a ledger, the writers that sign with them, and who endorsed them."""
    with clear_errors():
        from rose.ledger import layout
        from rose.ledger.checks import registry
        from rose.ledger.evidence.keys import load

        root = layout.check(ledger_root(ledger))
        own = load()
        signers = registry.described(registry.lines(root) or (), None if own is None else own.public)
    if as_json:
        print_json(signers)
        return
    columns = ["key", "writers", "endorsed by", "may endorse", "yours"]
    rows = [
        (entry["key"], ", ".join(entry["writers"]), _endorsement(entry), _yes(entry["may_endorse"]), _yes(entry["own"]))
        for entry in signers
    ]
    print_table(columns, rows)


def _yes(holds: bool) -> str | None:
    return "yes" if holds else None


def _endorsement(entry: dict[str, object]) -> str:
    if entry["root"]:
        return "nobody: the first key of the ledger"
    return str(entry["endorsed_by"] or "nobody: taken on first use")


def endorse(
    key: Annotated[str, typer.Argument(help="Public key, as `rose ledger keys` and `verify` show it.")],
    ledger: LedgerOption = None,
    writer: Annotated[
        str | None, typer.Option(help="Endorse it for this writer, which may not have used it yet; else for its own.")
    ] = None,
    *,
    may_endorse: Annotated[
        bool, typer.Option("--may-endorse", help="Let the key endorse keys of all writers from now on.")
    ] = False,
) -> None:
    """Say, signed with this user's key, that a key may sign for its writers."""
    with clear_errors():
        from rose.ledger import layout
        from rose.ledger.checks import registry
        from rose.ledger.evidence.keys import load

        root = layout.check(ledger_root(ledger))
        if (own := load()) is None:
            fail("there is no key here to endorse with; run this where a writer of the ledger ran")
        writers = registry.endorse(root, key, own, writer, endorses=may_endorse)
    echo(f"{key} is endorsed for {', '.join(writers)}.")
