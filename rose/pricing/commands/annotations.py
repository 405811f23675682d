"""`rose note` and `rose view`: notes on a day, and saved views of the dashboard."""

from __future__ import annotations

from typing import Annotated

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import WhoOption, clear_errors, print_answer

note_app = typer.Typer(no_args_is_help=True, help="Notes on a day, for whoever reads its figures.")
view_app = typer.Typer(no_args_is_help=True, help="Names for what the dashboard shows.")


@note_app.command("add")
def add_note(
    day: Annotated[str, typer.Option("--date", help="The UTC day, such as 2026-11-03.")],
    text: Annotated[str, typer.Option("--text", help="What happened, in one line.")],
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Put a note on a day."""
    with clear_errors():
        from rose.pricing.annotations import notes

        made = notes.add(ledger_root(ledger), day, text, by=who)
        print_answer(as_json, made.to_json(), lambda: [f"note {made.note_id} on {made.day}: {made.text}"])


@note_app.command("list")
def list_notes(
    ledger: LedgerOption = None,
    *,
    removed: Annotated[bool, typer.Option("--removed", help="Those that were removed, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The notes by day."""
    with clear_errors():
        from rose.clock import iso
        from rose.pricing.annotations import notes
        from rose.pricing.table import Table, columns

        known = notes.load(ledger_root(ledger), removed=removed)
        names = ("date", "text", "by", "id", *(["removed by"] if removed else []))
        rows = tuple(
            (
                str(note.day), note.text, f"{note.by}, {iso(note.at_us)[:10]}", note.note_id,
                *([note.removed_by or ""] if removed else []),
            )
            for note in known
        )  # fmt: skip
        table = Table(title="Notes", columns=columns(*names, text=names, whole=("id",)), rows=rows)
        shown = [table] if known else ["there is no note yet; `rose note add` makes one"]
        print_answer(as_json, [note.to_json() for note in known], lambda: shown)


@note_app.command("remove")
def remove_note(
    note_id: Annotated[str, typer.Argument(help="Its id; `rose note list` has them.", metavar="ID")],
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Remove a note; that it was there stays in the ledger."""
    with clear_errors():
        from rose.pricing.annotations import notes

        gone = notes.remove(ledger_root(ledger), note_id, by=who)
        print_answer(as_json, gone.to_json(), lambda: [f"removed the note on {gone.day}: {gone.text}"])


@view_app.command("save")
def save_view(
    name: Annotated[str, typer.Argument(help="Letters, digits, `-`, `_` and `.`.")],
    query: Annotated[str, typer.Option("--query", help="What follows the `?` in the dashboard's address.")],
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Save a view under a name; the last one that was saved holds."""
    with clear_errors():
        from rose.pricing.annotations import views

        made = views.save(ledger_root(ledger), name, query, by=who)
        print_answer(as_json, made.to_json(), lambda: [f"view {made.name}: {made.query}"])


@view_app.command("list")
def list_views(ledger: LedgerOption = None, *, as_json: JsonOption = False) -> None:
    """The saved views."""
    with clear_errors():
        from rose.clock import iso
        from rose.pricing.annotations import views
        from rose.pricing.table import Table, columns

        known = list(views.load(ledger_root(ledger)).values())
        names = ("name", "query", "by")
        rows = tuple((view.name, view.query, f"{view.by}, {iso(view.at_us)[:10]}") for view in known)
        table = Table(title="Saved views", columns=columns(*names, text=names), rows=rows)
        shown = [table] if known else ["no view is saved yet; `rose view save` saves one"]
        print_answer(as_json, [view.to_json() for view in known], lambda: shown)


@view_app.command("remove")
def remove_view(
    name: Annotated[str, typer.Argument(help="Its name; `rose view list` has them.")],
    ledger: LedgerOption = None,
    who: WhoOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Remove a saved view; that it was there stays in the ledger."""
    with clear_errors():
        from rose.pricing.annotations import views

        gone = views.remove(ledger_root(ledger), name, by=who)
        print_answer(as_json, gone.to_json(), lambda: [f"removed the view {gone.name}"])
