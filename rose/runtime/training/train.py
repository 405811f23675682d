"""The built-in loop from its options to a run that is over: what `rose train` does."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rose import client
from rose.client.address import AWAY_S
from rose.client.control import wait_ready
from rose.config import DeviceConfig, FleetConfig, RolloutConfig, TaskConfig, TrainingConfig
from rose.errors import UserError, did_you_mean
from rose.events import Step
from rose.runtime.engines import models
from rose.runtime.fleet import host_cores
from rose.runtime.rollout.worker import Setting
from rose.runtime.rollout.workers import Workers
from rose.runtime.service.console import ControllerClient
from rose.runtime.training import warm_start
from rose.runtime.training.checkpoint import Checkpoint, CheckpointError
from rose.runtime.training.train_time import TrainTime, page_of

#: Rollouts and what feeds them give way to serving and its clients on the host's cores, ...
BACKGROUND_NICE = 10
#: ... and the trainer to all of them: a longer update delays weights, a turn that waits leaves engines idle.
TRAINER_NICE = 19


class TrainError(UserError):
    """Options that do not go together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainOptions:
    """What is to be trained, where. `kept`: `folder` outlives this process, and `resume` goes on from there.
    `device` is the fleet's device that the trainer works on, if it works on one."""

    url: str
    token: str | None
    name: str
    team: str | None
    fleet: FleetConfig | None
    folder: Path
    kept: bool
    resume: bool
    steps: int | None
    workers: int | None
    device: str | None
    #: For how long a fleet that is being started is waited for, in seconds.
    wait_s: float = 0.0
    #: For how long a controller that does not answer is asked again, in seconds.
    away_s: float = AWAY_S


def train(options: TrainOptions, say: Callable[[str], None], done: Callable[[Step], None]) -> str:
    """Train to the last step; returns the run's id. `say` is told of progress, `done` of each step.

    A run that is kept is left open when KeyboardInterrupt ends it, or the controller is away: it can be resumed.
    Raises UserError of many kinds, each saying what to do.
    """
    device = _device(options)
    page = None if options.device is None or options.wait_s else page_of(options.device)
    if device is not None:
        _keep_off_serving(options.fleet, device)
    with ExitStack() as stack:
        checkpoint = Checkpoint(options.folder)
        stack.callback(checkpoint.close)
        begun = checkpoint.run_id()
        if begun is not None and not options.resume:
            raise CheckpointError(f"{options.folder} holds run {begun}: give --resume to go on, or another folder")
        task, training = _tables(options, checkpoint)
        rollout = RolloutConfig() if options.fleet is None else options.fleet.rollout
        if not options.resume and not options.wait_s:
            _check_fleet(options, rollout.model)
        # Before torch is loaded, which takes the number of its threads once.
        os.environ["OMP_NUM_THREADS"] = str(training.threads)
        import torch

        from rose.runtime.training.loop import TrainLoop
        from rose.runtime.training.trainer import Trainer

        if begun is not None:
            checkpoint.check_same(task, training)
        elif options.resume:
            say(f"no run was begun in {options.folder} yet: beginning one")
        tags = {} if options.fleet is None else options.fleet.tags
        folder = _model(rollout.model, options.fleet, task, training, say)
        torch.set_num_threads(training.threads)
        trainer = Trainer(folder, training, "cpu" if device is None or device.gpu is None else f"cuda:{device.gpu}")
        run = stack.enter_context(
            client.open_run(
                options.url,
                name=options.name,
                model=rollout.model,
                team=options.team or tags.get("team"),
                tags=tags,
                task=task.name,
                staleness_max=training.staleness_max,
                trainer_device=options.device,
                resume=begun,
                token=options.token,
                folder=checkpoint.weights,
                away_s=options.away_s,
            )
        )
        say(f"run {run.run_id} {'goes on' if begun else 'is open'} at {options.url}")
        if begun is None:
            checkpoint.begin(run.run_id, task, training)
        setting = Setting(address=run.address, task=task, temperature=training.temperature, nice=BACKGROUND_NICE)
        workers = stack.enter_context(Workers(setting, options.workers or task.workers, say))
        if options.wait_s:
            wait_ready(options.url, options.token, options.wait_s, say)
            page = None if options.device is None else page_of(options.device)
        loop = TrainLoop(
            run,
            training,
            trainer,
            workers,
            checkpoint,
            train_time=TrainTime(page),
            nice=TRAINER_NICE,
            say=say,
            done=done,
        )
        try:
            loop.run()
        except KeyboardInterrupt:
            if options.kept:
                run.leave()
                say(f"run {run.run_id} is left after step {trainer.version}: --resume goes on with it")
            raise
        return run.run_id


def _tables(options: TrainOptions, checkpoint: Checkpoint) -> tuple[TaskConfig, TrainingConfig]:
    """Those of the file, or that the run was begun with, or the default ones."""
    if options.fleet is not None:
        task, training = options.fleet.task, options.fleet.training
    else:
        task, training = checkpoint.tables() or (TaskConfig(), TrainingConfig())
    return task, training if options.steps is None else training.model_copy(update={"steps": options.steps})


def _device(options: TrainOptions) -> DeviceConfig | None:
    """What the file says of the trainer's device. Raises TrainError if it knows no such device."""
    if options.device is None or options.fleet is None:
        return None
    devices = {device.id: device for device in options.fleet.device}
    if options.device not in devices:
        raise TrainError(f"device {options.device!r} is not in the fleet file{did_you_mean(options.device, devices)}")
    return devices[options.device]


def _check_fleet(options: TrainOptions, model: str) -> None:
    """Before a model is made, which takes a minute: that the fleet is there, and generates with this one. What goes on
    by itself, or waits, comes to a fleet that may be away.

    Raises DeploymentError if it is not there, UserError if it refuses, TrainError if it has another model.
    """
    there = ControllerClient(options.url, options.token).status()["model"]
    if there not in (None, model):
        raise TrainError(
            f"the rollout model here is {model!r} and that of the fleet at {options.url} is {there!r}: give its fleet "
            "file by --config"
        )


def _keep_off_serving(fleet: FleetConfig | None, beside: DeviceConfig) -> None:
    """Keep this process and its workers off the cores that serve on the device's host, as the fleet's own work is."""
    devices = () if fleet is None else fleet.device
    os.sched_setaffinity(0, host_cores(device for device in devices if device.host == beside.host))


def _model(
    model: str, fleet: FleetConfig | None, task: TaskConfig, training: TrainingConfig, say: Callable[[str], None]
) -> Path:
    """The checkpoint that version 0 is."""
    cache = Path("~/.cache/rose" if fleet is None else fleet.cache).expanduser()
    if model == "frozenlake-tiny":
        return warm_start.resolve(task, cache, say, seed=training.seed)
    return models.resolve(model, cache, say)
