"""`rose ledger compact`: what keeps a ledger small and fast."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from rose.ledger.commands.common import JsonOption, LedgerOption, clear_errors, ledger_root, print_json


def compact(
    ledger: LedgerOption = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Remove what was merged at least this many seconds ago.", show_default=True)
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Merge small closed files into large ones, also while the ledger is written and read."""
    with clear_errors():
        from rose.ledger.compaction import compact as run

        done = run(ledger_root(ledger), grace)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    print(
        f"Merged {done.merged_segments} segments into {done.files_written} files; "
        f"removed {done.parts_removed} parts that were merged earlier."
    )
