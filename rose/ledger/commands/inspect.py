"""`rose ledger verify | info`: what a ledger holds, and whether it is sound."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rose.clock import utc_us
from rose.ledger.commands import readable
from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    RawOption,
    clear_errors,
    fail,
    ledger_root,
    print_json,
    print_table,
    read_figure,
)
from rose.ledger.commands.jobs import short, time_text
from rose.terminal import echo

if TYPE_CHECKING:
    from rose.ledger.checks.chain import WriterReport
    from rose.ledger.checks.faults import Fault

_SOUND = "The ledger is sound."
#: Exit code of a verification that found nothing wrong and could not check everything.
_NOT_CHECKED = 3


def verify(
    ledger: LedgerOption = None,
    incremental: Annotated[
        bool, typer.Option("--incremental", help="Trust files that the last verification read, by size and times.")
    ] = False,
    against: Annotated[
        list[Path] | None, typer.Option("--against", help="A receipt, or a folder of them; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option(help="Public key that must have signed the receipts.")] = None,
    quarantine: Annotated[
        list[str] | None,
        typer.Option(help="First move this damaged file out of the readers' way; may be repeated."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check every byte, the chain of segments, every seq and the views.

    Exit code 0: sound. 1: something is wrong. 2: nothing could be verified. 3: nothing is wrong, and this version
    cannot read some structure, so that it is not checked.
    """
    if key is not None and not against:
        fail("--key is for the receipts that --against names")
    if incremental and against:
        fail("--against reads every byte, and --incremental trusts what may have been forged; give one of the two")
    with clear_errors():
        from rose.ledger import verified
        from rose.ledger import verify as verification
        from rose.ledger.access import logged
        from rose.ledger.checks import faults
        from rose.ledger.evidence import continuation

        root = ledger_root(ledger)
        if quarantine:
            from rose.ledger.growth import quarantine as damaged

            for path in damaged.quarantine(root, quarantine):
                echo(f"Moved to {path}.", err=as_json)
        receipts = continuation.read(against or [], key=key)
        with logged(root, "verify", "new files" if incremental else "every byte"):
            if incremental:
                report = verification.verify_changed(root)
            else:
                report = verification.verify(root, marks=continuation.marks(receipts))
            held = continuation.check(report, receipts) if receipts else None
        # Of damaged files nothing can be asked.
        faulty, named = (None, []) if report.problems else faults.listed(report.root)
    problems = [*report.problems, *(held.problems if held else ())]
    unchecked = [*report.unchecked, *(held.unchecked if held else ())]
    if as_json:
        writers = [dataclasses.asdict(writer) for writer in report.writers]
        ok = not problems and not unchecked
        facts = {"ledger": str(report.root), "ok": ok, "writers": writers, "problems": problems}
        facts |= {"not_checked": unchecked, "notes": report.notes, "faulty_events": faulty}
        facts |= {"faults": [dataclasses.asdict(fault) for fault in named]}
        if held is not None:
            facts["against"] = held.to_json()
        print_json(facts)
    else:
        columns = ["writer", "segments", "events", "signed", "first_seq", "last_seq", "problems"]
        rows = [
            (w.writer, w.segments, w.events, w.signed_events, w.first_seq, w.last_seq, len(w.problems))
            for w in report.writers
        ]
        print_table(columns, rows)
        echo(verified.text(report.root))
        echo(_signed_text(report.writers), *report.notes, *(held.lines if held else ()))
        echo(*([*problems, *(f"{structure}: not checked" for structure in unchecked)] or [_SOUND]))
        _print_faults(faulty, named)
    if problems or unchecked:
        raise typer.Exit(1 if problems else _NOT_CHECKED)


def _signed_text(writers: Sequence[WriterReport]) -> str:
    """How many events are signed, by how many keys, and whose are not."""
    events, signed = sum(w.events for w in writers), sum(w.signed_events for w in writers)
    keys = {signer.key for w in writers for signer in w.signers if signer.key}
    text = f"{signed:,} of {events:,} events are signed, by {len(keys)} key{'' if len(keys) == 1 else 's'}."
    if unsigned := [w.writer for w in writers if w.signed_events < w.events]:
        text += f" Not signed, or not from the start: {', '.join(unsigned)}."
    return text


def _print_faults(count: int | None, named: Sequence[Fault]) -> None:
    if count:
        echo(
            f"{count:,} faults of events; the view faulty_event lists them, and other views leave out what breaks them:"
        )
        echo(*(f"  {fault}" for fault in named))


def info(ledger: LedgerOption = None, as_json: JsonOption = False, raw: RawOption = False) -> None:
    """What a ledger holds: runs, events, how far writers and jobs are, keys that sign it, and its size on disk."""
    with clear_errors():
        from rose.ledger import layout, verified
        from rose.ledger.checks import faults, registry
        from rose.ledger.evidence.keys import load
        from rose.ledger.growth import rollup
        from rose.ledger.upkeep import jobs, vitals

        root = layout.check(ledger_root(ledger))
        columns, kinds = read_figure(root, "ledger/kinds.sql")
        run_columns, runs = read_figure(root, "ledger/runs.sql")
        _, dropped = read_figure(root, "metrics/dropped.sql")
        own = load()
        signers = registry.described(registry.lines(root) or (), None if own is None else own.public)
        faulty, named = faults.listed(root)
        now_us = utc_us()
        files = [path for folder in ("live", "compacted") for path in (root / folder).rglob("*.parquet")]
        covered = rollup.covered(root)
        facts: dict[str, Any] = {
            "ledger": str(root),
            "format": layout.FORMAT_VERSION,
            "verified": None if (last := verified.state(root)) is None else last.to_json(),
            "writers": layout.writers(root),
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
            "runs": [dict(zip(run_columns, row, strict=True)) for row in runs],
            "kinds": [dict(zip(columns, row, strict=True)) for row in kinds],
            "progress": [
                {
                    **dataclasses.asdict(state),
                    "age_s": None if state.newest_us is None else (now_us - state.newest_us) / 1e6,
                    "rolled_up": covered.get(state.writer, 0),
                }
                for state in vitals.writer_states(root)
            ],
            "dropped": sum(row[-1] for row in dropped),
            "faulty_events": faulty,
            "keys": signers,
            "folders": vitals.folder_bytes(root),
            "jobs": [dataclasses.asdict(last) for last in jobs.history(root).values()],
        }
    if as_json:
        print_json(facts)
        return
    size = (lambda size_bytes: f"{size_bytes:,} bytes") if raw else readable.size
    echo(f"{root}: format {facts['format']}, {facts['files']} files, {size(facts['bytes'])}")
    echo(verified.text(root))
    echo("on disk: " + ", ".join(f"{name} {size(used)}" for name, used in facts["folders"].items()))
    echo(f"dropped events: {facts['dropped']:,}")
    _print_faults(faulty, named)
    print_table(run_columns, runs, raw=raw)
    print_table(columns, kinds, raw=raw)
    print_table(
        ["writer", "events", "rolled up", "newest", "age"],
        [
            (w["writer"], f"{w['events']:,}", f"{w['rolled_up']:,}", time_text(w["newest_us"]), _age(w["age_s"]))
            for w in facts["progress"]
        ],
    )
    print_table(
        ["job", "last run", "result", "took", "said"],
        [
            (
                job["job"],
                time_text(job["ended_us"]),
                "ok" if job["ok"] else "failed",
                f"{job['duration_ns'] / 1e9:.1f} s",
                short(job["error"] or job["result_json"]),
            )
            for job in facts["jobs"]
        ],
    )
    print_table(
        ["key", "writers", "endorsed by", "may endorse", "yours"],
        [
            (key["key"], ", ".join(key["writers"]), _endorsement(key), _yes(key["may_endorse"]), _yes(key["own"]))
            for key in signers
        ],
    )


def _age(age_s: float | None) -> str | None:
    if age_s is None:
        return None
    return f"{age_s:.0f} s" if age_s < 600 else f"{age_s / 3600:,.1f} h"


def _yes(holds: bool) -> str | None:
    return "yes" if holds else None


def _endorsement(entry: dict[str, object]) -> str:
    if entry["root"]:
        return "nobody: the first key of the ledger"
    return str(entry["endorsed_by"] or "nobody: taken on first use")
