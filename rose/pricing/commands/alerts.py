"""The command `rose alerts`. It sends new alerts, lists active alerts, or tests a destination."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from rose.ledger.commands.common import JsonOption, LedgerOption, open_ledger
from rose.pricing.commands.common import clear_errors, print_answer


def alerts_command(
    file: Annotated[Path, typer.Option("--alerts", envvar="ROSE_ALERTS", help="The rules file.")] = Path("alerts.toml"),
    ledger: LedgerOption = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List active alerts, and send nothing.")] = False,
    test: Annotated[
        str | None, typer.Option("--test", metavar="DESTINATION", help="Only send a test message to this destination.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate the rules and send each new alert once. The exit code is 1 if an alert could not be sent."""
    with clear_errors():
        from rose.pricing import alerts

        config = alerts.load(file)
        if test is not None:
            error = alerts.send_test(config, test)
            print_answer(False, lambda: None, lambda: [f"{test}: {'sent' if error is None else error}"])
            arrived = error is None
        elif dry_run:
            alerts.destinations(config)  # A dry run fails where a round could not send.
            outcomes = alerts.evaluate(open_ledger(ledger), config)
            lines = [f"{o.rule.name}: {a.title}. {a.text}" for o in outcomes for a in o.alerts]
            lines += [f"{o.rule.name}: not known: {o.unknown}" for o in outcomes if o.unknown is not None]
            lines += [f"{o.rule.name}: no alert" for o in outcomes if o.unknown is None and not o.alerts]
            data = [
                {"rule": o.rule.name, "unknown": o.unknown, "alerts": [asdict(alert) for alert in o.alerts]}
                for o in outcomes
            ]
            print_answer(as_json, lambda: data, lambda: lines)
            arrived = True
        else:
            done = alerts.check(open_ledger(ledger), config)
            lines = [f"{done.sent} messages sent", *(f"{e.title} -> {e.to}: {e.error}" for e in done.failed)]
            print_answer(as_json, done.to_json, lambda: lines)
            arrived = not done.failed
        if not arrived:
            raise typer.Exit(1)
