"""The command `rose train`, which trains with the built-in RL loop as a client of a fleet."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack, suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rose.errors import UserError
from rose.private_files import TemporaryFolder
from rose.runtime.service.commands import MaybeFileOption, TokenOption, UrlOption
from rose.terminal import echo, echo_data, user_errors

if TYPE_CHECKING:
    from rose.events import Step


def train_command(
    url: UrlOption = None,
    token: TokenOption = None,
    config: MaybeFileOption = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the run, in the ledger and on screens. Default: the task's name.")
    ] = None,
    team: Annotated[str | None, typer.Option(help="Team that pays. Default: the file's tag `team`.")] = None,
    steps: Annotated[int | None, typer.Option(help="RL steps to run.", min=1)] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Folder to save the run in after each update.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --checkpoint.")] = False,
    device: Annotated[
        str | None, typer.Option(help="Device of this host on which the trainer runs. The run pays for it.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a line of JSON for each step.")] = False,
) -> None:
    """Train a policy on the task of a fleet file. Ctrl-C stops the training, and --resume continues it."""
    from rose import config as configuration
    from rose.runtime.fleet import BACKGROUND_NICE
    from rose.runtime.service.console import find
    from rose.runtime.training.train import train

    with suppress(PermissionError):
        os.setpriority(os.PRIO_PROCESS, 0, BACKGROUND_NICE)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with user_errors(), ExitStack() as stack:
        if resume and checkpoint is None:
            raise UserError("--resume needs --checkpoint: give the folder of the run")
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
        )


def _print_step(event: Step) -> None:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    echo_data(json.dumps({name: value for name, value in values.items() if value is not None}))
