"""The `rose` command. Each command imports its heavy packages itself, to keep `rose --help` fast."""

from __future__ import annotations

import functools
import itertools
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from rose.ledger.commands.common import JsonOption, LedgerOption
from rose.ledger.commands.ledger import ledger_app
from rose.ledger.commands.query import query_command, schema_command, sql_command
from rose.ledger.commands.tokens import token_app
from rose.pricing.commands import spend
from rose.pricing.commands.alerts import alerts_command
from rose.pricing.commands.api import api_command
from rose.pricing.commands.books import books_app, explain_command
from rose.pricing.commands.export import export_command
from rose.pricing.commands.jobs import jobs_app
from rose.pricing.commands.price import price_command
from rose.pricing.commands.run import borrow_command, correct_command, report_command
from rose.runtime.coserving.attach.commands import attach_command, detach_command
from rose.runtime.engines.serve_cpu import serve_cpu_command
from rose.runtime.service import commands as service
from rose.runtime.training.commands import train_command
from rose.terminal import echo, echo_data, echo_error, user_errors

if TYPE_CHECKING:
    from rose.config import FleetConfig


class _RoseGroup(TyperGroup):
    """Commands that refuse empty arguments, which come from unset shell variables."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for previous, argument in itertools.pairwise(["rose", *args]):
            if argument == "" or (argument.startswith("--") and argument.endswith("=")):
                name = argument[:-1] or (previous if previous.startswith("-") else f"the argument after `{previous}`")
                echo_error(f"{name} is empty: give a value, or leave it out")
                raise typer.Exit(2)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="rose",
    cls=_RoseGroup,
    help="Borrow idle time and KV memory of LLM serving GPUs for RL rollouts, with exact accounts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_FLEET, _COST, _LEDGER = "Fleet", "Cost", "Ledger"
app.command("status", rich_help_panel=_FLEET)(service.status_command)
app.command("train", rich_help_panel=_FLEET)(train_command)
app.command("drain", rich_help_panel=_FLEET)(service.drain_command)
app.command("reload", rich_help_panel=_FLEET)(service.reload_command)
app.command("restart", rich_help_panel=_FLEET)(service.restart_command)
app.command("down", rich_help_panel=_FLEET)(service.down_command)
app.command("attach", rich_help_panel=_FLEET)(attach_command)
app.command("detach", rich_help_panel=_FLEET)(detach_command)
app.command("serve-cpu", rich_help_panel=_FLEET)(serve_cpu_command)
app.add_typer(token_app, name="token", rich_help_panel=_FLEET)
app.command("report", rich_help_panel=_COST)(report_command)
app.command("cost", rich_help_panel=_COST)(spend.cost_command)
app.command("changes", rich_help_panel=_COST)(spend.changes_command)
app.command("saved", rich_help_panel=_COST)(spend.saved_command)
app.command("forecast", rich_help_panel=_COST)(spend.forecast_command)
app.command("reconcile", rich_help_panel=_COST)(spend.reconcile_command)
app.command("explain", rich_help_panel=_COST)(explain_command)
app.command("price", rich_help_panel=_COST)(price_command)
app.command("borrow", rich_help_panel=_COST)(borrow_command)
app.command("correct", rich_help_panel=_COST)(correct_command)
app.add_typer(books_app, name="books", rich_help_panel=_COST)
app.command("alerts", rich_help_panel=_COST)(alerts_command)
app.command("export", rich_help_panel=_COST)(export_command)
app.command("api", rich_help_panel=_COST)(api_command)
app.command("sql", rich_help_panel=_LEDGER)(sql_command)
app.command("query", rich_help_panel=_LEDGER)(query_command)
app.command("schema", rich_help_panel=_LEDGER)(schema_command)
app.add_typer(ledger_app, name="ledger", rich_help_panel=_LEDGER)
app.add_typer(jobs_app, name="jobs", rich_help_panel=_LEDGER)


def _show_version(show: bool) -> None:
    if show:
        from importlib import metadata

        echo(metadata.version("rose-serving"))
        raise typer.Exit


@app.callback()
def _rose(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


@app.command("up", rich_help_panel=_FLEET)
@functools.wraps(service.up_command)
def up(config: Path, **options: Any) -> None:
    with user_errors():
        from rose.runtime.service import up as _  # noqa: F401 - its missing packages are named before those of prices

        _load(config)
    service.up_command(config, **options)


@app.command(rich_help_panel=_FLEET)
def demo(
    ledger: LedgerOption = None,
    trace: Annotated[
        str | None, typer.Option(help="Serving traffic: a CSV file in the columns of the public Azure traces.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Number of RL steps.", min=1)] = None,
    seconds: Annotated[float, typer.Option(help="Time limit in seconds.", min=1)] = 150.0,
) -> None:
    """Run a fleet on two cores of this machine with traffic and a trainer, then report its cost."""
    from rose.config.example import demo as demo_fleet

    with user_errors():
        fleet = demo_fleet(sorted(os.sched_getaffinity(0)), ledger or Path("ledger"), trace, steps)
        # Exit code 1: a part failed.
        priced = _has_prices(fleet)  # A price error stops the demo here.
        from rose.runtime.service.demo import run_in_console

        if priced:
            from rose.pricing.answers import run_report  # noqa: F401 - a missing package stops the demo here

        run_id = run_in_console(fleet, seconds)
    if not (shares := _harvest(fleet.ledger, run_id)):
        echo(f"stopped before any device was used, so there are no costs. Logs: {fleet.ledger}/logs")
        return
    if "steps" not in shares:
        echo(f"stopped before the end of the first step, with the costs below. Logs: {fleet.ledger}/logs")
    labels = {"run": "over the run", "steps": "over the RL steps", "rollouts": "while rollouts were played"}
    said = [f"{share:.1%} {label}" for name, label in labels.items() if (share := shares.get(name)) is not None]
    if priced:
        report_command(ledger=fleet.ledger, run=run_id, price_book=fleet.price_book)
    echo(
        "",
        f"Idle serving time put to work (harvest share): {', '.join(said) or 'none'}",
        "",
        f"The ledger is in {fleet.ledger}. Look at it with",
        f"  rose dashboard --ledger {fleet.ledger}        (from a checkout: make dashboard)",
        f'  rose sql --ledger {fleet.ledger} "from lease"',
    )


def _load(file: Path) -> FleetConfig:
    from rose import config as configuration

    fleet = configuration.load(file)
    _has_prices(fleet)
    for warning in configuration.warnings(fleet, file):
        echo(warning, err=True, colour=typer.colors.YELLOW)
    return fleet


def _has_prices(fleet: FleetConfig) -> bool:
    from rose.clock import utc_us
    from rose.ledger.files import layout
    from rose.ledger.ledger import Ledger
    from rose.pricing.price_books import pricebook

    ledger = Ledger(fleet.ledger) if (fleet.ledger / layout.MARKER).exists() else None
    if (book := pricebook.choose_for_new_run(ledger, fleet.price_book)) is None:
        echo(
            f"The run has no price book, and so no costs. {pricebook.BEFOREHAND}", err=True, colour=typer.colors.YELLOW
        )
        return False
    for device in fleet.device:
        book.device_at(device.device_class, device.pool, utc_us() * 1000)
    return True


def _harvest(ledger: Path, run_id: str) -> dict[str, float | None]:
    """Return a run's harvest share by period (`run`, `steps`, `rollouts`), from the query harvest_share_of_run."""
    from rose.ledger.ledger import Ledger
    from rose.ledger.reading import named

    result = named.run(Ledger(ledger), named.load("harvest_share_of_run"), {"run_id": run_id})
    period, share = result.columns.index("period"), result.columns.index("harvested_share")
    return {row[period]: row[share] for row in result.rows}


@app.command(rich_help_panel=_FLEET)
def config() -> None:
    """Print an example fleet file that explains every field."""
    from rose.config.example import example

    echo_data(example())


@app.command(rich_help_panel=_FLEET)
def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="Check this fleet file and its prices instead of the host.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check this host, or check a fleet file. Show what to do about each problem."""
    from rose import doctor as diagnosis

    if config is None:
        raise typer.Exit(diagnosis.main(as_json))
    with user_errors():
        _load(config)
    echo(f"{config} is valid")


@app.command(rich_help_panel=_FLEET)
def accept(
    quick: Annotated[bool, typer.Option("--quick", help="Shorten stages; claim nothing about tail latency.")] = False,
    only: Annotated[
        list[str] | None, typer.Option(help="Run only this stage; repeat the option for more.", metavar="STAGE")
    ] = None,
    gpu: Annotated[int | None, typer.Option(help="Index of the GPU. Default: the first.", min=0)] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Exit with code 1 after a failed claim or skipped stage.")
    ] = False,
    report: Annotated[
        Path | None, typer.Option("--json", help="File for the report, written after every stage.")
    ] = None,
) -> None:
    """Test the claims of ROSE on this host's GPU in at most twenty minutes. Each result is shown beside its target."""
    from rose.accept.command import accept as run_stages

    with user_errors():
        raise typer.Exit(run_stages(quick=quick, only=only or (), gpu=gpu, strict=strict, file=report))


@app.command(rich_help_panel=_LEDGER)
def dashboard(
    ledger: Annotated[
        Path | None,
        typer.Option(help="Folder of the ledger. Default: ./ledger, or else the sample ledger.", envvar="ROSE_LEDGER"),
    ] = None,
    port: Annotated[int, typer.Option(help="HTTP port on this machine.")] = 8501,
    host: Annotated[
        str, typer.Option(help="Address to bind. An address for other machines needs --auth.")
    ] = "127.0.0.1",
    auth: Annotated[
        Path | None,
        typer.Option(help="File with the login provider and the allowed people.", envvar="ROSE_DASHBOARD_AUTH"),
    ] = None,
) -> None:
    """Open the dashboard on a ledger, also while a fleet runs."""
    import dashboard as pages
    from dashboard import login

    with user_errors():
        ready = login.start(pages.ledger_to_show(ledger), host, port, auth)
        echo(*ready.says)
        raise typer.Exit(subprocess.call(ready.command, env=ready.environment))


def main() -> None:
    with user_errors():
        app()


if __name__ == "__main__":
    main()
