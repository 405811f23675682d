"""`rose train`: the built-in loop, as a client of an existing fleet."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.private_files import TemporaryFolder
from rose.terminal import echo, echo_data, user_errors

if TYPE_CHECKING:
    from rose.events import Step


def train_command(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="ROSE_URL", help="The fleet's controller, such as http://10.0.0.1:30100; this host's if left out."
        ),
    ] = None,
    token: Annotated[str | None, typer.Option(envvar="ROSE_TOKEN", help="The controller's token.")] = None,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A fleet file: task, training, rollout and tags are used.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run, in the ledger and on screens; the task's if left out.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Paying team; the file's tag `team` if left out.")] = None,
    steps: Annotated[int | None, typer.Option(help="RL steps to run.", min=1)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to keep the run in after each update.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --checkpoint.")] = False,
    device: Annotated[
        str | None, typer.Option(help="The fleet's device on this host that the trainer works on and is charged for.")
    ] = None,
    wait: Annotated[
        float, typer.Option(help="Wait for so many seconds until the fleet is ready, and begin then.", min=0)
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="A line of JSON on stdout for each step.")] = False,
) -> None:
    """Train a policy on a fleet file's task; Ctrl-C ends it, and --resume goes on from the last update."""
    from rose import config as configuration
    from rose.runtime.fleet import BACKGROUND_NICE
    from rose.runtime.service.console import find
    from rose.runtime.training.train import TrainError, train

    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with user_errors(), ExitStack() as stack:
        if resume and checkpoint is None:
            raise TrainError("--resume needs --checkpoint, the folder that the run was kept in")
        fleet = None if config is None else configuration.load(config)
        controller = find(url, token, fleet)
        train(
            controller.url,
            controller.token,
            checkpoint or stack.enter_context(TemporaryFolder("rose-training-")),
            lambda text: echo(text, err=True),
            _print_step if as_json else lambda _: None,
            name=name,
            team=team,
            fleet=fleet,
            kept=checkpoint is not None,
            resume=resume,
            steps=steps,
            device=device,
            wait_s=wait,
        )


def _print_step(event: Step) -> None:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    echo_data(json.dumps({name: value for name, value in values.items() if value is not None}))
