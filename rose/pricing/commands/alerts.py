"""`rose alerts`: send what is new by the rules, list what holds, and test a destination."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose.ledger.commands import JsonOption, LedgerOption, ledger_root
from rose.pricing.commands.common import clear_errors, print_answer

alerts_app = typer.Typer(no_args_is_help=True, help="Alerts by mail, webhook and chat.")
FileOption = Annotated[Path, typer.Option("--alerts", envvar="ROSE_ALERTS", help="File of rules.")]


@alerts_app.command("check")
def check(file: FileOption = Path("alerts.toml"), ledger: LedgerOption = None, *, as_json: JsonOption = False) -> None:
    """Evaluate the rules and send each new alert once; exit code 1 if one did not arrive."""
    with clear_errors():
        from rose.pricing import alerts

        done = alerts.check(ledger_root(ledger), alerts.load(file))
        lines = [f"{done.sent} messages sent", *(f"{e.title} -> {e.to}: {e.error}" for e in done.failed)]
        print_answer(as_json, done.to_json(), lambda: lines)
        if done.failed:
            raise typer.Exit(1)


@alerts_app.command("show")
def show(file: FileOption = Path("alerts.toml"), ledger: LedgerOption = None, *, as_json: JsonOption = False) -> None:
    """Evaluate the rules and print what holds; nothing is sent."""
    with clear_errors():
        from rose.pricing import alerts

        outcomes = alerts.evaluate(ledger_root(ledger), alerts.load(file))
        lines = [f"{o.rule.name}: {a.title}. {a.text}" for o in outcomes for a in o.alerts]
        lines += [f"{o.rule.name}: not known: {o.unknown}" for o in outcomes if o.unknown is not None]
        lines += [f"{o.rule.name}: no alert" for o in outcomes if o.unknown is None and not o.alerts]
        data = [
            {"rule": o.rule.name, "unknown": o.unknown, "alerts": [asdict(alert) for alert in o.alerts]}
            for o in outcomes
        ]
        print_answer(as_json, data, lambda: lines)


@alerts_app.command("test")
def send_test(
    name: Annotated[str, typer.Argument(metavar="DESTINATION")], file: FileOption = Path("alerts.toml")
) -> None:
    """Send a test message to a destination; exit code 1 if it did not arrive."""
    with clear_errors():
        from rose.pricing import alerts

        error = alerts.send_test(alerts.load(file), name)
        print_answer(False, None, lambda: [f"{name}: {'sent' if error is None else error}"])
        if error is not None:
            raise typer.Exit(1)
