"""A fleet as a service, from the command line: `rose up`, `status`, `drain`, `restart`, `down`."""

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

FileOption = Annotated[
    Path, typer.Option("--config", "-c", help="The fleet file; `rose config` makes one.", envvar="ROSE_FLEET")
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        help="The Ray cluster, such as 10.0.0.1:6379; left out, where the fleet was started or one of this host's own.",
        envvar="ROSE_RAY_ADDRESS",
    ),
]
MaybeFileOption = Annotated[
    Path | None, typer.Option("--config", "-c", help="The fleet file, on the controller's host.", envvar="ROSE_FLEET")
]
UrlOption = Annotated[
    str | None, typer.Option(help="The controller, such as http://10.0.0.1:30100.", envvar="ROSE_URL")
]
TokenOption = Annotated[str | None, typer.Option(help="The controller's token.", envvar="ROSE_TOKEN")]


def up_command(
    config: FileOption,
    address: AddressOption = None,
    wait: Annotated[
        bool, typer.Option(help="Return when controller and hosts are at work; engines load longer.")
    ] = True,
    stay: Annotated[
        bool, typer.Option("--stay", help="Stay and watch; end with an error if the fleet is lost.")
    ] = False,
    down_on_stop: Annotated[
        bool,
        typer.Option(
            "--down-on-stop",
            help="With --stay: put the fleet down on Ctrl-C or SIGTERM, as `rose down --keep-runs` does.",
        ),
    ] = False,
) -> None:
    """Start a fleet, or find the one that runs. It continues when this command ends."""
    from rose import config as configuration
    from rose.runtime.service.up import down, up

    with user_errors("stopped: what was started goes on; `rose up` finds it, and `rose down` ends it"):
        if down_on_stop and not stay:
            raise UserError("--down-on-stop is for a command that stays: give --stay too, or leave it out")
        loaded, say = configuration.load(config), progress(err=True)
        if down_on_stop:
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            fleet = up(loaded, address, say)
            if wait:
                fleet.wait_ready(say)
                echo(f"fleet run {fleet.remembered.run_id}, controller at {fleet.remembered.url}")
            while stay and fleet.goes_on():
                time.sleep(1.0)
        except KeyboardInterrupt:
            if not down_on_stop:
                raise
            down(loaded, address, say, keep_runs=True)


def down_command(
    config: FileOption,
    address: AddressOption = None,
    keep_runs: Annotated[
        bool,
        typer.Option("--keep-runs", help="Keep its RL runs: the next `rose up` goes on with them, as after a reboot."),
    ] = False,
) -> None:
    """End a fleet: leases, engines and accounts, then the controller and its RL runs. Serving of yours goes on."""
    from rose import config as configuration
    from rose.runtime import places
    from rose.runtime.service import memory
    from rose.runtime.service.up import down

    with user_errors("stopped waiting: `rose down` again ends what is left"):
        fleet = configuration.load(config)
        ran = down(fleet, address, progress(err=True), keep_runs=keep_runs)
        echo(f"fleet {fleet.name!r} was put down" if ran else f"no fleet {fleet.name!r} runs here")
        if (kept := memory.read(places.state_folder(fleet))) is not None:
            how = "is kept" if kept.kept else "was not ended, and its RL runs are open on record"
            echo(f"fleet run {kept.run_id} {how}: `rose up` goes on with it, and `rose down` then ends it")


def restart_command(
    part: Annotated[
        str,
        typer.Argument(
            metavar="HOST|controller",
            help="A host's name in the fleet file, `local` if it names none; or `controller`.",
        ),
    ],
    config: FileOption,
    address: AddressOption = None,
) -> None:
    """Start a host's agents or the controller anew, with what is installed there now; runs and serving go on.

    A host's leases end first. While the controller is away its clients ask again, and events wait on their hosts. A new
    version comes to the controller first, then to the hosts."""
    from rose import config as configuration
    from rose.runtime.service.up import restart

    with user_errors("stopped waiting: `rose status` shows how the fleet is"):
        restart(configuration.load(config), address, part, progress(err=True))
        echo(f"{part} is at work again")


def status_command(
    config: MaybeFileOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Devices, leases, versions and runs, and why nothing is lent."""
    from rose.runtime.service.console import status_view, terminal_width

    with user_errors("stopped: the fleet goes on"):
        controller = _find(url, token, config)
        status = controller.status()
        if as_json:
            echo_data(json.dumps(status))
        else:
            Screen(width=terminal_width()).print(status_view(status, controller.url))


def drain_command(
    device: Annotated[str | None, typer.Argument(help="The device's id.")] = None,
    every: Annotated[bool, typer.Option("--all", help="All devices of the fleet.")] = False,
    reason: Annotated[str | None, typer.Option(help="The reason, for `rose status`.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Lend the device again.")] = False,
    config: MaybeFileOption = None,
    url: UrlOption = None,
    token: TokenOption = None,
) -> None:
    """Take back what is lent of a device and lend no more; serving goes on."""
    with user_errors("stopped: the fleet goes on"):
        if every == (device is not None):
            raise UserError("name a device to drain, or give --all")
        if undo and reason is not None:
            raise UserError("--reason is why a device is drained: leave it out with --undo")
        controller = _find(url, token, config)
        name = "--all" if device is None else device
        if undo:
            lent = controller.undrain(device)
            echo(f"{', '.join(lent)}: lent again" if lent else f"{device or 'no device'} was not drained")
        else:
            drained = controller.drain(device, reason)
            echo(f"{', '.join(drained) or 'no device'}: drained; `rose drain {name} --undo` lends again")


def reload_command(config: FileOption) -> None:
    """Take over changed latency budgets and `[coserving]` settings from the fleet file, without a restart.

    Type it on the first host. Settings that need a restart are refused by name, and then nothing changes."""
    from rose import config as configuration
    from rose.runtime.service.up import reload

    with user_errors("stopped: type `rose reload` again"):
        changes = reload(configuration.load(config), progress(err=True))
        echo(*(changes or ["the fleet has these settings already"]))


def _find(url: str | None, token: str | None, config: Path | None) -> ControllerClient:
    from rose import config as configuration
    from rose.runtime.service.console import find

    return find(url, token, None if config is None else configuration.load(config))
