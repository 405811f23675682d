"""The commands `rose up`, `status`, `drain`, `reload`, `restart` and `down`."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.errors import UserError
from rose.terminal import Screen, echo, echo_data, progress, user_errors

if TYPE_CHECKING:
    from rose.runtime.service.console import ControllerClient

_FILE = typer.Option("--config", "-c", help="Fleet file; `rose config` prints an example.", envvar="ROSE_FLEET")
FileOption = Annotated[Path, _FILE]
MaybeFileOption = Annotated[Path | None, _FILE]
_ADDRESS = "Ray cluster, such as 10.0.0.1:6379. Default: the fleet's cluster, or a new one on this host."
AddressOption = Annotated[str | None, typer.Option(help=_ADDRESS, envvar="ROSE_RAY_ADDRESS")]
_URL = "URL of the controller, such as http://10.0.0.1:30100. Default: the one on this host."
UrlOption = Annotated[str | None, typer.Option(help=_URL, envvar="ROSE_URL")]
TokenOption = Annotated[str | None, typer.Option(help="Token of the controller.", envvar="ROSE_TOKEN")]


def up_command(
    config: FileOption,
    address: AddressOption = None,
    wait: Annotated[bool, typer.Option(help="Wait for the controller and the hosts, but not for engines.")] = True,
    stay: Annotated[bool, typer.Option("--stay", help="Keep watching the fleet; fail if it is lost.")] = False,
    down_on_stop: Annotated[
        bool, typer.Option("--down-on-stop", help="With --stay: run `rose down --keep-runs` on Ctrl-C or SIGTERM.")
    ] = False,
) -> None:
    """Start a fleet, or find a running fleet. The fleet outlives this command."""
    from rose import config as configuration
    from rose.runtime.service.up import down, up

    with user_errors("stopped: the started parts continue; `rose up` finds them, and `rose down` ends them"):
        if down_on_stop and not stay:
            raise UserError("--down-on-stop needs --stay: add it, or leave --down-on-stop out")
        loaded, say = configuration.load(config), progress(err=True)
        if down_on_stop:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            fleet = up(loaded, address, say)
            if wait:
                fleet.wait_ready(say)
                echo(f"fleet run {fleet.remembered.run_id}, controller at {fleet.remembered.url}")
            while stay and fleet.is_running():
                time.sleep(1.0)
        except KeyboardInterrupt:
            if not down_on_stop:
                raise
            down(loaded, address, say, keep_runs=True)


def down_command(
    config: FileOption,
    address: AddressOption = None,
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="Keep the fleet's RL runs for the next `rose up`.")
    ] = False,
) -> None:
    """End a fleet: its leases, engines and accounts, then the controller and its RL runs. Attached servers continue."""
    from rose import config as configuration
    from rose.runtime import places
    from rose.runtime.service import memory
    from rose.runtime.service.up import down

    with user_errors("stopped waiting: type `rose down` again to end the rest"):
        fleet = configuration.load(config)
        ran = down(fleet, address, progress(err=True), keep_runs=keep_runs)
        echo(f"fleet {fleet.name!r} has ended" if ran else f"no fleet {fleet.name!r} runs here")
        if (fleet_run := memory.read(places.state_folder(fleet))) is not None:
            how = "is kept" if fleet_run.kept else "has not ended, and its RL runs are still open"
            echo(f"fleet run {fleet_run.run_id} {how}: continue it with `rose up`; then `rose down` ends it")


def restart_command(
    part: Annotated[
        str,
        typer.Argument(
            metavar="HOST|controller", help="Host's name in the fleet file (default `local`), or `controller`."
        ),
    ],
    config: FileOption,
    address: AddressOption = None,
) -> None:
    """Restart the agents of a host, or the controller, with the installed version. RL runs and serving continue.

    The leases of a host end first. While the controller restarts, clients repeat their requests, and events wait on
    their hosts. Upgrade the controller first, and then the hosts."""
    from rose import config as configuration
    from rose.runtime.service.up import restart

    with user_errors("stopped waiting: `rose status` shows the fleet's state"):
        restart(configuration.load(config), address, part, progress(err=True))
        echo(f"{part} works again")


def status_command(
    config: MaybeFileOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show devices, leases, versions and runs, and why a device is not lent."""
    from rose.runtime.service.console import status_view, terminal_width

    with user_errors("stopped: the fleet continues"):
        controller = _find(url, token, config)
        status = controller.status()
        if as_json:
            echo_data(json.dumps(status))
        else:
            Screen(width=terminal_width()).print(status_view(status, controller.url))


def drain_command(
    device: Annotated[str | None, typer.Argument(help="Id of the device.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Drain all devices.")] = False,
    reason: Annotated[str | None, typer.Option(help="Reason to show in `rose status`.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Lend the device again.")] = False,
    config: MaybeFileOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Take back the lease of a device, and stop lending the device. Serving continues."""
    with user_errors("stopped: the fleet continues"):
        if every == (device is not None):
            raise UserError("give the id of a device to drain, or give --all")
        if undo and reason is not None:
            raise UserError("--reason does not go with --undo: leave --reason out")
        controller = _find(url, token, config)
        name = "--all" if device is None else device
        if undo:
            lent = controller.undrain(device)
            echo(f"{', '.join(lent)}: lent again" if lent else f"{device or 'no device'} was not drained")
        else:
            drained = controller.drain(device, reason)
            echo(f"{', '.join(drained) or 'no device'}: drained; `rose drain {name} --undo` lends again")


def reload_command(config: FileOption) -> None:
    """Apply changes of latency budgets and of the table `coserving` in the fleet file, without a restart.

    Run this command on the first host. If a change needs a restart, the command names it and changes nothing."""
    from rose import config as configuration
    from rose.runtime.service.up import reload

    with user_errors("stopped: type `rose reload` again"):
        changes = reload(configuration.load(config), progress(err=True))
        echo(*(changes or ["no change: the fleet has these settings"]))


def _find(url: str | None, token: str | None, config: Path | None) -> ControllerClient:
    from rose.runtime.service.console import find

    if config is None:
        return find(url, token, None)
    from rose import config as configuration  # This import takes longer than all the rest.

    return find(url, token, configuration.load(config))
