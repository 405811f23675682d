"""`rose ledger receipt | witness`: what proves a ledger to those who do not have it."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import iso
from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    fail,
    ledger_root,
    print_json,
    read_token,
    seconds,
    until_signal,
)
from rose.ledger.commands.maintain import LockModeOption, ObjectLockOption, StorageOption, lock_of, storage_options
from rose.ledger.commands.remote import TokenFileOption
from rose.ledger.layout import LedgerError
from rose.terminal import echo, echo_data, echo_error

if TYPE_CHECKING:
    from rose.ledger.evidence.witness import Ask, Checkpoint, Witness

KeyOption = Annotated[str | None, typer.Option("--key", help="Public key that must have signed the receipt.")]


def receipt(
    ledger: LedgerOption = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write; else rose-receipt-<ledger>-<time>.json here.")
    ] = None,
    to: Annotated[str | None, typer.Option(help="A folder, or a URL such as s3://bucket/prefix, for a copy.")] = None,
    object_lock: ObjectLockOption = None,
    lock_mode: LockModeOption = "compliance",
    storage_option: StorageOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there, and its anchor.")] = False,
    anchor: Annotated[
        str | None, typer.Option(help="Run this command with the receipt's path; keep what it prints beside it.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a signed receipt of all writers' newest links; kept elsewhere, it shows later what was changed since."""
    if object_lock is not None and to is None:
        fail("--object-lock is for the copy that --to makes; name its place")
    options, lock = storage_options(storage_option), lock_of(object_lock, lock_mode)
    with clear_errors():
        from rose.ledger import layout
        from rose.ledger.access import logged
        from rose.ledger.evidence import anchor as anchoring
        from rose.ledger.evidence import receipt as receipts
        from rose.ledger.evidence.witness import outside_a_ledger
        from rose.ledger.growth.store import Store

        root = layout.check(ledger_root(ledger))
        # Before anything is written.
        if anchor is not None:
            anchoring.words_of(anchor)
        store = None if to is None else Store(to, options, lock)
        if store is not None and (folder := store.local_folder()) is not None:
            outside_a_ledger(folder)
        with logged(root, "receipt", str(out or to or "")):
            taken = receipts.take(root)
        name = (
            f"rose-receipt-{taken.ledger[:8]}-{datetime.fromtimestamp(taken.at_us // 10**6, UTC):%Y%m%dT%H%M%SZ}.json"
        )
        path = (out or Path(name)).expanduser().resolve()
        outside_a_ledger(path)
        content = taken.content()
        anchoring.keep(path, content, force=force)
        facts: dict[str, Any] = {
            "file": str(path),
            "sha256": hashlib.sha256(content).hexdigest(),
            "ledger": taken.ledger,
            "writers": len(taken.writers),
            "events": taken.events,
            "key": taken.key,
            "copy": None,
            "locked_until": None,
            "anchor": None,
        }
        if store is not None:
            store.write(path.name, content)
            if store.read(path.name) != content:
                fail(f"{store.url(path.name)} is not what was written there; {path} is kept")
            facts |= {"copy": store.url(path.name), "locked_until": store.hold(path.name)}
        if anchor is not None:
            try:
                facts["anchor"] = str(anchoring.anchor(path, anchor))
            except anchoring.AnchorError as error:
                echo_error(error)
                raise typer.Exit(error.exit_code) from error
    if as_json:
        print_json(facts)
        return
    echo(f"{path}: {facts['writers']} writers, {taken.events:,} events of ledger {taken.ledger}")
    echo(f"signed by {taken.key}; SHA-256 of the file {facts['sha256']}")
    if store is not None:
        held = "" if facts["locked_until"] is None else f", locked until {facts['locked_until']}"
        echo(f"copied to {facts['copy']}{held}")
    if facts["anchor"] is not None:
        echo(f"anchored: {facts['anchor']}")
    if store is None:
        echo("Keep it where those who can write to the ledger cannot.")


def witness(
    state: Annotated[Path, typer.Option(help="Folder of this witness, for its key and what it countersigned.")],
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="Folder of the ledger, if it can be read here.")
    ] = None,
    server: Annotated[str | None, typer.Option(help="Its gateway: grpc://HOST:PORT or grpc+tls://HOST:PORT.")] = None,
    every: Annotated[str, typer.Option(help="Time between two receipts, such as 5m.")] = "5m",
    once: Annotated[bool, typer.Option("--once", help="Countersign one receipt, then end.")] = False,
    key: KeyOption = None,
    token_file: TokenFileOption = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Certificate, PEM, that the gateway's must come from.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Countersign a ledger's receipts, each only if it continues the last; exit code 1 if the ledger was rewritten."""
    if (server is None) == (ledger is None):
        fail("name the ledger's gateway by --server, or its folder by --ledger")
    every_s, ended = seconds(every), until_signal()
    with clear_errors():
        from rose.ledger.evidence import proof
        from rose.ledger.evidence.witness import RefusedError, Witness

        token = read_token(token_file, "ROSE_LEDGER_TOKEN")
        try:
            with Witness.open(state) as own:
                if server is None:
                    root = ledger_root(ledger)
                    asking: AbstractContextManager[Ask] = nullcontext(lambda asked: proof.answer(root, asked))
                else:
                    asking = _gateway(server, token, tls_ca)
                with asking as ask:
                    if once:
                        _print(own.countersign(ask, signed_by=key), as_json)
                    else:
                        _go_on(own, ask, key, every_s, ended, as_json)
        except RefusedError as error:
            echo_error(error)
            raise typer.Exit(error.exit_code) from error


@contextmanager
def _gateway(url: str, token: str | None, tls_ca: Path | None) -> Iterator[Ask]:
    from rose.ledger.hosts.remote import Gateway

    with Gateway(url, token=token, tls_ca=tls_ca) as gateway:
        yield gateway.receipt


def _go_on(own: Witness, ask: Ask, key: str | None, every_s: float, ended: threading.Event, as_json: bool) -> None:
    """Countersign until the signal; a ledger that cannot be asked is asked again. Raises RefusedError."""
    from rose.ledger.evidence.witness import RefusedError

    while not ended.is_set():
        began_s = time.monotonic()
        try:
            _print(own.countersign(ask, signed_by=key), as_json)
        except RefusedError:
            raise
        except LedgerError as error:
            echo_error(error)
        ended.wait(max(0.0, every_s - (time.monotonic() - began_s)))


def _print(done: Checkpoint, as_json: bool) -> None:
    receipt = done.receipt
    if as_json:
        facts: dict[str, Any] = {"file": str(done.path), "at": iso(receipt.at_us), "ledger": receipt.ledger}
        facts |= {"writers": len(receipt.writers), "events": receipt.events, "new_events": done.new_events}
        facts |= {"new_writers": done.new_writers, "key": receipt.key}
        # A line each: there is one every so often.
        echo_data(json.dumps(facts))
        return
    echo(
        f"{iso(receipt.at_us)} ledger {receipt.ledger}: {len(receipt.writers):,} writers, {receipt.events:,} events "
        f"(+{done.new_events:,}); countersigned in {done.path}"
    )
