"""`rose ledger verify | endorse | receipt | restore`: proves a ledger, endorses keys, and restores archived events."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.ledger.commands import common
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.checks.chain import WriterReport

_SOUND = "The ledger is sound."
_NOT_CHECKED = 3  # Exit code of a verification that found nothing wrong and could not check everything.
_FORMATS = ["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%SZ"]

ledger_app = typer.Typer(help="Verify a ledger, and prove to others that it is sound.", no_args_is_help=True)


@ledger_app.command()
def verify(
    ledger: common.LedgerOption = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="A receipt kept elsewhere, or a folder of receipts; may be repeated."),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Public key that must have signed the receipts.")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Check every byte, the chain of segments, all sequence numbers and the views. List the writers and their keys.

    Exit code 0: the ledger is sound. 1: something is wrong. 2: nothing could be verified. 3: nothing is wrong, but this
    version cannot read some structure and did not check it.
    """
    if key is not None and not against:
        common.fail("--key needs receipts: name them with --against")
    with common.clear_errors(), common.progress_bar("Verifying"):
        from rose.ledger import verified
        from rose.ledger import verify as verification
        from rose.ledger.access import logged
        from rose.ledger.evidence import continuation
        from rose.ledger.files import registry
        from rose.ledger.files.keys import load

        opened = common.open_ledger(ledger)
        receipts = continuation.read(against or [], key=key)
        with logged(opened, "verify", "every byte"):
            marks = continuation.marks(receipts)
            report = opened.verify(marks=marks)
            held = continuation.check(report, receipts) if receipts else None
        faulty, named = (None, []) if report.problems else verification.faulty_events(opened.folder)
        own = load()
        signers = registry.described(registry.sound_lines(opened.folder), None if own is None else own.public)
    problems = [*report.problems, *(held.problems if held else ())]
    unchecked = [*report.unchecked, *(held.unchecked if held else ())]
    if as_json:
        facts: dict[str, Any] = {
            "ledger": str(opened.folder),
            "ok": not problems and not unchecked,
            "writers": [dataclasses.asdict(writer) for writer in report.writers],
            "keys": signers,
            "problems": problems,
            "not_checked": unchecked,
            "notes": report.notes,
            "faulty_events": faulty,
            "faults": [dataclasses.asdict(fault) for fault in named],
        }
        common.print_json(facts | ({} if held is None else {"against": held.to_json()}))
    else:
        columns = ["writer", "segments", "events", "signed", "first_seq", "last_seq", "problems"]
        rows = [
            (w.writer, w.segments, w.events, w.signed_events, w.first_seq, w.last_seq, len(w.problems))
            for w in report.writers
        ]
        common.print_table(columns, rows)
        common.print_table(["key", "writers", "endorsed by", "may endorse", "yours"], list(map(_key_cells, signers)))
        echo(verified.text(opened.folder))
        echo(_signed_text(report.writers), *report.notes, *(held.lines if held else ()))
        echo(*([*problems, *(f"{structure}: not checked" for structure in unchecked)] or [_SOUND]))
        if faulty:
            echo(f"{faulty:,} faults of events; the view faulty_event lists them, and other views omit these events:")
            echo(*(f"  {fault}" for fault in named))
    if problems or unchecked:
        raise typer.Exit(1 if problems else _NOT_CHECKED)


def _signed_text(writers: Sequence[WriterReport]) -> str:
    events, signed = sum(w.events for w in writers), sum(w.signed_events for w in writers)
    keys = {signer.key for w in writers for signer in w.signers if signer.key}
    text = f"{signed:,} of {events:,} events are signed, by {len(keys)} key{'' if len(keys) == 1 else 's'}."
    if unsigned := [w.writer for w in writers if w.signed_events < w.events]:
        text += f" Not signed, or not from the start: {', '.join(unsigned)}."
    return text


def _key_cells(entry: dict[str, Any]) -> list[str | None]:
    endorser = "none: first key of the ledger" if entry["root"] else entry["endorsed_by"]
    endorsed = endorser or "none: accepted on first use"
    yes = ["yes" if entry[name] else None for name in ("may_endorse", "own")]
    return [entry["key"], ", ".join(entry["writers"]), endorsed, *yes]


@ledger_app.command()
def endorse(
    key: Annotated[str, typer.Argument(help="Public key, as `rose ledger verify` shows it.")],
    ledger: common.LedgerOption = None,
    writer: Annotated[
        str | None,
        typer.Option(
            help="Endorse the key for this writer, which may not have used it yet. Default: the writers that use it."
        ),
    ] = None,
    *,
    may_endorse: Annotated[
        bool, typer.Option("--may-endorse", help="Let the key endorse keys of all writers from now on.")
    ] = False,
) -> None:
    """Endorse a key: sign it with this user's key. Writers may then sign with the endorsed key."""
    with common.clear_errors():
        from rose.ledger.files import registry
        from rose.ledger.files.keys import load

        opened = common.open_ledger(ledger)
        if (own := load()) is None:
            common.fail("there is no key here to endorse with; run this where a writer of the ledger ran")
        writers = registry.endorse(opened.folder, key, own, writer, endorses=may_endorse)
    echo(f"{key} is endorsed for {', '.join(writers)}.")


@ledger_app.command()
def receipt(
    ledger: common.LedgerOption = None,
    out: Annotated[
        Path | None, typer.Option(help="New file to write. Default: rose-receipt-<ledger>-<time>.json here.")
    ] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Write a signed receipt of all events so far. If kept elsewhere, it reveals later changes of these events."""
    with common.clear_errors():
        from rose.ledger.access import logged
        from rose.ledger.evidence import receipt as receipts

        opened = common.open_ledger(ledger)
        with logged(opened, "receipt", str(out or "")):
            taken = receipts.take(opened)
        at = datetime.fromtimestamp(taken.at_us // 10**6, UTC)
        path = (out or Path(f"rose-receipt-{taken.ledger[:8]}-{at:%Y%m%dT%H%M%SZ}.json")).expanduser().resolve()
        content = taken.content()
        receipts.keep(path, content)
    sha256 = hashlib.sha256(content).hexdigest()
    if as_json:
        counts = {"writers": len(taken.writers), "events": taken.events}
        common.print_json({"file": str(path), "sha256": sha256, "ledger": taken.ledger, **counts, "key": taken.key})
        return
    echo(f"{path}: {len(taken.writers)} writers, {taken.events:,} events of ledger {taken.ledger}")
    echo(f"signed by {taken.key}; the file's SHA-256 is {sha256}")
    echo("Keep the file where people who may write to the ledger cannot change it.")


@ledger_app.command()
def restore(
    from_url: Annotated[str, typer.Option("--from", help="Where the files were archived: a folder or a URL.")],
    ledger: common.LedgerOption = None,
    *,
    since: Annotated[datetime | None, typer.Option(formats=_FORMATS, help="Events from this time on, UTC.")] = None,
    until: Annotated[datetime | None, typer.Option(formats=_FORMATS, help="Events before this time, UTC.")] = None,
    as_json: common.JsonOption = False,
) -> None:
    """Bring back all archived events, or the events of a period. Exit code 1: a file was not found in the archive."""
    with common.clear_errors(), common.progress_bar("Restoring"):
        from rose.ledger.growth.archive import restore as run

        done = run(common.open_ledger(ledger), from_url, since_us=_utc_us(since), until_us=_utc_us(until))
    if as_json:
        common.print_json(dataclasses.asdict(done))
    else:
        echo(f"{done.parts} files with {done.events:,} events ({done.bytes:,} bytes) brought back from {done.url}.")
        for file in done.missing:
            echo(f"Not found: {file}")
    if done.missing:
        raise typer.Exit(1)


def _utc_us(time: datetime | None) -> int | None:
    return None if time is None else int(time.replace(tzinfo=UTC).timestamp()) * 1_000_000
