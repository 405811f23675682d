"""`rose alerts`: what holds now, one round of messages, what became of them, and a test of a channel."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.ledger.commands.common import progress_bar
from rose.pricing.commands.common import clear_errors, print_answer

if TYPE_CHECKING:
    from rose.pricing.alerts.log import Entry
    from rose.pricing.alerts.rules import Outcome
    from rose.pricing.table import Element

alerts_app = typer.Typer(no_args_is_help=True, help="Alerts and scheduled reports, by webhook and e-mail.")

FileOption = Annotated[
    Path, typer.Option("--alerts", envvar="ROSE_ALERTS", help="File of channels, rules and reports.")
]


@alerts_app.command("check")
def check(file: FileOption = Path("alerts.toml"), ledger: LedgerOption = None, *, as_json: JsonOption = False) -> None:
    """Evaluate the rules now and print what holds; nothing is sent or recorded."""
    with clear_errors():
        from rose.pricing.alerts import config, run

        asked = config.load(file)
        with progress_bar("Looking"):
            outcomes = run.check(ledger_root(ledger), asked)
        print_answer(as_json, run.to_json(outcomes), lambda: _outcomes(outcomes))


@alerts_app.command("run")
def run_once(
    file: FileOption = Path("alerts.toml"), ledger: LedgerOption = None, *, as_json: JsonOption = False
) -> None:
    """Evaluate the rules, queue what is due and send what waits, once; exit code 1 if something was not delivered."""
    with clear_errors():
        from rose.pricing.alerts import config, run

        asked = config.load(file)
        with progress_bar("Looking and sending"):
            done = run.run(ledger_root(ledger), asked)
        data = done.result | {"messages": [entry.to_json() for entry in done.tried]}
        not_made = [f"report {name} could not be made: {why}" for name, why in done.not_made.items()]
        print_answer(as_json, data, lambda: [*_outcomes(done.outcomes), *map(_line, done.tried), *not_made])
        if not_made or any(entry.state != "delivered" for entry in done.tried):
            raise typer.Exit(1)


@alerts_app.command("list")
def list_messages(
    ledger: LedgerOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Show so many, the newest; JSON has all.")] = 50,
    *,
    as_json: JsonOption = False,
) -> None:
    """Every message and report: its channel, and whether it was delivered, waits for another try or was given up."""
    with clear_errors():
        from rose.clock import iso
        from rose.pricing.alerts import log
        from rose.pricing.table import Table, columns

        entries = log.load(ledger_root(ledger))
        names = ("queued", "channel", "kind", "title", "state", "tries", "error")
        rows = tuple(
            (
                f"{iso(entry.message.at_us)[:19]}Z",
                entry.message.channel,
                entry.message.kind,
                entry.message.title,
                entry.state,
                str(entry.tries),
                entry.error or "",
            )
            for entry in entries[-limit:]
        )
        left_out = f"; the newest {limit} of {len(entries)}" if len(entries) > limit else ""
        table = Table(title=f"Messages{left_out}", columns=columns(*names, text=names), rows=rows)
        shown: list[Element] = [table] if entries else ["no message was queued yet"]
        print_answer(as_json, [entry.to_json() for entry in entries], lambda: shown)


@alerts_app.command("send")
def send(
    channel: Annotated[str, typer.Option("--test", help="The channel that a test message is sent to.")],
    file: FileOption = Path("alerts.toml"),
    ledger: LedgerOption = None,
    *,
    as_json: JsonOption = False,
) -> None:
    """Send a test message to a channel, once; exit code 1 if it was not taken."""
    with clear_errors():
        from rose.pricing.alerts import config, run

        tried = run.send_test(ledger_root(ledger), config.load(file), channel)
        print_answer(as_json, tried.to_json(), lambda: [_line(tried)])
        if tried.state != "delivered":
            raise typer.Exit(1)


def _outcomes(outcomes: tuple[Outcome, ...]) -> Iterator[Element]:
    for outcome in outcomes:
        if outcome.unknown is not None:
            yield f"{outcome.rule.name}: not known: {outcome.unknown}"
        elif not outcome.alerts:
            yield f"{outcome.rule.name}: nothing holds"
        for alert in outcome.alerts:
            yield f"{outcome.rule.name}: {alert.title}. {alert.text}"


def _line(entry: Entry) -> str:
    message, error = entry.message, "" if entry.error is None else f": {entry.error}"
    return f"{message.subject} -> {message.channel}: {entry.state} after {entry.tries} tries{error}"
