"""Runs the built-in RL loop for `rose train`."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from rose import client
from rose.config import DeviceConfig, FleetConfig, RolloutConfig, TaskConfig, TrainingConfig
from rose.errors import UserError, did_you_mean
from rose.events import Step
from rose.runtime.fleet import host_cores
from rose.runtime.models import models, warm_start
from rose.runtime.rollout.players import Players, Task
from rose.runtime.service.console import ControllerClient
from rose.runtime.training.checkpoint import Checkpoint, CheckpointError
from rose.runtime.training.train_time import TrainTime, page_of


def train(
    url: str,
    token: str | None,
    folder: Path,
    say: Callable[[str], None],
    done: Callable[[Step], None],
    *,
    name: str | None = None,
    team: str | None = None,
    fleet: FleetConfig | None = None,
    kept: bool = False,
    resume: bool = False,
    steps: int | None = None,
    device: str | None = None,
) -> str:
    """Train to the last step; return the run's id. If `kept`, the run in `folder` can be resumed. Raises UserError."""
    trainer_device = _device(fleet, device)
    page = None if device is None else page_of(device)
    if fleet is not None and trainer_device is not None:
        os.sched_setaffinity(0, host_cores(peer for peer in fleet.device if peer.host == trainer_device.host))
    with ExitStack() as stack:
        checkpoint = Checkpoint(folder)
        stack.callback(checkpoint.close)
        if (begun := checkpoint.run_id()) is not None and not resume:
            raise CheckpointError(f"{folder} has run {begun}: give --resume to continue it, or another folder")
        task, training = (TaskConfig(), TrainingConfig()) if fleet is None else (fleet.task, fleet.training)
        if steps is not None:
            training = training.model_copy(update={"steps": steps})
        model = (RolloutConfig() if fleet is None else fleet.rollout).model
        if not resume:
            _check_fleet(url, token, model)
        environment = stack.enter_context(Task(task))
        # torch reads the number of threads when it is loaded.
        os.environ["OMP_NUM_THREADS"] = str(training.threads)
        import torch

        from rose.runtime.training.loop import TrainLoop
        from rose.runtime.training.trainer import Trainer

        if begun is not None:
            checkpoint.check_same(task, training)
        elif resume:
            say(f"no run in {folder} yet: starting a run")
        tags = {} if fleet is None else fleet.tags
        cache = Path("~/.cache/rose" if fleet is None else fleet.cache).expanduser()
        if model == models.FROZENLAKE:
            weights = warm_start.resolve(task, cache, say, seed=training.seed)
        else:
            weights = models.resolve(model, cache, say)
        torch.set_num_threads(training.threads)
        trainer = Trainer(
            weights,
            training,
            "cpu" if trainer_device is None or trainer_device.gpu is None else f"cuda:{trainer_device.gpu}",
        )
        run = stack.enter_context(
            client.open_run(
                url,
                name=name or task.environment,
                model=model,
                team=team or tags.get("team"),
                tags=tags,
                task=task.environment,
                staleness_max=training.staleness_max,
                trainer_device=device,
                resume=begun,
                token=token,
                folder=folder / "weights",
            )
        )
        say(f"run {run.run_id} {'continues' if begun else 'is open'} at {url}")
        if begun is None:
            checkpoint.begin(run.run_id, task, training)
        players = stack.enter_context(Players(run.address, environment, weights, training.temperature))
        loop = TrainLoop(run, training, trainer, players, checkpoint, train_time=TrainTime(page), say=say, done=done)
        try:
            loop.train()
        except KeyboardInterrupt:
            if kept:
                run.leave()
                say(f"run {run.run_id} stops after step {trainer.version}: continue it with --resume")
            raise
        return run.run_id


def _device(fleet: FleetConfig | None, name: str | None) -> DeviceConfig | None:
    if name is None or fleet is None:
        return None
    devices = {device.id: device for device in fleet.device}
    if name not in devices:
        raise UserError(f"device {name!r} is not in the fleet file{did_you_mean(name, devices)}")
    return devices[name]


def _check_fleet(url: str, token: str | None, model: str) -> None:
    names = ControllerClient(url, token).status()["models"]
    if names and model not in names:
        problem = f"rollout.model is {model!r}, but the fleet at {url} has {' or '.join(map(repr, names))}"
        raise UserError(f"{problem}: give the fleet file of that fleet by --config")
