"""`rose ledger verify | info | runs`: what a ledger holds, and whether it is sound."""

from __future__ import annotations

import dataclasses

import typer

from rose.ledger.commands.common import (
    JsonOption,
    LedgerOption,
    clear_errors,
    ledger_root,
    print_json,
    print_table,
    read_figure,
)


def verify(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """Check every byte, the chain of segments and every seq; exit code 1 if anything is wrong."""
    with clear_errors():
        from rose.ledger.verify import verify as run

        report = run(ledger_root(ledger))
    if as_json:
        writers = [dataclasses.asdict(writer) for writer in report.writers]
        print_json({"ledger": str(report.root), "ok": report.ok, "writers": writers})
    else:
        columns = ["writer", "segments", "events", "first_seq", "last_seq", "problems"]
        rows = [(w.writer, w.segments, w.events, w.first_seq, w.last_seq, len(w.problems)) for w in report.writers]
        print_table(columns, rows)
        print("The ledger is sound." if report.ok else "\n".join(report.problems))
    if not report.ok:
        raise typer.Exit(1)


def info(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """What a ledger holds: events by kind and provenance, and the files they lie in."""
    with clear_errors():
        from rose.ledger import layout

        root = layout.check(ledger_root(ledger))
        columns, kinds = read_figure(root, "figures/ledger_kinds.sql")
        files = [path for folder in ("live", "compacted") for path in (root / folder).rglob("*.parquet")]
        facts = {
            "ledger": str(root),
            "format": layout.FORMAT_VERSION,
            "writers": layout.writers(root),
            "files": len(files),
            "bytes": sum(path.stat().st_size for path in files),
        }
    if as_json:
        print_json({**facts, "kinds": [dict(zip(columns, row, strict=True)) for row in kinds]})
        return
    print(f"{root}: format {facts['format']}, {facts['files']} files, {facts['bytes']:,} bytes")
    print(f"writers: {', '.join(layout.writers(root)) or 'none yet'}")
    print_table(columns, kinds)


def runs(ledger: LedgerOption = None, as_json: JsonOption = False) -> None:
    """The runs of a ledger, oldest first."""
    with clear_errors():
        columns, rows = read_figure(ledger_root(ledger), "figures/ledger_runs.sql")
    if as_json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
