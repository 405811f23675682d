"""`rose fleet`: a fleet as a service, from the command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from rose.errors import UserError

fleet_app = typer.Typer(help="A fleet as a service, on one host or many.", no_args_is_help=True)

ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The fleet file; `rose config example` makes one.", envvar="ROSE_FLEET")
]
AddressOption = Annotated[
    str | None,
    typer.Option(help="The Ray cluster to join, such as 10.0.0.1:6379; left out, one of this host's own.",
                 envvar="ROSE_RAY_ADDRESS"),
]  # fmt: skip


@fleet_app.command("up")
def up_command(
    config: ConfigOption,
    address: AddressOption = None,
    wait: Annotated[bool, typer.Option(help="Return when every part is at work, not before.")] = True,
    stay: Annotated[
        bool, typer.Option("--stay", help="Stay and watch; end with an error if the cluster is lost.")
    ] = False,
) -> None:
    """Start a fleet, or find the one that runs; it goes on when this command ends, however it ends."""
    from rose import config as configuration
    from rose.runtime.service.up import up

    with errors():
        fleet = up(configuration.load(config), address, _say())
        if wait:
            state = fleet.wait_ready(_say())
            typer.echo(f"fleet run {state.run_id}, controller at {state.url}")
        while stay:
            time.sleep(1.0)
            fleet.state()


@fleet_app.command("down")
def down_command(config: ConfigOption, address: AddressOption = None) -> None:
    """End a fleet: leases, engines and accounts, then the controller. Owners' serving engines go on."""
    from rose import config as configuration
    from rose.runtime.service.up import down

    with errors():
        if not down(configuration.load(config), address, _say()):
            typer.echo("no fleet of this name runs here")


def _say() -> object:
    began = time.monotonic()

    def say(text: str) -> None:
        typer.secho(f"{time.monotonic() - began:6.1f} s  {text}", dim=False, err=True)

    return say


@contextmanager
def errors() -> Iterator[None]:
    """A user's errors as messages, with their exit codes."""
    try:
        yield
    except UserError as error:
        typer.secho(f"rose: {error}", fg=typer.colors.RED, err=True)
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        typer.echo("stopped looking: the fleet goes on", err=True)
        raise typer.Exit(130) from None
