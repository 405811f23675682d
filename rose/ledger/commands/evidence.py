"""`rose ledger receipt | endorse`: what proves a ledger to those who do not have it, and who signs it."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    fail,
    ledger_root,
    print_json,
)
from rose.ledger.commands.maintain import StorageOption, storage_options
from rose.terminal import echo


def receipt(
    ledger: LedgerOption = None,
    out: Annotated[
        Path | None, typer.Option(help="New file to write; else rose-receipt-<ledger>-<time>.json here.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="A folder, or a URL such as s3://bucket/prefix, for a copy.")] = None,
    storage_option: StorageOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a signed receipt of all writers' newest links; kept elsewhere, it shows later what was changed since."""
    options = storage_options(storage_option)
    with clear_errors():
        from rose.ledger import layout
        from rose.ledger.access import logged
        from rose.ledger.evidence import receipt as receipts
        from rose.ledger.growth.store import Store

        root = layout.check(ledger_root(ledger))
        # Before anything is written.
        store = None if to is None else Store(to, options)
        if store is not None and (folder := store.local_folder()) is not None:
            receipts.check_outside_ledgers(folder)
        with logged(root, "receipt", str(out or to or "")):
            taken = receipts.take(root)
        name = (
            f"rose-receipt-{taken.ledger[:8]}-{datetime.fromtimestamp(taken.at_us // 10**6, UTC):%Y%m%dT%H%M%SZ}.json"
        )
        path = (out or Path(name)).expanduser().resolve()
        content = taken.content()
        receipts.keep(path, content)
        sha256 = hashlib.sha256(content).hexdigest()
        copy = None
        if store is not None:
            store.write(path.name, content)
            copy = store.url(path.name)
            if store.read(path.name) != content:
                fail(f"{copy} is not what was written there; {path} is kept")
    if as_json:
        print_json(
            {
                "file": str(path),
                "sha256": sha256,
                "ledger": taken.ledger,
                "writers": len(taken.writers),
                "events": taken.events,
                "key": taken.key,
                "copy": copy,
            }
        )
        return
    echo(f"{path}: {len(taken.writers)} writers, {taken.events:,} events of ledger {taken.ledger}")
    echo(f"signed by {taken.key}; SHA-256 of the file {sha256}")
    echo("Keep it where those who can write to the ledger cannot." if copy is None else f"copied to {copy}")


def endorse(
    key: Annotated[str, typer.Argument(help="Public key, as `rose ledger info` and `verify` show it.")],
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
